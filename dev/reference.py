# dev/reference.py: an independent GPT-2 in PyTorch that trains on the same model.bin and data as the
# program and writes what the program is tested against. Written for trust, not for speed.
#
#   python dev/reference.py options.cfg --precision fp32 --out FOLDER
#
# options.cfg is the program's own --config file. Written to FOLDER:
#   main_PRECISION.log   s:STEP trl:.. lr:.. norm:..  and, before the first and after the last step, s:STEP tel:..
#   debug_state.bin      (fp32) the first step: all its tokens, logits, loss, and every gradient before clipping
#   final.bin            (--final) the parameters after the last step, as model.bin
#
# fp32: computed in double, so that the files hold the true values, which fp32 must come close to.
# bf16: every stored activation, its gradient, and the weights are rounded to bfloat16; sums, statistics,
# the gradients of parameters and the optimizer stay fp32.
import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

import formats
import order


class Stored(torch.autograd.Function):
    """A tensor that goes through memory as bfloat16, and so does its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.bfloat16().to(g.dtype)


class Cast(torch.autograd.Function):
    """A weight that is used as bfloat16 and whose gradient is kept in full."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


def forward(p, config, x, bf16):
    """Logits (B,T,V) of tokens x (B,T). p: name -> tensor, per layer as a list."""
    store = Stored.apply if bf16 else lambda t: t
    weight = Cast.apply if bf16 else lambda t: t
    C, NH, V, T = config["C"], config["NH"], config["V"], x.shape[1]
    p = {k: [weight(t) for t in v] if isinstance(v, list) else weight(v) for k, v in p.items()}

    def norm(h, w, b):
        return store(F.layer_norm(h, (C,), w, b, 1e-5))

    residual = store(p["wte"][x] + p["wpe"][:T])
    for l in range(config["L"]):
        h = norm(residual, p["ln1w"][l], p["ln1b"][l])
        qkv = store(h @ p["qkvw"][l].T + p["qkvb"][l])
        q, k, v = (t.reshape(*t.shape[:2], NH, C // NH).transpose(1, 2) for t in qkv.split(C, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(C // NH)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
        att = store((scores.softmax(dim=3) @ v).transpose(1, 2).reshape(*x.shape, C))
        residual = store(residual + store(att @ p["attprojw"][l].T + p["attprojb"][l]))
        h = norm(residual, p["ln2w"][l], p["ln2b"][l])
        pre = store(h @ p["fcw"][l].T + p["fcb"][l])
        act = store(F.gelu(pre, approximate="tanh"))
        residual = store(residual + store(act @ p["fcprojw"][l].T + p["fcprojb"][l]))
    h = norm(residual, p["lnfw"], p["lnfb"])
    return store(h @ p["wte"][:V].T)


def learning_rate(o, step):
    """formats: linear warm-up, then the schedule between lr and lr * final-lr."""
    top, low = o["lr"], o["lr"] * o["final-lr"]
    if step < o["warmup"]:
        return top * (step + 1) / o["warmup"]
    r = (step - o["warmup"]) / (o["steps"] - o["warmup"])
    if o["schedule"] == "cosine":
        return low + 0.5 * (1 + math.cos(math.pi * r)) * (top - low)
    if o["schedule"] == "linear":
        return low + (1 - r) * (top - low)
    assert o["schedule"] == "constant", "this reference has constant, linear and cosine"
    return top


DEFAULTS = {
    "warmup": 0, "schedule": "cosine", "final-lr": 0.1, "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.95,
    "eps": 1e-8, "grad-clip": 1.0, "seed": 42, "lr": 3e-4, "val": "", "val-batches": 20,
}  # fmt: skip


def read_options(path):
    o = dict(DEFAULTS)
    for line in open(path):
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, value = (part.strip() for part in line.split("=", 1))
        o[name] = value.strip('"')
        for kind in (float, int):
            try:
                o[name] = kind(value)
            except ValueError:
                pass
    return o


def validation_loss(p, config, o, bf16):
    """Mean over the targets of the first val-batches micro-batches in the unshuffled order."""
    rows = formats.read_samples(o["val"], o["seq"])[: o["val-batches"] * o["batch"]]
    x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
    with torch.no_grad():
        return F.cross_entropy(forward(p, config, x, bf16).reshape(-1, config["V"]), y.reshape(-1)).item()


def train(o, precision, out, final):
    bf16 = precision == "bf16"
    config, params = formats.read_model(o["model"])
    dtype = torch.float32 if bf16 else torch.float64
    layered = {name for name, _, per_layer in formats.tensors(config["T"], config["V"], config["C"]) if per_layer}
    p = {}
    for name, value in params.items():
        leaf = lambda a: torch.tensor(a, dtype=dtype).requires_grad_()
        p[name] = [leaf(a) for a in value] if name in layered else leaf(value)

    leaves = {name: value if name in layered else [value] for name, value in p.items()}
    matrices = [t for ts in leaves.values() for t in ts if t.dim() == 2]
    vectors = [t for ts in leaves.values() for t in ts if t.dim() == 1]
    groups = [dict(params=matrices, weight_decay=o["weight-decay"]), dict(params=vectors, weight_decay=0.0)]
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=(o["beta1"], o["beta2"]), eps=o["eps"])

    B, T, V, steps = o["batch"], o["seq"], config["V"], int(o["steps"])
    micro_steps = o["tokens-per-step"] // (B * T)
    samples = formats.read_samples(o["train"], T)
    log = open(os.path.join(out, f"main_{precision}.log"), "w")

    def validate(step):
        if o["val"]:
            log.write(f"s:{step} tel:{validation_loss(p, config, o, bf16):.9g}\n")

    validate(0)
    for step in range(steps):
        lr = learning_rate(o, step)
        loss_sum, xs, ys, logit_list = 0.0, [], [], []
        adamw.zero_grad()
        for micro in range(micro_steps):
            rows = torch.from_numpy(order.micro_batch(samples, B, step * micro_steps + micro, o["seed"]))
            x, y = rows[:, :-1], rows[:, 1:]
            logits = forward(p, config, x, bf16)
            # The gradient that enters the backward is that of the summed loss; the division comes last.
            loss = F.cross_entropy(logits.reshape(-1, V), y.reshape(-1), reduction="sum")
            loss.backward()
            loss_sum += loss.item()
            xs.append(x), ys.append(y), logit_list.append(logits.detach())
        tokens = micro_steps * B * T
        for t in matrices + vectors:
            t.grad /= tokens
        norm = math.sqrt(sum((t.grad.double() ** 2).sum().item() for t in matrices + vectors))
        if step == 0 and not bf16:
            grads = {name: np.stack([t.grad.numpy() for t in ts]) for name, ts in leaves.items()}
            arrays = (torch.cat(part).numpy() for part in (xs, ys, logit_list))
            formats.write_debug_state(os.path.join(out, "debug_state.bin"), *arrays, loss_sum / tokens, grads, config)
        scale = min(1.0, o["grad-clip"] / (norm + 1e-6)) if o["grad-clip"] else 1.0
        for t in matrices + vectors:
            t.grad *= scale
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
        log.write(f"s:{step} trl:{loss_sum / tokens:.9g} lr:{lr:.9g} norm:{norm:.9g}\n")
    validate(steps)
    if final:
        arrays = {name: np.stack([t.detach().numpy() for t in ts]) for name, ts in leaves.items()}
        formats.write_model(os.path.join(out, "final.bin"), config, arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("options")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--out", default=".")
    parser.add_argument("--final", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one order of every sum: the same files on every machine of a kind
    train(read_options(arguments.options), arguments.precision, arguments.out, arguments.final)
