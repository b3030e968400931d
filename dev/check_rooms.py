"""Checks that every source file includes only what the table of doc/architecture.md allows its room.

    python3 dev/check_rooms.py

Prints one line for each include that breaks a rule, and for each source file without a room.
"""
import re
import subprocess
import sys
from pathlib import Path

OUTSIDE = ("emulator/", "test/", "dev/", "scripts/", "doc/")


def rules():
    """Room (a folder with a slash, or a file) to what it may include; None: anything."""
    found = {}
    for line in Path("doc/architecture.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        room = re.fullmatch(r"`([^`]+)`", cells[0]) if len(cells) == 3 else None
        if room:
            found[room[1]] = None if cells[2] == "any" else re.findall(r"`([^`]+)`", cells[2])
    return found


def included(path):
    """The project's files that a file includes, from the root of the repository."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        quoted = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if quoted:
            beside = (path.parent / quoted[1]).resolve()
            target = beside if beside.exists() else Path(quoted[1]).resolve()
            yield number, target.relative_to(Path.cwd()).as_posix()


def main():
    table, faults = rules(), 0
    sources = subprocess.run(["git", "ls-files", "*.h", "*.cu", "*.cuh", "*.cpp"], capture_output=True, text=True,
                             check=True).stdout.split()
    if len(table) < 10 or not sources:
        sys.exit("check_rooms: expected the table of rooms in doc/architecture.md and sources beside it")
    for source in sources:
        if source.startswith(OUTSIDE):
            continue
        room = source if source in table else source.rpartition("/")[0] + "/"
        if room not in table:
            print(f"{source}: no room in doc/architecture.md")
            faults += 1
            continue
        for number, target in included(Path(source)):
            allowed = table[room]
            if allowed is not None and not any(target == a or (a.endswith("/") and target.startswith(a)) for a in allowed):
                print(f"{source}:{number}: includes {target}; {room} may include {' '.join(allowed)}")
                faults += 1
    sys.exit(1 if faults else 0)


main()
