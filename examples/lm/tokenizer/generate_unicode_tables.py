#!/usr/bin/env python3
"""Writes the tables unicode_*.inc beside itself: what the splitters and NFC need of the Unicode database.

    generate_unicode_tables.py

The database is that of the module unicodedata2 (pip install unicodedata2==16.0.0), or else Python's own. The tables that are
committed are of Unicode 16.0, which is what Hugging Face's `tokenizers` 0.23 and `tiktoken` 0.14 have.
"""

import pathlib

try:
    import unicodedata2 as database
except ImportError:
    import unicodedata as database

# The values of enum class CharClass (unicode.h).
OTHER, UPPER, LOWER, LETTER, MARK, NUMBER, SPACE, NEWLINE = range(8)
CLASSES = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER}
WHITE_SPACE = {0x9, 0xB, 0xC, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
MAY_CHANGE = 8  # NFC may replace it, move it, or join it with a character before it
SURROGATES = range(0xD800, 0xE000)
HANGUL_VOWELS_AND_ENDS = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}


def class_of(code):
    if code in (0xA, 0xD):
        return NEWLINE
    if code in WHITE_SPACE:
        return SPACE
    category = database.category(chr(code))
    if category in CLASSES:
        return CLASSES[category]
    return {"M": MARK, "N": NUMBER}.get(category[0], OTHER)


def write(name, what, numbers):
    text = f"// {what} Unicode {database.unidata_version}. Written by generate_unicode_tables.py; do not edit.\n"
    line = ""
    for number in numbers:
        word = f"{number},"
        if len(line) + len(word) > 125:
            text += line + "\n"
            line = ""
        line += word
    (pathlib.Path(__file__).parent / name).write_text(text + line + "\n")


def main():
    codes = [code for code in range(0x110000) if code not in SURROGATES]
    parts = {}  # of canonical decompositions, one step each
    for code in codes:
        written = database.decomposition(chr(code))
        if written and not written.startswith("<"):
            parts[code] = [int(part, 16) for part in written.split()]
    joins = {code: database.normalize("NFC", chr(code)) == chr(code) for code in parts}
    changing = {code for code in codes if database.combining(chr(code)) or database.normalize("NFC", chr(code)) != chr(code)}
    changing |= {pair[1] for code, pair in parts.items() if joins[code]} | HANGUL_VOWELS_AND_ENDS

    runs, before = [], None  # first code point of a run × 16 + its class
    for code in range(0x110000):
        kind = OTHER if code in SURROGATES else class_of(code) + (MAY_CHANGE if code in changing else 0)
        if kind != before:
            runs.append(code * 16 + kind)
            before = kind
    write("unicode_classes.inc", "Runs of code points of one class, as first × 16 + class.", runs)

    numbers = []
    for code, pair in parts.items():
        numbers += [code * 2 + joins[code], pair[0], pair[1] if len(pair) > 1 else 0]
    write("unicode_decompositions.inc", "Code point × 2 + whether its parts join again, first part, second part or 0.", numbers)
    runs, before = [], 0  # first code point of a run × 256 + its combining class
    for code in range(0x110000):
        order = 0 if code in SURROGATES else database.combining(chr(code))
        if order != before:
            runs.append(code * 256 + order)
            before = order
    write("unicode_combining.inc", "Runs of code points of one combining class, as first × 256 + class.", runs)


if __name__ == "__main__":
    main()
