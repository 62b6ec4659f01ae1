#!/usr/bin/env python3
"""Writes the tables *.inc beside itself: letters in other cases, and which characters repr() shows, as this Python has them.

    generate_case_tables.py

The tables that are committed are of Unicode 14.0 (Python 3.11), apart from the tokenizer's, which are of another version.
"""

import pathlib
import unicodedata

SURROGATES = range(0xD800, 0xE000)
CODES = [code for code in range(0x110000) if code not in SURROGATES]
MAPPINGS = [str.upper, str.lower, str.title]


def write(name, what, numbers):
    text = f"// {what} Unicode {unicodedata.unidata_version}. Written by generate_case_tables.py; do not edit.\n"
    line = ""
    for number in numbers:
        word = f"{number},"
        if len(line) + len(word) > 125:
            text += line + "\n"
            line = ""
        line += word
    (pathlib.Path(__file__).parent / name).write_text(text + line + "\n")


def main():
    runs, special = [], []
    for which, mapping in enumerate(MAPPINGS):
        run = None
        for code in CODES:
            mapped = mapping(chr(code))
            if len(mapped) > 1:
                special += [which, code, *(ord(c) for c in mapped), *[0] * (3 - len(mapped))]
            if len(mapped) > 1 or ord(mapped) == code:
                continue
            step = code - run[2] if run else 0
            if run and ord(mapped) - code == run[4] and step in (1, 2) and run[3] in (0, step):
                run[2:4] = [code, step]
            else:
                run = [which, code, code, 0, ord(mapped) - code]
                runs.append(run)
    write("case_runs.inc", "Mapping (upper, lower, title), first, last, step, distance.", [n for run in runs for n in run])
    write("case_special.inc", "Mapping, code point, and its two or three, or 0.", special)
    flips, before = [], False
    for code in CODES:
        if chr(code).isprintable() != before:
            flips.append(code)
            before = not before
    write("printable_runs.inc", "Where runs of printable and of other code points begin, in turn.", flips)


if __name__ == "__main__":
    main()
