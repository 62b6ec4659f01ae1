#!/usr/bin/env python3
"""The code in docs/tour.md is the code in the sources: every excerpt stands, line behind line, in a file that its station has
named before it. White space does not count, and a line with nothing but … leaves something out."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOUR = ROOT / "docs" / "tour.md"


def squeezed(text):
    return "".join(text.split())


def excerpts(text):
    """(line number, files that the station has named so far, code) of each block of C++."""
    files, block, begin = [], None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if block is not None:
            if line.startswith("```"):
                yield begin, list(files), "\n".join(block)
                block = None
            else:
                block.append(line)
        elif line == "```cpp":
            begin, block = number, []
        elif line.startswith("## "):
            files = []
        else:
            files += re.findall(r"`([a-z0-9_/]+\.(?:h|cpp))`", line)


def main():
    wrong = seen = 0
    for number, files, code in excerpts(TOUR.read_text()):
        sources = [squeezed((ROOT / file).read_text()) for file in files if (ROOT / file).exists()]
        for part in re.split(r"^\s*…\s*$", code, flags=re.MULTILINE):
            seen += 1
            if any(squeezed(part) in source for source in sources):
                continue
            wrong += 1
            named = ", ".join(files) or "no file at all"
            print(f"docs/tour.md:{number}: this is not in {named}:\n{part.strip()}", file=sys.stderr)
    if wrong or seen == 0:
        print(f"error: of {seen} excerpts in docs/tour.md {wrong} are code that is not there", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
