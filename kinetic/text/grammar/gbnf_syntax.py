"""Reads llama.cpp's grammar notation (GBNF) into rules, or says where it is wrong.

    rules = parse_gbnf(text)                # {"root": Choice(...), ...}

A rule that is written twice has its last meaning, as in llama.cpp.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import cast

from lark import Lark, Token, Transformer, UnexpectedInput
from lark.exceptions import VisitError
from lark.lark import PostLex

from kinetic.errors import UsageError

MAX_BYTES = 1 << 18
MAX_DEPTH = 64
MAX_REPEAT = 2000
MAX_RULES = 10_000

Ranges = tuple[tuple[int, int], ...]
"""Code points, both ends within; in order, apart, and without surrogates."""


@dataclass(frozen=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Reference:
    """What another rule says."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Parts in a row; none of them is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part `least` to `most` times; without end if `most` is None."""

    part: Node
    least: int
    most: int | None


Node = Chars | Reference | Sequence | Choice | Repeat

ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules of a grammar.

    *Raises*: UsageError for one that is no GBNF, has no root, names a rule that is not there,
    recurses on the left, never ends, or is too big or nested too deep.
    """
    if len(text) > MAX_BYTES:
        raise UsageError(
            f"the grammar has {len(text)} characters, more than the allowed {MAX_BYTES}"
        )
    try:
        rules = _parser().parse(text)
    except UnexpectedInput as error:
        line, column = max(error.line, 1), max(error.column, 1)
        raise UsageError(f"the grammar is wrong {_at(text, line, column)}") from None
    except VisitError as error:
        if isinstance(error.orig_exc, UsageError):
            raise error.orig_exc from None
        raise
    assert isinstance(rules, dict)
    if len(rules) > MAX_RULES:
        raise UsageError(f"the grammar has {len(rules)} rules, more than the allowed {MAX_RULES}")
    if "root" not in rules:
        raise UsageError("the grammar has no rule named root; add root ::= ...")
    for name, body in rules.items():
        for reference in references(body):
            if reference not in rules:
                raise UsageError(
                    f"the grammar's rule {name} names {reference}, which is no rule of it"
                )
    _refuse_left_recursion(rules)
    ending = ending_rules(rules)
    endless = next((name for name in rules if name not in ending), None)
    if endless is not None:
        raise UsageError(
            f"the grammar's rule {endless} never ends: whichever way it is read, it names itself "
            "again; give it a way that does not"
        )
    return rules


def _at(text: str, line: int, column: int) -> str:
    lines = re.split(r"\r?\n|\r", text)
    rest = lines[line - 1][column - 1 :][:20] if line <= len(lines) else ""
    found = f"before {rest!r}" if rest else "where it ends"
    return f"at line {line}, column {column}, {found}"


def references(node: Node) -> Iterator[str]:
    """The rules that a node names."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Reference):
            yield node.name
        elif isinstance(node, Repeat):
            stack.append(node.part)
        elif not isinstance(node, Chars):
            stack.extend(node.parts)


def nullable_rules(rules: dict[str, Node]) -> frozenset[str]:
    """The rules that match the empty text."""
    return _rules_where(rules, lambda body, found: nullable(body, found))


def ending_rules(rules: dict[str, Node]) -> frozenset[str]:
    """The rules that match some text: all but those that name themselves again in every way."""
    return _rules_where(rules, lambda body, found: nullable(body, found, chars=True))


def _rules_where(rules: dict[str, Node], holds: Callable[[Node, set[str]], bool]) -> frozenset[str]:
    """The fewest rules such that `holds(body, those rules)` for each of them and no other."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, body in rules.items():
        for reference in references(body):
            users[reference].append(name)
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and holds(rules[name], found):
            found.add(name)
            waiting += users[name]
    return frozenset(found)


def nullable(node: Node, rules: set[str] | frozenset[str], *, chars: bool = False) -> bool:
    """Whether a node matches the empty text, if just these rules do; with `chars`, as if
    characters did too."""
    if isinstance(node, Chars):
        return chars
    if isinstance(node, Reference):
        return node.name in rules
    if isinstance(node, Repeat):
        return node.least == 0 or nullable(node.part, rules, chars=chars)
    matches = (nullable(part, rules, chars=chars) for part in node.parts)
    return all(matches) if isinstance(node, Sequence) else any(matches)


def _refuse_left_recursion(rules: dict[str, Node]) -> None:
    empty = nullable_rules(rules)
    first = {name: tuple(_first(body, empty)) for name, body in rules.items()}
    done: set[str] = set()
    for start in rules:
        path, trail = [(start, iter(first[start]))], {start}
        while path:
            name, following = path[-1]
            after = next((n for n in following if n not in done), None)
            if after is None:
                path.pop()
                trail.discard(name)
                done.add(name)
            elif after in trail:
                raise UsageError(
                    f"the grammar's rule {after} begins with itself; write it with * or +, "
                    "or with itself at the end"
                )
            else:
                path.append((after, iter(first[after])))
                trail.add(after)


def _first(node: Node, empty: frozenset[str]) -> Iterator[str]:
    """The rules that a node may begin with."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Reference):
            yield node.name
        elif isinstance(node, Repeat):
            stack.append(node.part)
        elif isinstance(node, Choice):
            stack.extend(node.parts)
        elif isinstance(node, Sequence):
            for part in node.parts:
                stack.append(part)
                if not nullable(part, empty):
                    break


@functools.cache
def _parser() -> Lark:
    source = resources.files("kinetic.text.grammar").joinpath("gbnf.lark").read_text("utf-8")
    return Lark(source, parser="lalr", transformer=_Rules(), postlex=_LineBreaks())


class _LineBreaks(PostLex):
    """Drops the line breaks that end no rule: in parentheses, after `::=` and after `|`."""

    always_accept = ("_NL",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The tokens that count."""
        depth, open_end = 0, False
        for token in stream:
            if token.type == "_NL":
                if depth > 0 or open_end:
                    continue
            else:
                depth += (token.type == "_LEFT") - (token.type == "_RIGHT")
                open_end = token.type in ("_IS", "_OR")
            yield token


_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\\\"\[\]]))|(\\)|(.)", re.S
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def _code_points(token: Token, text: str) -> list[tuple[int, bool]]:
    """The characters of a literal, each with whether it was escaped."""
    out: list[tuple[int, bool]] = []
    for found in _ESCAPE.finditer(text):
        *hexes, named, bad, plain = found.groups()
        code = next((int(h, 16) for h in hexes if h), None)
        if bad:
            raise _wrong(token, f"{text[found.start() :][:2]!r} is no escape")
        if code is None:
            code = ord(_NAMED.get(named, named) if named else plain)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _wrong(token, f"{code:X} is no character")
        out.append((code, not plain))
    return out


def _wrong(token: Token, what: str) -> UsageError:
    return UsageError(f"the grammar is wrong at line {token.line}, column {token.column}: {what}")


def normal(ranges: list[tuple[int, int]], *, negated: bool = False) -> Ranges:
    """Ranges in order, joined where they touch, without surrogates; or all but these."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(high, out[-1][1])
        else:
            out.append((low, high))
    if negated:
        edges = [0, *(e for low, high in out for e in (low, high + 1)), 0x110000]
        out = [(a, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    kept = []
    for low, high in out:
        kept += [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
    return tuple((a, b) for a, b in kept if a <= b)


class _Rules(Transformer[Token, dict[str, Node]]):
    """From lark's reductions to nodes; called while parsing, so nothing recurses."""

    def __init__(self) -> None:
        super().__init__()

    def start(self, rules: list[tuple[str, Node]]) -> dict[str, Node]:
        return dict(rules)

    def rule(self, parts: tuple[Token, tuple[Node, int]]) -> tuple[str, Node]:
        name, (body, _) = parts
        return str(name), body

    def choice(self, parts: list[tuple[Node, int]]) -> tuple[Node, int]:
        depth = 1 + max(d for _, d in parts)
        if depth > MAX_DEPTH:
            raise UsageError(f"the grammar nests parentheses more than {MAX_DEPTH} levels deep")
        nodes = tuple(dict.fromkeys(node for node, _ in parts))
        return (nodes[0] if len(nodes) == 1 else Choice(nodes)), depth

    def sequence(self, parts: list[tuple[Node, int]]) -> tuple[Node, int]:
        flat: list[Node] = []
        for node, _ in parts:
            flat += node.parts if isinstance(node, Sequence) else (node,)
        node = flat[0] if len(flat) == 1 else Sequence(tuple(flat))
        return node, max((d for _, d in parts), default=0)

    def item(self, parts: list[Token | tuple[Node, int]]) -> tuple[Node, int]:
        node, depth = cast(tuple[Node, int], parts[0])
        for count in parts[1:]:
            least, most = _count(cast(Token, count))
            depth += 1
            if depth > MAX_DEPTH:
                raise UsageError(f"the grammar repeats more than {MAX_DEPTH} levels deep")
            if node != Sequence(()):
                node = Repeat(node, least, most)
        return node, depth

    def string(self, parts: list[Token]) -> tuple[Node, int]:
        codes = _code_points(parts[0], parts[0][1:-1])
        chars: tuple[Node, ...] = tuple(Chars(((c, c),)) for c, _ in codes)
        return (chars[0] if len(chars) == 1 else Sequence(chars)), 0

    def char_class(self, parts: list[Token]) -> tuple[Node, int]:
        text = parts[0][1:-1]
        negated = text.startswith("^")
        codes = _code_points(parts[0], text[negated:])
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(codes):
            low = codes[at][0]
            if at + 2 < len(codes) and codes[at + 1] == (ord("-"), False):
                high, at = codes[at + 2][0], at + 3
                if high < low:
                    raise _wrong(parts[0], f"the range {chr(low)}-{chr(high)} is backwards")
            else:
                high, at = low, at + 1
            ranges.append((low, high))
        found = normal(ranges, negated=negated)
        if not found:
            raise _wrong(parts[0], "this class has no character")
        return Chars(found), 0

    def dot(self, parts: list[Token]) -> tuple[Node, int]:
        return Chars(ANY), 0

    def reference(self, parts: list[Token]) -> tuple[Node, int]:
        return Reference(str(parts[0])), 0

    def token(self, parts: list[Token]) -> tuple[Node, int]:
        raise _wrong(parts[0], f"{str(parts[0])!r} names a token; write the text itself")


def _count(token: Token) -> tuple[int, int | None]:
    if token == "*":
        return 0, None
    if token == "+":
        return 1, None
    if token == "?":
        return 0, 1
    found = re.fullmatch(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}", token, re.ASCII)
    if found is None:
        raise _wrong(token, f"{str(token)!r} is no count such as {{2}}, {{2,}} or {{2,4}}")
    least = int(found[1])
    most = (int(found[3]) if found[3] else None) if found[2] else least
    if most is not None and most < least:
        raise _wrong(token, f"the count {token!s} is backwards")
    if max(least, most or 0) > MAX_REPEAT:
        raise _wrong(token, f"the count {token!s} is more than the allowed {MAX_REPEAT}")
    return least, most
