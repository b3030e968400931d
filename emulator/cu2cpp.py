#!/usr/bin/env python3
"""Rewrites the two constructs of CUDA that are not C++ and keeps everything else, line for line.

    kernel<A, B><<<grid, block, shared, stream>>>(args)   ->  EMU_LAUNCH((kernel<A, B>), grid, ...)(args)
    extern __shared__ T name[];                           ->  T *name = (T *)emu::ctx.dynamic;

usage: cu2cpp.py SOURCE DESTINATION
Comments and strings are left alone. Exits 1, naming the line, on a construct that it cannot rewrite.
"""
import os
import re
import sys

EXTERN_SHARED = re.compile(
    r'extern\s+__shared__\s+'
    r'(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?'
    r'(?P<type>(?:unsigned\s+)?[A-Za-z_][\w:]*(?:\s*\*)*)\s*'
    r'(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?'
    r'\b(?P<name>\w+)\s*\[\s*\]\s*;')
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


class ConversionError(Exception):
    pass


def blank(text):
    """Same length and lines, with comments and the inside of strings replaced by spaces."""
    def spaces(m):
        return re.sub(r'[^\n]', ' ', m.group())
    # digit separators (1'000) are not character literals
    return NOT_CODE.sub(spaces, re.sub(r"(?<=\d)'(?=\d)", ' ', text))


def kernel_start(code, end, line):
    """Index where the kernel's name (with its template arguments) that ends at `end` begins."""
    j = end
    while j > 0 and code[j - 1].isspace():
        j -= 1
    if j > 0 and code[j - 1] == '>':
        depth = parentheses = 0
        while j > 0:
            j -= 1
            parentheses += {')': 1, '(': -1}.get(code[j], 0)
            if parentheses == 0:
                depth += {'>': 1, '<': -1}.get(code[j], 0)
            if depth == 0:
                break
        while j > 0 and code[j - 1].isspace():
            j -= 1
    name_end = j
    while j > 0 and (code[j - 1].isalnum() or code[j - 1] in '_:'):
        j -= 1
    if j == name_end or code[j].isdigit():
        raise ConversionError(f'line {line}: no kernel name before <<<')
    return j


def config_end(code, start, line):
    """Index of the >>> that closes the configuration beginning at `start`."""
    depth = 0
    for i in range(start, len(code)):
        depth += {'(': 1, '[': 1, '{': 1, ')': -1, ']': -1, '}': -1}.get(code[i], 0)
        if depth < 0 or code[i] == ';':
            break
        if depth == 0 and code.startswith('>>>', i):
            return i
    raise ConversionError(f'line {line}: no >>> for <<<')


def convert(text):
    """Returns (converted text, number of launches, number of dynamic shared arrays)."""
    code = blank(text)
    edits = []  # (start, end, replacement)
    for m in EXTERN_SHARED.finditer(code):
        newlines = '\n' * m.group().count('\n')
        edits.append((m.start(), m.end(), '{0} *{1} = ({0} *)emu::ctx.dynamic;{2}'.format(
            m['type'], m['name'], newlines)))
    arrays = len(edits)
    found = len(re.findall(r'extern\s+__shared__', code))
    if arrays != found:
        raise ConversionError(f'{found} "extern __shared__", only {arrays} of the form T name[];')
    launches = 0
    for m in re.finditer('<<<', code):
        line = code.count('\n', 0, m.start()) + 1
        start, end = kernel_start(code, m.start(), line), config_end(code, m.end(), line)
        if not re.match(r'\s*\(', code[end + 3:]):
            raise ConversionError(f'line {line}: no argument list after >>>')
        edits.append((start, m.end(), f'EMU_LAUNCH(({text[start:m.start()]}), '))
        edits.append((end, end + 3, ')'))
        launches += 1
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text, launches, arrays


def main():
    source, destination = sys.argv[1:]
    with open(source, encoding='utf-8') as f:
        text = f.read()
    try:
        converted, _, _ = convert(text)
    except ConversionError as e:
        sys.exit(f'cu2cpp: {source}: {e}')
    os.makedirs(os.path.dirname(destination) or '.', exist_ok=True)
    with open(destination, 'w', encoding='utf-8') as f:
        f.write(f'#line 1 "{source}"\n{converted}')


if __name__ == '__main__':
    main()
