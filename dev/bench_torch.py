# dev/bench_torch.py: step times of a GPT-2 in PyTorch, written to be fast: SDPA, fused AdamW, one fused qkv
# product, bf16 by autocast. The yardstick of dev/bench.sh, which sets threads, binding and the allocator.
#
#   python dev/bench_torch.py L C NH V B T fp32|bf16 STEPS [compile]
#
# Prints one line {"step": n, "ms": x} a step, as the program does with --json.
import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

L, C, NH, V, B, T = map(int, sys.argv[1:7])
bf16, steps, compiled = sys.argv[7] == "bf16", int(sys.argv[8]), "compile" in sys.argv[9:]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attproj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        q, k, v = (t.view(B, T, NH, C // NH).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attproj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks, self.lnf = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.lnf(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, V), y.view(-1))


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
loss_of = torch.compile(model) if compiled else model
for step in range(steps):
    began = time.perf_counter()
    x, y = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = loss_of(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss = loss.item()
    print(json.dumps({"step": step, "ms": 1e3 * (time.perf_counter() - began), "loss": loss}), flush=True)
