#!/usr/bin/env python3
"""Counts the instructions of each kernel, loop by loop, from the disassembly of the CUDA build.

usage: kernel_instructions.py OBJECT                     prints the table (of a bf16 object or cubin)
       kernel_instructions.py --check TABLE OBJECT       fails if TABLE is out of date

Needs cuobjdump and nvdisasm: in the CUDA toolkit, or `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`.

A row is a part of a kernel: its straight code (loop 0) or one loop without the loops inside it. Slow paths that are
called (division of denormal numbers) are left out. How often a loop runs is not known here: dev/kernel_report.cu
finds it from what the emulator counts. `cycles` is what one warp alone takes for it, without the `waits` for global
memory; `flight` is the most bytes that a thread has on their way when it waits (in brackets: by cp.async).
"""
import glob
import os
import re
import shutil
import subprocess
import sys

FUNCTION = re.compile(r'\s+Function : (\S+)')
ARCH = re.compile(r'\.headerflags.*EF_CUDA_SM(\d+)|^arch = sm_(\d+)')
LINE = re.compile(r'^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z0-9_.]+)(?:\s+(.*?))?\s*;')
REGISTER = re.compile(r'\bR(\d+)\b')
# what a column counts: opcodes that begin so
CLASSES = {
    'load': ('LDG',), 'store': ('STG', 'ATOMG', 'RED'), 'async': ('LDGSTS',), 'lds': ('LDS',), 'sts': ('STS',),
    'ldsm': ('LDSM',), 'mma': ('HMMA',), 'special': ('MUFU',), 'shuffle': ('SHFL', 'VOTE', 'REDUX'),
    'barrier': ('BAR',), 'float': ('FFMA', 'FADD', 'FMUL', 'FMNMX', 'FSETP', 'FSEL', 'FCHK', 'HFMA2', 'HADD2', 'HMUL2'),
    'double': ('DFMA', 'DADD', 'DMUL', 'DSETP', 'DMNMX')}
COLUMNS = ['all'] + list(CLASSES)
NUMBERS = 2 + len(COLUMNS) + 4  # in a row, behind kernel and arch
TIMING = ['cycles', 'waits', 'flight', '(async)']


def class_of(opcode):
    """The column that an opcode counts in, besides 'all'."""
    if opcode.startswith('LDGSTS') or opcode.startswith('LDSM'):
        return 'async' if opcode.startswith('LDGSTS') else 'ldsm'
    for name, starts in CLASSES.items():
        if opcode.split('.')[0] in starts:
            return name
    return None


def tool(name):
    """The path of a program of the toolkit, or of its PyPI package."""
    packages = [p for d in sys.path for p in glob.glob(os.path.join(d, 'nvidia', 'cu*', 'bin', name))]
    found = shutil.which(name) or shutil.which('/usr/local/cuda/bin/' + name) or (packages or [None])[0]
    if not found:
        sys.exit('%s: %s is not here: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm' % (sys.argv[0], name))
    return found


def disassemble(path):
    """{(mangled name, arch): [(address, predicate, opcode, operands)]}"""
    environment = dict(os.environ, PATH=os.path.dirname(tool('nvdisasm')) + ':' + os.environ['PATH'])
    command = ['timeout', '120', tool('cuobjdump'), '-sass', path]  # seconds: nvdisasm was seen to hang, once
    for _ in range(3):
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if run.returncode == 0:
            break
    else:
        sys.exit('%s: cuobjdump fails (%d): %s' % (path, run.returncode, run.stderr[-200:]))
    text = run.stdout
    kernels, name, arch = {}, None, None
    for line in text.splitlines():
        if m := FUNCTION.match(line):
            name = m.group(1)
        elif m := ARCH.search(line):
            arch = m.group(1) or m.group(2)
        if m := LINE.match(line):
            kernels.setdefault((name, 'sm_' + arch), []).append((int(m.group(1), 16), m.group(2), m.group(3), m.group(4) or ''))
    return kernels


def target(operands):
    m = re.search(r'(?:^|[\s,(`])0x([0-9a-f]+)', operands)
    return int(m.group(1), 16) if m else None


def jumps(predicate, opcode):
    """A branch, or a call that is one: compilers leave loops by a call of the next instruction."""
    return opcode == 'BRA' or (predicate is not None and opcode.startswith('CALL'))


def main_code(code):
    """What the kernel's entry leads to, without what is called and without what only leads to a call."""
    places = {c[0]: i for i, c in enumerate(code)}
    slow = set()
    for i, (_, predicate, op, operands) in enumerate(code):
        end = places.get(target(operands), 0) if op == 'BRA' and predicate else 0
        if i < end <= i + 14 and any(b[2].startswith('CALL') and not b[1] for b in code[i + 1:end]):
            slow.update(range(i + 1, end))
    reached, ways = set(), [0]
    while ways:
        i = ways.pop()
        while i < len(code) and i not in reached and i not in slow:
            reached.add(i)
            _, predicate, op, operands = code[i]
            if jumps(predicate, op) and target(operands) in places:
                ways.append(places[target(operands)])
            if predicate is None and op.split('.')[0] in ('BRA', 'EXIT', 'RET', 'BRX', 'KILL'):
                break
            i += 1
    return [c for i, c in enumerate(code) if i in reached and not c[2].startswith('NOP')]


def loops(code):
    """[(begin, end)] of the loops, outermost first."""
    ends = {}
    for address, predicate, op, operands in code:
        to = target(operands) if jumps(predicate, op) else None
        if to is not None and to <= address:
            ends[to] = max(ends.get(to, 0), address)
    return sorted(ends.items(), key=lambda l: (l[0], -l[1]))


# Cycles from the issue of an instruction to the use of its result, by column; others take ALU. From
# microbenchmarks: Sun et al. 2022 (tensor cores), Abdelkhalik et al. 2022 (Ampere), Luo et al. 2025 (Hopper).
LATENCY = {'lds': 26, 'ldsm': 33, 'mma': 25, 'special': 20, 'shuffle': 24, 'double': 8}
ALU = 5
BARRIER = 20
# Cycles until a scheduler's unit takes the next of these: tensor core, special functions, fp32 lanes.
ISSUE = {'sm_80': {'mma': 8, 'special': 8, 'float': 2}, 'other': {'mma': 6, 'special': 8, 'float': 1}}


def registers(opcode, operands):
    """(registers written, registers read)"""
    fields = [f.strip() for f in operands.split(',')]
    named = [[int(r) for r in REGISTER.findall(f)] for f in fields]
    kind = class_of(opcode)
    if kind in ('store', 'sts', 'async', 'barrier') or not named or opcode in ('BRA', 'EXIT'):
        return [], [r for n in named for r in n]
    if kind == 'mma':
        wide = [4, 4, 2, 4]
        d, *rest = [list(range(n[0], n[0] + w)) if n else [] for n, w in zip(named, wide)]
        return d, [r for n in rest for r in n]
    size = 4 if '.128' in opcode or 'M88.4' in opcode else 2 if any(
        w in opcode for w in ('.64', '.WIDE', 'M88.2')) or kind == 'double' else 1
    written = list(range(named[0][0], named[0][0] + size)) if named[0] else []
    return written, [r for n in named[1:] for r in n]


def schedule(code, arch):
    """One warp alone: (cycles, times that it waits for global memory, most bytes that it then has on
    their way, most bytes by cp.async). Loads from global memory are taken to be there at once: what
    they take is counted apart."""
    clock = waits = pending = flight = copies = most_copies = 0
    ready, loaded, busy = {}, set(), {}
    issue = ISSUE.get(arch, ISSUE['other'])
    for _, _, op, operands in code:
        written, read = registers(op, operands)
        kind = class_of(op)
        clock += 1
        if loaded & set(read + written):
            waits, flight, pending, loaded = waits + 1, max(flight, pending), 0, set()
        clock = max([clock] + [ready.get(r, 0) for r in read])
        if kind in issue:
            clock = max(clock, busy.get(kind, 0))
            busy[kind] = clock + issue[kind]
        if kind == 'barrier':
            clock += BARRIER
        if kind == 'load':
            loaded |= set(written)
            pending += 16 if '.128' in op else 8 if '.64' in op else 2 if '16' in op else 1 if '8' in op else 4
        elif kind == 'async':
            copies += 16 if '.128' in op else 8 if '.64' in op else 4
            most_copies = max(most_copies, copies)
        elif op.startswith('LDGDEPBAR'):
            copies = 0
        for r in written:
            ready[r] = clock + LATENCY.get(kind, ALU)
    end = max([clock] + list(ready.values()))
    return end, waits + bool(loaded), max(flight, pending), most_copies


def in_steps(body, looped, arch):
    """The schedule of a part; of a loop that of a further round."""
    once = schedule(body, arch)
    if not looped:
        return once
    twice = schedule(body + body, arch)
    return twice[0] - once[0], twice[1] - once[1], max(once[2], twice[2]), once[3]


def parts(code, arch):
    """[(loop, inside, counts, timing)]: part 0 is what is in no loop."""
    code = main_code(code)
    found = loops(code)
    own = [[] for _ in range(len(found) + 1)]
    for c in code:
        inside = [i + 1 for i, (b, e) in enumerate(found) if b <= c[0] <= e]
        own[max(inside, key=lambda i: found[i - 1][0]) if inside else 0].append(c)
    rows = []
    for i, body in enumerate(own):
        outer = [k + 1 for k, (b, e) in enumerate(found)
                 if i and k + 1 != i and b <= found[i - 1][0] and e >= found[i - 1][1]]
        counts = dict.fromkeys(COLUMNS, 0)
        for _, _, op, _ in body:
            counts['all'] += 1
            if kind := class_of(op):
                counts[kind] += 1
        rows.append((i, max(outer, default=0), counts, in_steps(body, i > 0, arch)))
    return rows


def kernel_names(mangled):
    out = subprocess.run(['c++filt'], input='\n'.join(mangled), capture_output=True, text=True, check=True).stdout
    return [re.sub(r'^void ', '', line.split('(')[0]) for line in out.splitlines()]


def table(path):
    kernels = disassemble(path)
    names = kernel_names([mangled for mangled, _ in kernels])
    lines = ['%-48s %-7s %5s %6s' % ('kernel', 'arch', 'loop', 'inside') + ''.join('%8s' % c for c in COLUMNS) +
             ''.join('%8s' % c for c in TIMING)]
    rows = sorted(zip(names, kernels), key=lambda r: (r[0], int(r[1][1][3:])))
    for name, key in rows:
        for loop, inside, counts, timing in parts(kernels[key], key[1]):
            lines.append('%-48s %-7s %5d %6d' % (name, key[1], loop, inside) +
                         ''.join('%8d' % n for n in [counts[c] for c in COLUMNS] + list(timing)))
    return '\n'.join(lines) + '\n'


def instructions(text):
    """{(kernel, arch): instructions} of a table."""
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        key = ' '.join(words[:-NUMBERS - 1]), words[-NUMBERS - 1]
        found[key] = found.get(key, 0) + int(words[-NUMBERS + 2])
    return found


def main(arguments):
    if len(arguments) == 1:
        sys.stdout.write(table(arguments[0]))
    elif len(arguments) == 3 and arguments[0] == '--check':
        committed = instructions(open(arguments[1], encoding='utf-8').read())
        found = instructions(table(arguments[2]))
        stale = ['%s %s: %d instructions, in the table %d' % (*key, n, committed.get(key, 0))
                 for key, n in sorted(found.items()) if abs(committed.get(key, 0) - n) > 0.05 * n]
        if stale:
            sys.exit('\n'.join(stale) + '\n%s is out of date: make DEVICE=cuda instructions' % arguments[1])
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main(sys.argv[1:])
