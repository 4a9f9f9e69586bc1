"""Character classes for pre-tokenizers: every code point becomes one of a few letters.

Pre-tokenizer rules only ask whether a character is a letter, number, mark, punctuation,
symbol or space. Replacing each non-ASCII character by one stand-in for its class lets the
standard `re` module run the rules on a byte-wide string, and fixes the Unicode version, which
would otherwise change with the Python that runs.

    ASCII stays itself; N L P M S become U+00D1..D5; spaces VT; Han letters U+00D6; other U+00D0

*Source*: Unicode 15.1 general categories, the version of llama.cpp's tables.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
from importlib import resources

STAND_INS = {
    "N": "\xd1",
    "L": "\xd2",
    "P": "\xd3",
    "M": "\xd4",
    "S": "\xd5",
    "s": "\v",
    "x": "\xd0",
}
HAN = "\xd6"
_HAN_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)

# What a class contains inside square brackets, in the collapsed alphabet.
CONTENTS = {
    r"\p{L}": "A-Za-z\xd2\xd6",
    r"\p{N}": "0-9\xd1",
    r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}" + "\xd3",
    r"\p{M}": "\xd4",
    r"\p{S}": "$+<=>^`|~\xd5",
    r"\p{Han}": "\xd6",
    # Not Unicode's: letters that are not Han, not a-z, not A-Z; the class stands for its case.
    r"\p{NotHan}": "A-Za-z\xd2",
    r"\p{Upper}": "A-Z\xd2\xd6",
    r"\p{Lower}": "a-z\xd2\xd6",
    r"\s": "\t-\r ",
}


@functools.cache
def _table() -> tuple[list[int], str]:
    data = json.loads(resources.files(__package__).joinpath("unicode_classes.json").read_text())
    return list(itertools.accumulate(data["steps"])), data["classes"]


def char_class(code: int) -> str:
    """The class letter of a non-ASCII code point: one of N L P M S, s for space, x for other."""
    starts, classes = _table()
    return classes[bisect.bisect_right(starts, code) - 1]


class _Collapse(dict[int, str]):
    """A translation table that learns characters when they are first seen."""

    def __missing__(self, code: int) -> str:
        if code < 128:
            result = chr(code)
        else:
            kind = char_class(code)
            han = kind == "L" and any(a <= code <= b for a, b in _HAN_RANGES)
            result = HAN if han else STAND_INS[kind]
        self[code] = result
        return result


_COLLAPSE = _Collapse()


def collapse(text: str) -> str:
    """The text with every non-ASCII character replaced by its class; the length is unchanged."""
    return text if text.isascii() else text.translate(_COLLAPSE)


_NARROW = dict.fromkeys(
    [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], "\v"
)


def narrow_spaces(text: str) -> str:
    """The text with every non-ASCII space replaced by VT, for rules that name characters.

    So such a rule meets a wide space only as a space, even where a range of it spans one.
    """
    return text if text.isascii() else text.translate(_NARROW)


def expand_classes(pattern: str) -> str:
    r"""Rewrite `\p{..}`, `\s` and `\S` of a rule for the collapsed alphabet."""
    out: list[str] = []
    inside = False
    i = 0
    while i < len(pattern):
        if pattern.startswith(r"\S", i):
            out.append("[^" + CONTENTS[r"\s"] + "]")
            i += 2
            continue
        name = next((n for n in CONTENTS if pattern.startswith(n, i)), None)
        if name is not None:
            out.append(CONTENTS[name] if inside else "[" + CONTENTS[name] + "]")
            i += len(name)
            continue
        char = pattern[i]
        if char == "\\":
            out.append(pattern[i : i + 2])
            i += 2
            continue
        if char == "[":
            inside = True
        elif char == "]":
            inside = False
        out.append(char)
        i += 1
    return "".join(out)
