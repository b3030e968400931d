# dev/make_reference.py: makes test/reference/ anew (run from the repository's root; needs requirements.txt).
# Two small models with random weights everywhere, also in biases and LayerNorms, so that no gradient is
# zero by accident; data; options; and what dev/reference.py computes from them.
#   tiny   V=37 (Vp=128) C=12 NH=3 L=2 T=7: odd sizes; two token shards, 4 micro-batches a step, 1.4 epochs
#   small  V=257 C=64 NH=4 L=2 T=32: plain text, 2 micro-batches a step, several epochs; bf16 model.bin
import os
import subprocess
import sys

import numpy as np

import formats

ROOT = "test/reference"

GETTYSBURG = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in \
Liberty, and dedicated to the proposition that all men are created equal.

Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so \
dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a \
portion of that field, as a final resting place for those who here gave their lives that that nation might \
live. It is altogether fitting and proper that we should do this.

But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. \
The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or \
detract. The world will little note, nor long remember what we say here, but it can never forget what they \
did here. It is for us the living, rather, to be dedicated here to the unfinished work which they who fought \
here have thus far so nobly advanced. It is rather for us to be here dedicated to the great task remaining \
before us -- that from these honored dead we take increased devotion to that cause for which they gave the \
last full measure of devotion -- that we here highly resolve that these dead shall not have died in vain -- \
that this nation, under God, shall have a new birth of freedom -- and that government of the people, by the \
people, for the people, shall not perish from the earth.
"""


def random_model(rng, config):
    params = {}
    for name, shape, layered in formats.tensors(config["T"], config["V"], config["C"]):
        shape = ((config["L"],) if layered else ()) + shape
        value = rng.standard_normal(shape) * (0.1 if len(shape) - layered == 2 else 0.05)
        if name in ("ln1w", "ln2w", "lnfw"):
            value += 1
        params[name] = value.astype(np.float32)
    params["wte"][config["V"] :] = 0
    return params


def random_tokens(rng, n, V):
    """A chain in which a token mostly decides the next, so that there is something to learn."""
    tokens = [int(rng.integers(V))]
    while len(tokens) < n:
        tokens.append(int(rng.integers(V)) if rng.random() < 0.3 else (5 * tokens[-1] + 3) % V)
    return tokens


def make(name, config, options, seed, bf16_model):
    folder = f"{ROOT}/{name}"
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(seed)
    formats.write_model(f"{folder}/model.bin", config, random_model(rng, config), bf16_model)
    if name == "tiny":
        formats.write_shard(f"{folder}/train_000001.bin", random_tokens(rng, 501, config["V"]))
        formats.write_shard(f"{folder}/train_000002.bin", random_tokens(rng, 300, config["V"]))
        formats.write_shard(f"{folder}/val_000000.bin", random_tokens(rng, 80, config["V"]))
    else:
        text = GETTYSBURG.split("\n\n", 1)
        open(f"{folder}/train.txt", "w").write(text[1])
        open(f"{folder}/val.txt", "w").write(text[0] + "\n")
    with open(f"{folder}/options.cfg", "w") as f:
        f.write("# made by dev/make_reference.py; run from the repository's root\n")
        for key, value in options.items():
            f.write(f"{key} = {value}\n")
    for precision in ("fp32", "bf16"):
        final = ["--final"] if name == "tiny" and precision == "fp32" else []
        subprocess.run(
            [sys.executable, "dev/reference.py", f"{folder}/options.cfg", "--precision", precision, "--out", folder]
            + final,
            check=True,
        )


make("tiny", dict(T=7, V=37, L=2, NH=3, C=12), {
    "model": f"{ROOT}/tiny/model.bin", "train": f"{ROOT}/tiny/train_*.bin", "val": f"{ROOT}/tiny/val_*.bin",
    "batch": 2, "seq": 7, "tokens-per-step": 56, "steps": 20, "lr": 0.003, "warmup": 5, "schedule": "cosine",
    "final-lr": 0.1, "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "grad-clip": 0.5,
    "seed": 1234, "val-batches": 6,
}, 1, False)  # fmt: skip
make("small", dict(T=32, V=257, L=2, NH=4, C=64), {
    "model": f"{ROOT}/small/model.bin", "train": f"{ROOT}/small/train.txt", "val": f"{ROOT}/small/val.txt",
    "batch": 2, "seq": 32, "tokens-per-step": 128, "steps": 20, "lr": 0.001, "warmup": 4, "schedule": "linear",
    "final-lr": 0, "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "grad-clip": 1,
    "seed": 42, "val-batches": 3,
}, 2, True)  # fmt: skip
with open(f"{ROOT}/order.txt", "w") as f:
    subprocess.run([sys.executable, "dev/order.py"], stdout=f, check=True)
