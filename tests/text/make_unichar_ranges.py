#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write sdk/text/unichar_ranges.h: where Hugging Face's `tokenizers` differs from the current Unicode standard.

	make_unichar_ranges.py > sdk/text/unichar_ranges.h

Its normalizers have tables of several older versions of Unicode. The ranges are what those tables lack (or have in
addition) against the newest version, so that they hold with any version of utf8proc.
Needs PyPI's tokenizers and unicodedata2.
"""
import unicodedata2 as unicode
from tokenizers import __version__, normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CHARACTERS))
ASCII_PUNCTUATION = {c for c in range(33, 127) if not chr(c).isalnum()}


def category(prefixes):
    return {c for c in CHARACTERS if unicode.category(chr(c)).startswith(prefixes)}


def vanish(normalizer):
    return {c for c in CHARACTERS if normalizer.normalize_str(chr(c)) == ""}


def bert(**options):
    given = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**given, **options})


def split_off(pre_tokenizer):
    return set(CHARACTERS) - {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str(TEXT) for c in piece}


def undecomposed(form, normalizer):
    return {c for c in CHARACTERS
            if unicode.normalize(form, chr(c)) != chr(c) and normalizer.normalize_str(chr(c)) == chr(c)}


def unordered(normalizer):
    """Marks that have a combining class but stay where they are, between one of class 1 and one of class 240."""
    found = set()
    for c in CHARACTERS:
        mark, combining = chr(c), unicode.combining(chr(c))
        if combining == 0 or unicode.normalize("NFD", mark) != mark:
            continue
        moves = normalizer.normalize_str("a" + mark + "\u0334") == "a\u0334" + mark if combining > 1 else False
        moves |= normalizer.normalize_str("a\u0345" + mark) == "a" + mark + "\u0345" if combining < 240 else False
        if not moves:
            found.add(c)
    return found


def ranges(characters):
    found = []
    for c in sorted(characters):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def write(name, comment, characters):
    print(f"\n/* {comment} */\nstatic const struct unichar_range unichar_{name}[] = {{")
    line = "\t"
    for first, last in ranges(characters):
        item = f"{{0x{first:x}, 0x{last:x}}}, "
        if len(line.expandtabs(8)) + len(item) > 100:
            print(line.rstrip())
            line = "\t"
        line += item
    print(line.rstrip() + "\n};")


def main():
    punctuation = split_off(pre_tokenizers.Punctuation("removed")) - ASCII_PUNCTUATION
    standard_punctuation = category("P") - ASCII_PUNCTUATION
    accents, standard_accents = vanish(bert(strip_accents=True)), category("Mn")
    marks, standard_marks = vanish(normalizers.StripAccents()), category("M")
    control = vanish(bert(clean_text=True)) - {0xFFFD}
    standard_control = category(("Cc", "Cf", "Co")) - {9, 10, 13}
    assert not control - standard_control
    print("/* SPDX-License-Identifier: MIT */")
    print(f"/* Made by tests/text/make_unichar_ranges.py from tokenizers {__version__} and Unicode {unicode.unidata_version}. */")
    write("not_punctuation", "category P, but no punctuation", standard_punctuation - punctuation)
    write("also_punctuation", "punctuation of another category", punctuation - standard_punctuation)
    write("not_accent", "category Mn, but kept by BertNormalizer", standard_accents - accents)
    write("also_accent", "of another category", accents - standard_accents)
    write("not_mark", "category M, but kept by StripAccents", standard_marks - marks)
    write("also_mark", "of another category", marks - standard_marks)
    write("not_control", "categories Cc, Cf and Co, but kept by BertNormalizer", standard_control - control)
    write("not_ordered", "of combining class 0 in NFC, NFD, NFKC and NFKD", unordered(normalizers.NFD()))
    write("not_decomposed", "kept by NFC and NFD", undecomposed("NFD", normalizers.NFD()))
    write("not_compatible", "kept by NFKC and NFKD", undecomposed("NFKD", normalizers.NFKD()))


if __name__ == "__main__":
    main()
