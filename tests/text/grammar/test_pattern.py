"""A pattern means what ECMAScript says, whatever the grammar library makes of its letters."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bytes_vocabulary import VOCABULARY, follows

from kinetic.errors import UsageError
from kinetic.text.grammar import json_schema

pytest.importorskip("llguidance")


def matches(pattern: str, text: str, **more) -> bool:
    schema = {"type": "string", "pattern": pattern, **more}
    return follows(json_schema(VOCABULARY, schema), json.dumps(text, ensure_ascii=False))


CASES = [
    (r'^[^"]*$', ["a\\\n\t"], ['"', 'a"', '""']),
    (r"^[^\\]*$", ['a"\n'], ["\\", "a\\"]),
    (r"^[^\\\n]*$", ['a"\t'], ["\\", "\n"]),
    (r"^[^\x22\x5c]+$", ["ab/"], ['"', "\\"]),
    (r"^[\x01-\x1f]$", ["\n"], ['"', "\\", "a"]),
    (r"^\d+$", ["12"], ["१२", "a"]),
    (r"^\w$", ["a", "_"], ["é", "-"]),
    (r"^\s$", [" ", "\u2003"], ["a", "\u0085"]),
    (r"^\S\D\W$", ["ab ", "a\\\n"], [" b ", "a1 ", "abc"]),
    (r"^.$", ["a", "é", "\U0001f600"], ["\n", "\r", ""]),
    (r"^[a&&b]+$", ["a&b"], ["c"]),
    (r"^[a[b]$", ["[", "a"], ["a]"]),
    (r"^[[:alpha:]]$", ["a]", ":]"], ["b"]),
    (r"^[\w-.]+$", ["a-."], ["é"]),
    (r"^[\b\cA\0]$", ["\b", "\x01"], ["b"]),
    (r"^a{2}{", ["aa{"], ["aa"]),
    (r"^\p{Lu}\p{L}+$", ["Éa"], ["éa", "A1"]),
    (r"^\P{L}$", ["1", '"', "\\"], ["é"]),
    (r"^[\p{N}x]$", ["x", "५"], ["y"]),
    (r"^\u00e9\u{1F600}\ud83d\ude00\x41$", ["é\U0001f600\U0001f600A"], ["e"]),
    (r"^(?<y>[0-9]{4})\/(?:a|b)+?$", ["2024/a"], ["2024a"]),
    (r"^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("b", ["abc", "b"], ["ac", ""]),
]


@pytest.mark.parametrize(("pattern", "accept", "reject"), CASES, ids=[c[0] for c in CASES])
def test_case(pattern: str, accept: list[str], reject: list[str]) -> None:
    for text in accept:
        assert matches(pattern, text), text
    for text in reject:
        assert not matches(pattern, text), text


@pytest.mark.parametrize(
    "pattern",
    [r"a(?=b)", r"(?<!a)b", r"\bword", r"(a)\1", r"\k<x>", "[a", "(a", "[z-a]", r"\p{Script=Greek}",
     r"\ud800", "(?i)a", "*a", r"[^\s\S]", "\\", r"\u12"],
)  # fmt: skip
def test_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        json_schema(VOCABULARY, {"type": "string", "pattern": pattern})


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*"ab\"/~ ", r"\\", r"\n", r"\x00", r"\x1f", "0-9", r"\x00-\x1f",
                              r"\x20-\x7e", r"\d", r"\s", r"\W"]), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([*"a\"\\/\n\t\x01\x1f ~0"]),
)  # fmt: skip
def test_no_class_lets_more_pass(parts: list[str], negated: bool, char: str) -> None:
    pattern = f"^[{'^' * negated}{''.join(parts)}]$"
    fits = re.search(pattern, char, re.ASCII) is not None
    try:
        assert matches(pattern, char) == fits
    except UsageError as error:  # a class of nothing
        assert "without a character" in str(error) and not fits


def test_dates_are_dates() -> None:
    right = {"date": ["2024-02-29", "2000-02-29"], "time": ["23:59:59Z"]}
    right["date-time"] = ["2024-12-31t00:00:00.5+01:00"]
    wrong = {"date": ["2023-02-29", "1900-02-29", "2024-04-31"], "time": ["22:59:60Z", "24:00:00Z"]}
    wrong["date-time"] = ["2024-12-31 00:00:00Z", "2024-12-31T00:00:00"]
    for name in right:
        for text in right[name] + wrong[name]:
            schema = {"type": "string", "format": name}
            held = follows(json_schema(VOCABULARY, schema), json.dumps(text))
            assert held == (text in right[name]), text
    assert matches("^2024", "2024-02-29", format="date")
    assert not matches("^2023", "2024-02-29", format="date")


def test_keys_that_json_escapes() -> None:
    schema = {"type": "object", "properties": {'a"b\\c\n': {"type": "integer"}}}
    for key, value, fits in [('a"b\\c\n', 1, True), ('a"b\\c\n', "1", False), ('a"', "1", True)]:
        assert follows(json_schema(VOCABULARY, schema), json.dumps({key: value})) == fits
