#!/usr/bin/env python3
"""What ptxas says that each kernel takes, as a table; checks that no kernel has come to spill.

usage: kernel_resources.py LOG...                   prints the table
       kernel_resources.py --check TABLE LOG...     fails if a kernel spills or has a stack that TABLE does not have
A LOG is named by its dtype (gpt_bf16.ptxas) and holds what `nvcc -Xptxas -v` printed. Dynamic shared memory
is chosen at the launch and not in the table.
"""
import os
import re
import subprocess
import sys

COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
STACK = re.compile(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads')
USED = re.compile(r'Used (\d+) registers')
SHARED = re.compile(r'(\d+) bytes smem')
COLUMNS = 'registers', 'stack', 'spill stores', 'spill loads', 'static shared'


def kernel_names(mangled):
    """name<template arguments> of each symbol."""
    out = subprocess.run(['c++filt'], input='\n'.join(mangled), capture_output=True, text=True, check=True).stdout
    return [re.sub(r'^void ', '', line.split('(')[0]) for line in out.splitlines()]


def read_log(path):
    """{(kernel, dtype, arch): numbers as in COLUMNS} of one log."""
    dtype = re.search(r'fp32|bf16', os.path.basename(path)).group()
    found, key = {}, None
    for line in open(path, encoding='utf-8'):
        if m := COMPILING.search(line):
            key = m.groups()
            found[key] = [0] * len(COLUMNS)
        elif key and (m := STACK.search(line)):
            found[key][1:4] = map(int, m.groups())
        elif key and (m := USED.search(line)):
            found[key][0] = int(m.group(1))
            found[key][4] = int(s.group(1)) if (s := SHARED.search(line)) else 0
    names = kernel_names([mangled for mangled, _ in found])
    return {(name, dtype, arch): found[mangled, arch] for name, (mangled, arch) in zip(names, found)}


def table(rows):
    lines = ['%-48s %-5s %-7s' % ('kernel', 'dtype', 'arch') + ''.join('%14s' % c for c in COLUMNS)]
    lines += ['%-48s %-5s %-7s' % key + ''.join('%14d' % n for n in numbers) for key, numbers in sorted(rows.items())]
    return '\n'.join(lines) + '\n'


def read_table(path):
    rows = {}
    for line in open(path, encoding='utf-8').readlines()[1:]:
        *name, dtype, arch, registers, stack, stores, loads, shared = line.split()
        rows[' '.join(name), dtype, arch] = [int(n) for n in (registers, stack, stores, loads, shared)]
    return rows


def worse(rows, committed):
    """Lines about kernels whose stack or spills have grown."""
    for key, numbers in sorted(rows.items()):
        before = committed.get(key, [0] * len(COLUMNS))
        for column in 1, 2, 3:
            if numbers[column] > before[column]:
                yield '%s %s %s: %s: %d bytes, expected at most %d' % (*key, COLUMNS[column], numbers[column],
                                                                       before[column])


def main(arguments):
    committed = arguments[1] if arguments[:1] == ['--check'] else None
    logs = arguments[2:] if committed else arguments
    if not logs:
        sys.exit(__doc__)
    rows = {}
    for log in logs:
        rows.update(read_log(log))
    if not rows:
        sys.exit('kernel_resources: no kernels in %s' % ' '.join(logs))
    if not committed:
        sys.stdout.write(table(rows))
        return
    defects = list(worse(rows, read_table(committed)))
    if defects:
        sys.exit('\n'.join(defects))
    print('%d kernels: none spills or has a stack beyond %s' % (len(rows), committed))


if __name__ == '__main__':
    main(sys.argv[1:])
