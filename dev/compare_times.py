#!/usr/bin/env python3
"""Prints predicted times beside measured ones, for dev/gpu_check.sh.

usage: compare_times.py PREDICTED [MEASURED]

Lines of both files that count are `NAME bf16|fp32 TIME ms ...`, as dev/bench_kernels prints them. What only one of them
has is printed too. Fails if a file has no such line, or the two have none in common.
"""
import re
import statistics
import sys

ROW = re.compile(r'(\S.*?)\s+(fp32|bf16)\s+([0-9.]+) ms\b')


def read_times(path):
    """{(name, dtype): microseconds}, in the file's order"""
    with open(path, encoding='utf-8') as f:
        rows = [ROW.match(line) for line in f]
    found = {(r[1], r[2]): 1e3 * float(r[3]) for r in rows if r}
    return found or sys.exit('%s: %s: expected lines `NAME bf16 TIME ms`' % (sys.argv[0], path))


def shown(form, x):
    return form % x if x else '-'


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit('usage: compare_times.py PREDICTED [MEASURED]')
    predicted = read_times(sys.argv[1])
    measured = read_times(sys.argv[2]) if len(sys.argv) == 3 else {}
    ratios = {key: measured[key] / predicted[key] for key in predicted if key in measured}
    print('%-38s %-5s %12s %12s %7s' % ('kernel', 'dtype', 'predicted us', 'measured us', 'ratio'))
    for key in dict.fromkeys([*predicted, *measured]):
        print('%-38s %-5s %12s %12s %7s' % (*key, shown('%.1f', predicted.get(key)), shown('%.1f', measured.get(key)),
                                           shown('%.2f', ratios.get(key))))
    if not measured:
        return
    if not ratios:
        sys.exit('%s: %s and %s have no line of one name' % tuple(sys.argv))
    print('measured over predicted: median %.2f of %d, from %.2f to %.2f'
          % (statistics.median(ratios.values()), len(ratios), min(ratios.values()), max(ratios.values())))


main()
