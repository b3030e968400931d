"""Plans the published runs of doc/scaling.md and prints its table: what was measured, what --plan says, the error.

    python3 dev/compare_published.py [./train_gpt]

Nothing is fitted to a single run: all are planned with the same table of machines (plan/gpus.h).
"""
import json
import statistics
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "./train_gpt"
COMMON = "--precision bf16 --reduce-dtype bf16 --reduce fast --logits-rows 16384".split()
PEAK = {"a100-80gb": 312, "h100-sxm": 989}  # Tflop/s
MPT_7B, MPT_70B = "gpt2:L=32,C=4096,NH=32,T=2048,V=50432", "gpt2:L=80,C=8192,NH=64,T=2048,V=50432"


def step(gpu, model, ranks, batch, *options):
    """The planned step."""
    command = [PROGRAM, "--plan", "--json", "--gpu", gpu, "--model", model, "--ranks", str(ranks), "--batch", str(batch)]
    out = subprocess.run(command + COMMON + list(options), capture_output=True, text=True, check=True).stdout
    return json.loads(out)["step"]


def recomputed(batch, T, ranks, *options):
    """Tflop/s of a GPU at 175B, those of the second forward among them."""
    found = step("a100-80gb", "gpt3:c12288", ranks, batch, "--seq", str(T), "--recompute", "layer", *options)
    return found["hfu"] * PEAK["a100-80gb"]


def mosaic(gpu, model, parameters, L, C, ranks, batch, recompute):
    """MFU as MosaicML counts it: with the whole square of attention."""
    found = step(gpu, model, ranks, batch, "--recompute", recompute)
    flops = 6 * parameters + 12 * L * C * 2048
    return 100 * found["tokens_per_second"] / ranks * flops / (PEAK[gpu] * 1e12)


def runs():
    """(name, unit, measured, planned)"""
    for batch, measured in ((1, 173), (2, 186)):  # arXiv 2304.11277, 2 Tbit/s a node
        for ranks in (128, 512):
            yield (f"PyTorch FSDP 175B, {ranks} A100, T 2048, b {batch}", "Tflop/s", measured,
                   recomputed(batch, 2048, ranks, "--network", "2000"))
    for batch, measured in ((1, 95), (2, 129), (4, 170), (8, 181), (16, 194)):
        yield f"ZeRO-3 175B, 128 A100, T 1024, b {batch}", "Tflop/s", measured, recomputed(batch, 1024, 128)
    # mosaicml/llm-foundry, scripts/train/benchmarking
    for gpu, ranks, measured in (("a100-80gb", 8, 64.2), ("h100-sxm", 8, 46.4), ("h100-sxm", 512, 42.2)):
        yield (f"MPT 7B, {ranks} {gpu[:4].upper()}, b 6", "% MFU", measured,
               mosaic(gpu, MPT_7B, 6.66e9, 32, 4096, ranks, 6, "none"))
    for gpu, ranks, measured in (("a100-80gb", 64, 53.3), ("h100-sxm", 512, 41.3)):
        yield (f"MPT 70B, {ranks} {gpu[:4].upper()}, b 8", "% MFU", measured,
               mosaic(gpu, MPT_70B, 64.9e9, 80, 8192, ranks, 8, "layer"))
    yield ("llm.c 124M, 8 A100, 524,288 tokens", "ms", 300,
           1e3 * step("a100-80gb", "gpt2:d12", 8, 64, "--shard", "states")["seconds"])


def main():
    errors = []
    print("| run | measured | planned | error |\n|---|---|---|---|")
    for name, unit, measured, planned in runs():
        error = 100 * (planned / measured - 1)
        errors.append(abs(error))
        print(f"| {name} | {measured:g} {unit} | {planned:.{0 if planned >= 100 else 1}f} | {error:+.1f} % |")
    print(f"\nmedian error {statistics.median(errors):.1f} %")


main()
