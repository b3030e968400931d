# dev/check_hf.py: the program's models against Hugging Face's transformers, both ways.
#
#   python dev/check_hf.py --model test/reference/small/model.bin --val test/reference/small/val.txt
#
# --model is whatever ./train_gpt takes. Out: the exported folder loads without a word, its logits are those of
# dev/reference.py on the exported model.bin (both in double), and the program's validation loss is that of the logits.
# In: what transformers then writes, in three dtypes, in several files and without the prefix, comes back bit by bit.
import argparse
import copy
import json
import subprocess
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2LMHeadModel

import formats
import reference

failed = False


def check(what, found, allowed):
    global failed
    failed |= not found <= allowed
    print(f"{'ok    ' if found <= allowed else 'FAILED'} {what}: {found:.3g}, allowed {allowed:g}")


def program(*options):
    command = ["./train_gpt", "--steps", "0", "--json", *map(str, options)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_out(folder, config, params, val, samples):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    check("keys that transformers misses or does not know", sum(len(keys) for keys in info.values()), 0)
    model = model.double().eval()
    rows = torch.from_numpy(formats.read_samples(val, config["T"])[:samples])
    x, y = rows[:, :-1], rows[:, 1:]
    per_layer = {name for name, _, layered in formats.tensors(config["T"], config["V"], config["C"]) if layered}
    double = {k: torch.from_numpy(v).double() for k, v in params.items()}
    double = {k: list(v) if k in per_layer else v for k, v in double.items()}
    with torch.no_grad():
        logits, expected = model(x).logits, reference.forward(double, config, x, False)
    check("logits, transformers against dev/reference.py", (logits - expected).abs().max().item(), 1e-9)
    loss = F.cross_entropy(logits.reshape(-1, config["V"]), y.reshape(-1)).item()
    output = program("--model", folder, "--val", val, "--batch", 1, "--val-batches", len(rows))
    ours = json.loads(output.splitlines()[0])["val_loss"]
    check(f"loss of {len(rows)} samples, the program against transformers", abs(ours - loss) / loss, 1e-6)
    return model


# Largest difference of the program's parameters from those expected; 0: the same numbers.
def difference(folder, expected, temporary):
    program("--model", folder, "--export-model", f"{temporary}/back.bin")
    _, found = formats.read_model(f"{temporary}/back.bin")
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected)


def check_in(model, params, temporary):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded = {name: torch.from_numpy(p).to(dtype).float().numpy() for name, p in params.items()}
        for what, part, size in (
            ("one file", model, "50GB"),
            ("several files", model, sum(p.size for p in params.values()) // 2),
            ("without prefix", model.transformer, "50GB"),
        ):
            folder = tempfile.mkdtemp(dir=temporary)
            copy.deepcopy(part).to(dtype).save_pretrained(folder, max_shard_size=size)
            check(f"parameters from transformers, {dtype}, {what}", difference(folder, rounded, temporary), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--samples", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, file = f"{temporary}/hf", f"{temporary}/model.bin"
        program("--model", arguments.model, "--export-hf", folder, "--export-model", file)
        config, params = formats.read_model(file)
        check_out(folder, config, params, arguments.val, arguments.samples)
        check_in(GPT2LMHeadModel.from_pretrained(folder), params, temporary)
    raise SystemExit(failed)
