#!/usr/bin/env python3
"""Checks that the code in docs/internals/tour.md is the code in the sources: the lines of each excerpt follow each other in a file
that the same section names before the excerpt. White space does not count; a line with only … stands for omitted lines. The same
holds for sections of docs/guides/embedding.md that name a source first; the page's other code is a program of its own."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {"docs/internals/tour.md": r"\.(?:h|cpp)$", "docs/guides/embedding.md": r"\.cpp$"}  # the files that may hold the excerpts


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


def check(page, holds_excerpts):
    """How many excerpts the page has, and how many of them are code that is not there."""
    wrong = seen = 0
    for number, named, code in excerpts((ROOT / page).read_text()):
        files = [file for file in named if re.search(holds_excerpts, file)]
        if not files and page != "docs/internals/tour.md":
            continue
        sources = [squeezed((ROOT / file).read_text()) for file in files if (ROOT / file).exists()]
        for part in re.split(r"^\s*…\s*$", code, flags=re.MULTILINE):
            seen += 1
            if any(squeezed(part) in source for source in sources):
                continue
            wrong += 1
            print(f"{page}:{number}: this is not in {', '.join(files) or 'no file at all'}:\n{part.strip()}", file=sys.stderr)
    return seen, wrong


def main():
    status = 0
    for page, holds_excerpts in PAGES.items():
        seen, wrong = check(page, holds_excerpts)
        if wrong or seen == 0:
            print(f"error: of {seen} excerpts in {page} {wrong} are code that is not there", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
