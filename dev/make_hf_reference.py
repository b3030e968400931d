# dev/make_hf_reference.py: makes test/reference/hugging_face/ anew (run from the repository's root; needs
# requirements.txt): a GPT-2 with random weights everywhere, as transformers itself writes it, and the logits that it
# computes from it in double.
#   fp32    GPT2LMHeadModel, one file
#   fp16    GPT2LMHeadModel in half precision, several files with an index
#   bf16    GPT2Model: names without `transformer.`
# Each folder has expected.txt: a line of tokens, then V logits for each of them.
import os
import shutil

import torch
from transformers import GPT2Config, GPT2LMHeadModel

ROOT = "test/reference/hugging_face"
TOKENS = [3, 10, 0, 7, 7]


def random_model():
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=5, n_embd=4, n_layer=2, n_head=2, bos_token_id=10,
                                       eos_token_id=10))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.5)
            if "ln_" in name and name.endswith("weight"):
                p += 1
    return model.eval()


def write_expected(folder, model):
    with torch.no_grad():
        logits = model.double()(torch.tensor([TOKENS])).logits[0]
    with open(f"{folder}/expected.txt", "w") as f:
        f.write(" ".join(map(str, TOKENS)) + "\n")
        for row in logits.tolist():
            f.write(" ".join(f"{x:.9g}" for x in row) + "\n")


def make(name, dtype, **save):
    folder = f"{ROOT}/{name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    model = random_model().to(dtype)
    (model.transformer if name == "bf16" else model).save_pretrained(folder, **save)
    for file in os.listdir(folder):
        os.chmod(f"{folder}/{file}", 0o644)
        if file == "generation_config.json":
            os.remove(f"{folder}/{file}")
    write_expected(folder, model)


make("fp32", torch.float32)
make("fp16", torch.float16, max_shard_size=800)
make("bf16", torch.bfloat16)
