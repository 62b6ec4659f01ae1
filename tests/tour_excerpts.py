#!/usr/bin/env python3
"""Checks that the code in docs/internals/tour.md is the code in the sources: the lines of each excerpt follow each other in a file
that the same section names before the excerpt. White space does not count; a line with only … stands for omitted lines. The same
holds for sections of docs/guides/embedding.md that name a source first; the page's other code is a program of its own.

The tour follows the calls, so it shows each file in one section, in the order of the picture at its top, and says how many they are."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOUR = "docs/internals/tour.md"
PAGES = {TOUR: r"\.(?:h|cpp)$", "docs/guides/embedding.md": r"\.cpp$"}  # the files that may hold the excerpts
SOURCE = re.compile(r"`([a-z0-9_/]+\.(?:h|cpp))`")


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
            files += SOURCE.findall(line)


def check(page, holds_excerpts):
    """How many excerpts the page has, and how many of them are code that is not there."""
    wrong = seen = 0
    for number, named, code in excerpts((ROOT / page).read_text()):
        files = [file for file in named if re.search(holds_excerpts, file)]
        if not files and page != TOUR:
            continue
        sources = [squeezed((ROOT / file).read_text()) for file in files if (ROOT / file).exists()]
        for part in re.split(r"^\s*…\s*$", code, flags=re.MULTILINE):
            seen += 1
            if any(squeezed(part) in source for source in sources):
                continue
            wrong += 1
            print(f"{page}:{number}: this is not in {', '.join(files) or 'no file at all'}:\n{part.strip()}", file=sys.stderr)
    return seen, wrong


def order_faults(text):
    """What is wrong with the files that the tour names: their number, their order, a return to one, one without an excerpt."""
    named = [file for section in text.split("\n## ")[1:] for file in dict.fromkeys(SOURCE.findall(section))]
    picture = re.findall(r"^  ([a-z0-9_/]+\.(?:h|cpp)) ", text, re.MULTILINE)
    if picture != list(dict.fromkeys(named)):
        yield f"the picture has {', '.join(picture)}, and the sections name {', '.join(named)}"
    yield from (f"it returns to {file}" for file in dict.fromkeys(named) if named.count(file) > 1)
    parts = [squeezed(part) for _, _, code in excerpts(text) for part in re.split(r"^\s*…\s*$", code, flags=re.MULTILINE)]
    for file in dict.fromkeys(named):
        source = squeezed((ROOT / file).read_text()) if (ROOT / file).exists() else ""
        if not any(part and part in source for part in parts):
            yield f"it shows nothing of {file}"
    said = re.search(r"\b(\d+) files\b", text)
    if not said or int(said[1]) != len(set(named)):
        yield f"it names {len(set(named))} files, and says {said[1] if said else 'no number'}"


def main():
    status = 0
    for fault in order_faults((ROOT / TOUR).read_text()):
        print(f"{TOUR}: {fault}", file=sys.stderr)
        status = 1
    for page, holds_excerpts in PAGES.items():
        seen, wrong = check(page, holds_excerpts)
        if wrong or seen == 0:
            print(f"error: of {seen} excerpts in {page} {wrong} are code that is not there", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
