#!/usr/bin/env python3
"""Checks that sources call only the CUDA, NCCL and cuBLASLt functions listed in api.txt.

usage: check_api.py SOURCE...        exits 1, naming file, line and function, on any other call
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cu2cpp import blank

MACRO = re.compile(r'^\s*#\s*define\s+(\w+)', re.M)  # a source's own macros, such as cudaCheck
CALL = re.compile(r'\b((?:cuda|nccl|cublas)[A-Z]\w*)\s*\(')


def allowed():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'api.txt')
    with open(path, encoding='utf-8') as f:
        return {name for line in f for name in line.split('#')[0].split()}


def unknown_calls(text, known):
    """[(line, name)] of calls that are not in `known`."""
    code = blank(text)
    return [(code.count('\n', 0, m.start()) + 1, m[1]) for m in CALL.finditer(code) if m[1] not in known]


def main():
    texts, bad = {}, 0
    for path in sys.argv[1:]:
        with open(path, encoding='utf-8') as f:
            texts[path] = f.read()
    known = allowed().union(*(MACRO.findall(text) for text in texts.values()))
    for path, text in texts.items():
        for line, name in unknown_calls(text, known):
            print(f'{path}:{line}: {name} is not in emulator/api.txt', file=sys.stderr)
            bad = 1
    sys.exit(bad)


if __name__ == '__main__':
    main()
