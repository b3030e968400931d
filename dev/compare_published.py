"""Plans the published runs of doc/scaling.md and prints its table: what was measured, what --plan says, the error.

    python3 dev/compare_published.py [./train_gpt]

Nothing is fitted to a single run: all are planned with the same table of machines (plan/gpus.h).
"""
import json
import statistics
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "./train_gpt"
COMMON = "--precision bf16 --reduce fast".split()
PEAK = {"a100-80gb": 312, "h100-sxm": 989}  # Tflop/s
DRAM = {"a100-80gb": 0.87 * 2039e9, "h100-sxm": 0.9 * 3350e9}  # bytes a second, as plan/gpus.h has them
MPT_7B, MPT_70B = "gpt2:L=32,C=4096,NH=32,T=2048,V=50432", "gpt2:L=80,C=8192,NH=64,T=2048,V=50432"


def step(gpu, model, ranks, batch, *options):
    """The planned step."""
    command = [PROGRAM, "--plan", "--json", "--gpu", gpu, "--model", model, "--ranks", str(ranks), "--batch", str(batch)]
    out = subprocess.run(command + COMMON + list(options), capture_output=True, text=True, check=True).stdout
    return json.loads(out)["step"]


def theirs(planned, found, more):
    """A rate when a step takes so many seconds more."""
    return planned * found["seconds"] / (found["seconds"] + more)


def scores_seconds(L, NH, T, tokens):
    """minGPT's attention writes the T x T scores of each head and passes over them in bf16, operation by operation
    (mingpt/model.py). Bytes an element: forward product 2, scale 4, mask 4, softmax 4, dropout 5, product 2; backward
    product 2, dropout 5, softmax 6, mask 4, scale 4, products 6; the forward twice. Here they are never written."""
    bytes_an_element = 2 * (2 + 4 + 4 + 4 + 5 + 2) + (2 + 5 + 6 + 4 + 4 + 6)
    return bytes_an_element * L * NH * T * tokens / DRAM["a100-80gb"]


def eager_seconds(gpu, L, C, tokens, forwards):
    """PyTorch without compilation adds residuals, and their gradients, in passes of their own, and LayerNorm's backward
    reads its two inputs once for the input's gradient and once for the weight's (ATen, layer_norm_kernel.cu): accesses
    of a bf16 number of the residual stream and layer beyond those of this program, 2 forward and 8 backward."""
    return 2 * (2 * forwards + 8) * L * C * tokens / DRAM[gpu]


def new_gelu_seconds(L, C, tokens):
    """minGPT's GELU is eight operations (mingpt/model.py, NewGELU): 18 accesses forward (here 2), and by autograd 28
    backward (here 3); the forward twice."""
    return 2 * (2 * (18 - 2) + 28 - 3) * L * 4 * C * tokens / DRAM["a100-80gb"]


def recomputed(batch, T, ranks, *options, minGPT=False):
    """Tflop/s of a GPU at 175B, those of the second forward among them: of this program, and of theirs."""
    found = step("a100-80gb", "gpt3:c12288", ranks, batch, "--seq", str(T), "--recompute", "layer", "--reduce-dtype",
                 "bf16", *options)
    planned = found["hfu"] * PEAK["a100-80gb"]
    more = eager_seconds("a100-80gb", 96, 12288, batch * T, 2)
    if minGPT:
        more += scores_seconds(96, 96, T, batch * T) + new_gelu_seconds(96, 12288, batch * T)
    return planned, theirs(planned, found, more)


def mosaic(gpu, model, parameters, L, C, ranks, batch, recompute):
    """MFU as MosaicML counts it: with the whole square of attention. Its precision "DEFAULT" reduces in fp32 (Composer,
    get_mixed_precision). Its attention is FlashAttention's first version, which reaches 25 to 40 % of A100's peak
    (arXiv 2307.08691); here a third, and as many flops a cycle and multiprocessor on H100."""
    found = step(gpu, model, ranks, batch, "--recompute", recompute, "--reduce-dtype", "fp32")
    planned = 100 * found["tokens_per_second"] / ranks * (6 * parameters + 12 * L * C * 2048) / (PEAK[gpu] * 1e12)
    products = 7 + 2 * (recompute == "layer")  # of 2 C flops for each of half the pairs
    rate = 0.33 * 312e12 * {"a100-80gb": 1, "h100-sxm": 132 * 1.83 / (108 * 1.41)}[gpu]
    attention = products * L * C * 2048 * batch * 2048 / rate
    attention -= found["work"]["attention"] + found["work"]["attention backward"]
    eager = eager_seconds(gpu, L, C, batch * 2048, 1 + (recompute == "layer"))
    return planned, theirs(planned, found, attention + eager)


def runs():
    """(name, unit, measured, (planned for this program, planned for theirs))"""
    for batch, measured in ((1, 173), (2, 186)):  # arXiv 2304.11277, 2 Tbit/s a node
        for ranks in (128, 512):
            yield (f"PyTorch FSDP 175B, {ranks} A100, T 2048, b {batch}", "Tflop/s", measured,
                   recomputed(batch, 2048, ranks, "--network", "2000", minGPT=True))
    for batch, measured in ((1, 95), (2, 129), (4, 170), (8, 181), (16, 194)):
        yield f"ZeRO-3 175B, 128 A100, T 1024, b {batch}", "Tflop/s", measured, recomputed(batch, 1024, 128)
    # mosaicml/llm-foundry, scripts/train/benchmarking
    for gpu, ranks, measured in (("a100-80gb", 8, 64.2), ("h100-sxm", 8, 46.4), ("h100-sxm", 512, 42.2)):
        yield (f"MPT 7B, {ranks} {gpu[:4].upper()}, b 6", "% MFU", measured,
               mosaic(gpu, MPT_7B, 6.66e9, 32, 4096, ranks, 6, "none"))
    for gpu, ranks, measured in (("a100-80gb", 64, 53.3), ("h100-sxm", 512, 41.3)):
        yield (f"MPT 70B, {ranks} {gpu[:4].upper()}, b 8", "% MFU", measured,
               mosaic(gpu, MPT_70B, 64.9e9, 80, 8192, ranks, 8, "layer"))
    llmc = 1e3 * step("a100-80gb", "gpt2:d12", 8, 64, "--shard", "states", "--reduce-dtype", "bf16")["seconds"]
    yield "llm.c 124M, 8 A100, 524,288 tokens", "ms", 300, (llmc, llmc)


def main():
    errors = []
    print("| run | measured | this program | error | their program | error |\n|---|---|---|---|---|---|")
    for name, unit, measured, planned in runs():
        found = [100 * (p / measured - 1) for p in planned]
        errors.append([abs(f) for f in found])
        shown = " | ".join(f"{p:.{0 if p >= 100 else 1}f} | {f:+.1f} %" for p, f in zip(planned, found))
        print(f"| {name} | {measured:g} {unit} | {shown} |")
    print("\nmedian errors {:.1f} % and {:.1f} %".format(*(statistics.median(e) for e in zip(*errors))))


main()
