#!/usr/bin/env python3
"""Writes src/text/unicode_table.h: code points assigned after Unicode 14 and an older one that stands in for each.

Hugging Face tokenizers classifies characters by Unicode 16, the PCRE2 of a stable distribution by Unicode 14 or later. The splitter
shows PCRE2 the stand-in, which every pattern of src/text/pretokenize_table.h treats in the same way: same general category, same number of
UTF-8 bytes, Han or not, inside or outside the same ranges that patterns spell out. Where no such character exists, the spelled-out
ranges are given up.

Usage: python3.11 make_unicode.py > ../../src/text/unicode_table.h   (needs PyPI tokenizers 0.23.3; Python 3.11 carries Unicode 14)
"""
import re
import sys
import unicodedata
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
              "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"]
ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def members(pattern):
    """The code points that the oracle's regex engine matches with `pattern`."""
    found = set(ALL)
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for begin in range(0, len(ALL), 4096):
        chunk = ALL[begin:begin + 4096]
        for _, (a, b) in split.pre_tokenize_str("".join(map(chr, chunk))):
            found.difference_update(chunk[a:b])
    return found


def spelled_ranges(table):
    """Ranges between characters outside ASCII in the splitter's patterns, which are written as UTF-8."""
    text = Path(table).read_text(encoding="utf-8")
    return sorted({(ord(a), ord(b)) for a, b in re.findall("([^\x00-\x7f])-([^\x00-\x7f])", text)})


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("needs a Python with Unicode 14.0.0 (3.11)")
    category = {}
    for name in CATEGORIES:
        for c in members(r"\p{%s}" % name):
            category[c] = name
    han = members(r"\p{Han}")
    spelled = spelled_ranges(Path(__file__).resolve().parents[2] / "src" / "pretokenize_table.h")

    def kind(c):
        return len(chr(c).encode()), category[c], c in han

    def inside(c):
        return tuple(a <= c <= b for a, b in spelled)

    old = [c for c in category if unicodedata.category(chr(c)) == category[c]]
    by_kind, by_both = {}, {}
    for c in sorted(old):
        by_kind.setdefault(kind(c), c)
        by_both.setdefault((kind(c), inside(c)), c)
    rows, loose = [], []
    for c in sorted(category):
        if unicodedata.category(chr(c)) != "Cn":
            continue
        stand_in = by_both.get((kind(c), inside(c)))
        if stand_in is None:
            stand_in = by_kind[kind(c)]
            loose.append("U+%04X" % c)
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == stand_in:
            rows[-1][1] = c
        else:
            rows.append([c, c, stand_in])
    print("given up on spelled-out ranges:", *loose, file=sys.stderr)
    print("/* Made by tests/oracle/make_unicode.py: code points first to last, assigned after Unicode 14 and known to Unicode 16, and an\n"
          " * older stand-in with the same properties. Ascending; included by unicode.c alone. */")
    print("static const struct { uint32_t first, last, stand_in; } newer[] = {")
    for i in range(0, len(rows), 4):
        print("    " + " ".join("{0x%05x, 0x%05x, 0x%05x}," % tuple(r) for r in rows[i:i + 4]))
    print("};")


main()
