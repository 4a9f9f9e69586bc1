"""llama.cpp's grammar notation means here what it means there."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.bytes_vocabulary import VOCABULARY, follows, reach

from kinetic.errors import UsageError
from kinetic.text.grammar import gbnf, gbnf_syntax, gbnf_translate
from kinetic.text.grammar.gbnf_syntax import ending_rules, parse_gbnf

pytest.importorskip("llguidance")

GOLDEN = json.loads(
    (Path(__file__).parents[3] / "golden" / "grammar" / "gbnf.json").read_text("utf-8")
)
RIGHT = [g for g in GOLDEN if g["valid_grammar"]]
WRONG = [g["grammar"] for g in GOLDEN if not g["valid_grammar"]]


def as_rules(text: str):
    """The grammar's constraint by rules of single characters, even if it does not recurse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gbnf_translate, "_regex", lambda *_: None)
        patch.setattr(gbnf_translate, "_with_terminals", lambda *_: None)
        return gbnf(VOCABULARY, text)


def with_terminals(text: str):
    """The constraint by rules over terminals of many characters, where those are safe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gbnf_translate, "_regex", lambda *_: None)
        return gbnf(VOCABULARY, text)


@pytest.mark.parametrize("golden", RIGHT, ids=lambda g: g["grammar"][:30])
def test_llama_cpp_agrees(golden) -> None:
    for make in (lambda g: gbnf(VOCABULARY, g), as_rules, with_terminals):
        constraint = make(golden["grammar"])
        for case in golden["cases"]:
            expected = case["accepts"], case["reject_at_codepoint"]
            assert reach(constraint.clone(), case["input"]) == expected, case["input"]


@pytest.mark.parametrize("text", WRONG, ids=lambda t: t[:30])
def test_llama_cpp_refuses_too(text: str) -> None:
    with pytest.raises(UsageError, match="grammar"):
        gbnf(VOCABULARY, text)


def test_the_shared_golden_file_says_the_same(shared_dir) -> None:
    shared = json.loads((shared_dir / "golden" / "grammar" / "gbnf.json").read_text("utf-8"))
    assert [g["grammar"] for g in shared] == [g["grammar"] for g in GOLDEN]


CASES = {
    "GR-01": ('root ::= ("a"*)*', ["", "a", "aaaa"], ["b"]),
    "GR-05": ('root ::= ("")* "x"', ["x"], ["", "xx"]),
    "GR-06": ('root ::= (x? x? x? x? x? x? ".")+\nx ::= [a-c]', [".", "ab.c."], ["a", ""]),
    "nullable loop that recurses": ('root ::= ("a"? ("(" root ")")?)*', ["", "a(a())a"], ["(a"]),
    "last rule counts": ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    "counts of counts": ('root ::= "a"{2}*', ["", "aa", "aaaa"], ["a", "aaa"]),
    "line breaks": ('root ::=\n "a" |\r\n ("b"\n+ # c\n)\n\nx ::= "y"', ["a", "bb"], ["ab"]),
    "slashes": ('root ::= "//" [/] .', ["////", "///\n"], ["///"]),
    "right recursion": ('root ::= "a" root | "b"', ["b", "aab"], ["a", "ba"]),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    text, accept, reject = CASES[name]
    for constraint in (gbnf(VOCABULARY, text), as_rules(text)):
        for answer in accept:
            assert follows(constraint.clone(), answer), answer
        for answer in reject:
            assert not follows(constraint.clone(), answer), answer


def test_ambiguous_choices_do_not_pile_up() -> None:  # GR-06
    constraint = gbnf(VOCABULARY, CASES["GR-06"][0])
    started = time.perf_counter()
    assert follows(constraint, "abcabc." * 30)
    assert time.perf_counter() - started < 10


def test_thousands_of_rules_in_a_row() -> None:  # GR-03
    chain = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000))
    assert follows(gbnf(VOCABULARY, chain + 'r5000 ::= "a"'), "a")
    with pytest.raises(UsageError, match="begins with itself"):
        gbnf(VOCABULARY, chain + 'r5000 ::= r0 "a" | "a"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reply ::= 'ok'", "line 1, column 11"),  # GR-08
        ('reply ::= "ok"', "no rule named root"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "levels deep"),
        ('root ::= "a"' + "*" * 5000, "levels deep"),
        ('root ::= ((("a"{2000}){2000}){2000}){2000}', "smaller counts"),
        ('root ::= "a"{2001}', "2000"),
        ('root ::= "a" {999999999999999}', "count"),
        ("root ::= []", "no character"),
        ("root ::= [z-a]", "backwards"),
        ('root ::= "\\uD800"', "no character"),
        ('root ::= "\ud800"', "no character"),
        ('root ::= "\\UFFFFFFFF"', "no character"),
        ('root ::= "\\xg0"', "escape"),
        ("root ::= <think>", "token"),
        ('root ::= "a"\n  | "b"', "line 2"),
        ('root ::= "a"' + " " * (1 << 18), "more than"),
        ("\n".join(f"r{i} ::= [ab]" for i in range(10_001)) + "\nroot ::= r1", "rules"),
        ('root ::= x\nx ::= ""? root', "itself"),
    ],
)
def test_refused(text: str, words: str) -> None:
    started = time.perf_counter()
    with pytest.raises(UsageError, match=re.escape(words)):
        gbnf(VOCABULARY, text)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    "body",
    [
        " | ".join(f'"{"ab" * 30}{i}" root' for i in range(60)) + ' | "."',
        " | ".join(f"[a-{c}]{{0,40}} root2" for c in "bcdefghijk") + '\nroot2 ::= "x" root | "y"',
        "[" + "".join(chr(0x4E00 + 2 * i) for i in range(500)) + '] root | "a"',
        "((a | b)* c)* root2\na ::= [a-f]{0,60}\nb ::= [d-k]{0,60}\nc ::= [a-z]{0,60}\n"
        'root2 ::= "x" root | "y"',
    ],
    ids=["words", "overlaps", "characters", "stars"],
)
def test_grammars_that_are_hard_to_compare_compile_in_bounded_time(body: str) -> None:
    started = time.perf_counter()
    constraint = gbnf(VOCABULARY, f"root ::= {body}")
    constraint.mask()
    assert time.perf_counter() - started < 20


CHAIN = "\n".join(f'r{i} ::= "b" r{i + 1} | "c" root' for i in range(4000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'root ::= "a" r0\n{CHAIN}\nr4000 ::= "d"', "levels"),
        ("root ::= " + " | ".join(f'"w{i}"' for i in range(20_000)), "characters"),
        ('root ::= "x" (("a" root "b"){0,400} "k"){0,400} | "c"', "counts"),
    ],
    ids=["chain", "words", "counts"],
)
def test_what_would_end_the_process_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        gbnf(VOCABULARY, text)


def test_doubling_rules_are_refused_or_held_to() -> None:
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(10))
    assert follows(gbnf(VOCABULARY, f'root ::= r0\n{rules}\nr10 ::= "a"'), "a" * 1024)
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
    with pytest.raises(UsageError, match="smaller counts"):
        gbnf(VOCABULARY, f'root ::= r0\n{rules}\nr60 ::= "a"')


def _expressions():
    leaf = st.sampled_from(['"a"', '"b"', '"ab"', "[ab]", "[^a]", '""', "."])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map(
                lambda p: f"({p[0]}){p[1]}"
            ),
            st.lists(inner, min_size=1, max_size=3).map(lambda p: f"({' '.join(p)})"),
            st.lists(inner, min_size=1, max_size=3).map(lambda p: f"({' | '.join(p)})"),
        ),
        max_leaves=6,
    )


def _as_python(expression: str) -> re.Pattern[str]:
    return re.compile(expression.replace('"', "").replace(" ", "").replace("()", "(?:)"), re.S)


@settings(max_examples=150, deadline=None)
@given(_expressions(), st.text("abc", max_size=6))
def test_both_forms_match_what_an_expression_matches(expression: str, text: str) -> None:
    expected = _as_python(expression).fullmatch(text) is not None
    assert follows(gbnf(VOCABULARY, f"root ::= {expression}"), text) == expected
    assert follows(as_rules(f"root ::= {expression}"), text) == expected
    assert follows(with_terminals(f"root ::= {expression}"), text) == expected


def _parsed(grammar: str):
    """The rules, whether they end or not."""
    return gbnf_syntax._parser().parse(grammar)


@pytest.mark.parametrize(
    "text",
    ['root ::= "a" root', 'root ::= "a" | x\nx ::= "(" y\ny ::= "[" x', 'root ::= ("a" root){2}'],
)
def test_a_rule_that_never_ends_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="never ends"):
        gbnf(VOCABULARY, text)


def test_a_rule_that_may_end_is_not() -> None:
    assert reach(gbnf(VOCABULARY, 'root ::= "a" root | "b"'), "aab") == (True, None)
    assert reach(gbnf(VOCABULARY, 'root ::= "a" root?'), "aa") == (True, None)


def _small_grammars():
    """Three rules that may name each other, behind a character so that none recurses left."""
    leaf = st.sampled_from(['"a"', '"b"', '"ab"', "[ab]", "[^a]", "w", '"c" x', '"(" y ")"'])
    parts = st.lists(leaf, min_size=1, max_size=3).map(" ".join)
    part = st.tuples(parts, st.sampled_from(["", "*", "+", "?", "{0,2}"])).map(
        lambda p: f"({p[0]}){p[1]}"
    )
    body = st.lists(st.lists(part, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=2)
    return st.tuples(body, body, body).map(
        lambda b: (
            "\n".join(
                f"{name} ::= {' | '.join(choices)}"
                for name, choices in zip(("root", "x", "y"), b, strict=True)
            )
            + "\nw ::= [ab]*"
        )
    )


@settings(max_examples=250, deadline=None)
@given(_small_grammars(), st.text("aabbc()", max_size=9))
@example('root ::= ("(" y ")")\nx ::= ("a")\ny ::= ("(" y ")")', "(")
def test_terminals_match_what_characters_match(grammar: str, text: str) -> None:
    if any(name not in ending_rules(_parsed(grammar)) for name in _parsed(grammar)):
        for make in (with_terminals, as_rules):
            with pytest.raises(UsageError, match="never ends"):
                make(grammar)
        return
    assert reach(with_terminals(grammar), text) == reach(as_rules(grammar), text)


@settings(max_examples=300, deadline=None)
@given(st.text('ab"[]()|*+?{}::=\n\\-^#., 0x1', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for source in (text, "root ::= " + text):
        with contextlib.suppress(UsageError):
            parse_gbnf(source)
