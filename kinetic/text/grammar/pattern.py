"""Rewrites a schema's `pattern` (ECMAScript) as the library must have it to mean the same.

\\d \\w \\s .          ASCII digits and letters, ECMAScript's spaces and line ends; the library
                    would take Unicode's
[a[b&&c]            a class is no more than its characters; the library knows sets in it
[^"]                where a class has most control characters, the library lets `"` and `\\`
                    pass though they are not in it; without NUL it does not
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

from kinetic.errors import UsageError
from kinetic.text.grammar.gbnf_syntax import Ranges, normal
from kinetic.text.grammar.gbnf_translate import class_text

_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACES: Ranges = ((9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A))
_SPACES += ((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))
_SPACES += ((0xFEFF, 0xFEFF),)
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_SETS = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_PROPERTY = re.compile(r"\{(?:General_Category=|gc=)?([A-Z][a-z]?|Letter|Number|Punctuation)\}")
_LONG = {"Letter": "L", "Number": "N", "Punctuation": "P"}
_QUANTIFIER = re.compile(r"\{\d+(?:,\d*)?\}", re.ASCII)
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_]\w*>))?", re.ASCII)
_QUOTED = (ord('"'), ord("\\"))


def rewritten(pattern: str, where: str) -> str:
    """The pattern for the library; `where` it stands, for the words of an error.

    *Raises*: UsageError for what the library cannot hold: look-around, `\\b`, a reference back.
    """
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            found, at = _escape(pattern, at, where)
            out.append(_written(found))
        elif char == "[":
            found, at = _class(pattern, at, where)
            out.append(_written(found))
        elif char == ".":
            out.append(_written(normal(list(_LINE_ENDS), negated=True)))
            at += 1
        elif char == "(":
            group = _GROUP.match(pattern, at)
            assert group is not None
            at = group.end()
            if pattern.startswith("?", at):
                raise _refused(where, "look-around or another special group")
            out.append("(?:")
        elif char == "{" and (count := _QUANTIFIER.match(pattern, at)):
            out.append(count[0])
            at = count.end()
        elif char in "^$|)*+?":
            out.append(char)
            at += 1
        else:
            out.append(class_text(normal([(ord(char), ord(char))])) or _impossible(where))
            at += 1
    return "".join(out)


def _refused(where: str, what: str) -> UsageError:
    return UsageError(f"the schema's {where} has {what}, which cannot be enforced")


def _impossible(where: str) -> str:
    raise _refused(where, "half a character")


def _written(ranges: Ranges) -> str:
    """A class in a form that the library quotes rightly: without NUL, unless it has both quotes."""
    if not all(any(a <= q <= b for a, b in ranges) for q in _QUOTED):
        ranges = tuple((max(a, 1), b) for a, b in ranges if b > 0) or ranges
    return class_text(ranges)


def _escape(text: str, at: int, where: str, *, in_class: bool = False) -> tuple[Ranges, int]:
    """The characters of the escape at a place, and where it ends."""
    char = text[at + 1 : at + 2]
    if char.lower() in _SETS and char:
        return normal(list(_SETS[char.lower()]), negated=char.isupper()), at + 2
    if char in ("p", "P"):
        found = _PROPERTY.match(text, at + 2)
        if found is None:
            raise _refused(where, f"\\{char} with something else than a general category")
        name = _LONG.get(found[1], found[1])
        ranges = normal(list(_category(name)), negated=char == "P")
        return (ranges or _none(where)), found.end()
    for head, digits in (("x", 2), ("u", 4)):
        if char == head:
            found = re.compile(rf"[0-9a-fA-F]{{{digits}}}").match(text, at + 2)
            braced = re.compile(r"\{([0-9a-fA-F]{1,6})\}").match(text, at + 2)
            if found is None and braced is None:
                raise _refused(where, f"a \\{head} without its digits")
            code = int(found[0] if found else braced[1] if braced else "0", 16)
            end = (found or braced).end()  # type: ignore[union-attr]
            low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(text, end)
            if 0xD800 <= code < 0xDC00 and low:
                code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
                end = low.end()
            if code > sys.maxunicode:
                raise _refused(where, "an escape that is no character")
            return (normal([(code, code)]) or _none(where)), end
    if char == "c" and text[at + 2 : at + 3].isalpha() and text[at + 2].isascii():
        code = ord(text[at + 2]) % 32
        return ((code, code),), at + 3
    if char == "b" and in_class:
        return ((8, 8),), at + 2
    if char in _CONTROLS and not (char == "0" and text[at + 2 : at + 3].isdigit()):
        return ((_CONTROLS[char], _CONTROLS[char]),), at + 2
    if not char or char.isalnum():
        raise _refused(where, f"\\{char}")
    return (normal([(ord(char), ord(char))]) or _none(where)), at + 2


def _none(where: str) -> Ranges:
    raise _refused(where, "a class without a character")


def _class(text: str, at: int, where: str) -> tuple[Ranges, int]:
    """The characters of the class at a place, and where it ends."""
    at += 1
    negated = text.startswith("^", at)
    at += negated
    ranges: list[tuple[int, int]] = []
    while not text.startswith("]", at):
        if at >= len(text):
            raise UsageError(f"the schema's {where} has a class without its end; add ]")
        low, at = _member(text, at, where)
        if text.startswith("-", at) and at + 1 < len(text) and text[at + 1] != "]":
            high, after = _member(text, at + 1, where)
            if len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
                if high[0][0] < low[0][0]:
                    raise UsageError(f"the schema's {where} has a range that is backwards")
                low, at = ((low[0][0], high[0][0]),), after
        ranges += low
    return (normal(ranges, negated=negated) or _none(where)), at + 1


def _member(text: str, at: int, where: str) -> tuple[Ranges, int]:
    if text[at] == "\\":
        return _escape(text, at, where, in_class=True)
    return (normal([(ord(text[at]), ord(text[at]))]) or _none(where)), at + 1


@functools.cache
def _category(name: str) -> Ranges:
    """The characters of a general category such as L or Lu."""
    codes = (c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith(name))
    return normal([(c, c) for c in codes])


_DAY_31 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAY_30 = r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY_28 = r"02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = rf"(?:[0-9]{{4}}-(?:{_DAY_31}|{_DAY_30}|{_DAY_28})|{_LEAP})"
_HOUR = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{_HOUR})"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
}
"""Formats that the library takes too widely: a 30th of February, a 61st second at any hour."""
