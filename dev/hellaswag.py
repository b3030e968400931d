# dev/hellaswag.py: HellaSwag's public JSON lines to the file of --eval, as llm.c's hellaswag.py renders them.
#
#   python dev/hellaswag.py hellaswag_val.jsonl hellaswag_val.bin
#
# The JSON lines are hellaswag_val.jsonl of https://github.com/rowanz/hellaswag/tree/master/data: of each example its
# context `ctx`, its `endings`, and the number of the right one, `label`. GPT-2's tokens; an ending begins with a space.
import json
import sys

import numpy as np

import formats
from tokenize_text import encoding


def render(example, encode):
    """The label, tokens of the context, and of each ending."""
    return int(example["label"]), encode(example["ctx"]), [encode(" " + ending) for ending in example["endings"]]


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: python dev/hellaswag.py hellaswag_val.jsonl hellaswag_val.bin")
    encode = encoding().encode_ordinary
    examples = []
    try:
        for line in open(sys.argv[1], encoding="utf-8"):
            examples.append(render(json.loads(line), encode))
    except OSError as e:
        sys.exit(f"{sys.argv[1]}: {e.strerror}")
    except (ValueError, KeyError, TypeError) as e:
        sys.exit(f"{sys.argv[1]}: line {len(examples) + 1}: expected an example of HellaSwag, found {e!r}")
    if not examples:
        sys.exit(f"{sys.argv[1]}: expected examples, found none")
    formats.write_eval(sys.argv[2], examples)
    longest = max(len(context) + max(map(len, endings)) for _, context, endings in examples)
    print(f"{sys.argv[2]}: {len(examples)} examples, {longest} tokens at most")


if __name__ == "__main__":
    main()
