"""Read a graph's text back: the identical graph, or one sentence that says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from kinetic.errors import UsageError
from kinetic.ir.graph import CacheSpec, Graph, Meta, Node
from kinetic.ir.ops.spec import OPS, Attr, RuleError
from kinetic.ir.printer import print_graph

__all__ = ["parse", "print_graph"]

_WEIGHT = re.compile(r"([a-z0-9_]+)\[([0-9, ]+)\]")


def parse(text: str) -> Graph:
    """The graph that prints as `text`. `#` starts a comment; blank lines do not matter.

    Raises: UsageError naming the line.
    """
    try:
        tree = _grammar().parse(text)
    except UnexpectedInput as error:
        line, column = max(error.line, 1), max(error.column, 1)
        raise UsageError(f"line {line}, column {column}: this is not the text of a graph") from None
    values: dict[str, Node] = {}
    name, meta, caches, outputs = "", {}, {}, {}
    for part in _trees(tree.children):
        if part.data == "header":
            name, meta = _string(part.children[0]), _settings(part.children[1:])
        elif part.data == "cache":
            caches[_string(part.children[0])] = _cache(part)
        elif part.data == "value":
            _value(part, values)
        else:
            outputs = {
                str(o.children[0]): _find(o.children[1], values) for o in _trees(part.children)
            }
    inputs = tuple(node for node in values.values() if node.op == "tokens")
    return Graph(inputs, outputs, name, _meta(meta, caches))


@cache
def _grammar() -> Lark:
    path = Path(__file__).with_name("ir.lark")
    return Lark(path.read_text(encoding="utf-8"), parser="lalr", maybe_placeholders=False)


# The leaves are tokens, everything else a tree; these two say which is meant.


def _trees(children: Sequence[object]) -> list[Tree[Token]]:
    return [child for child in children if isinstance(child, Tree)]


def _token(child: object) -> Token:
    assert isinstance(child, Token)
    return child


def _string(child: object) -> str:
    token = _token(child)
    try:
        return str(json.loads(token))
    except ValueError:
        raise UsageError(f"line {token.line}: {token} is not a string") from None


def _literal(tree: Tree[Token]) -> Attr:
    kind = tree.data
    if kind == "tuple":
        return tuple(_literal(child) for child in _trees(tree.children))
    if kind in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[kind]
    token = _token(tree.children[0])
    if kind == "string":
        return _string(token)
    return int(token) if kind == "int" else float(token)


def _settings(children: Sequence[object]) -> dict[str, Attr]:
    return {str(s.children[0]): _literal(_trees(s.children)[0]) for s in _trees(children)}


def _cache(tree: Tree[Token]) -> CacheSpec:
    kind = _token(tree.children[1])
    try:
        return CacheSpec(str(kind), **_settings(tree.children[2:]))  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"line {kind.line}: {error}") from None


def _meta(settings: dict[str, Attr], caches: dict[str, CacheSpec]) -> Meta:
    try:
        return Meta(**settings, caches=caches)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"line 1: {error}") from None


def _find(child: object, values: dict[str, Node]) -> Node:
    token = _token(child)
    node = values.get(token[1:])
    if node is None:
        raise UsageError(f"line {token.line}: {token} is used before it is defined")
    return node


def _value(tree: Tree[Token], values: dict[str, Node]) -> None:
    head, type_text = _token(tree.children[0]), _token(tree.children[1])
    name = head[1:]
    if name in values:
        raise UsageError(f"line {head.line}: {head} is defined twice")
    try:
        if len(tree.children) == 2:
            node = _plain_weight(name, type_text)
        else:
            node = _op(name, _token(tree.children[2]), _trees(tree.children[3:]), values)
    except RuleError as error:
        raise UsageError(f"line {head.line}: {error}") from None
    if str(node.type) != re.sub(r"\s*,\s*", ", ", type_text):
        raise UsageError(f"line {head.line}: {head}: expected {node.type}, got {type_text}")
    values[name] = node


def _plain_weight(name: str, type_text: Token) -> Node:
    found = _WEIGHT.fullmatch(type_text)
    if not found:
        raise UsageError(f"line {type_text.line}: {type_text} is not the type of a weight")
    shape = tuple(int(d) for d in found[2].split(",") if d.strip())
    return Node.make("weight", (), {"name": name, "format": found[1].upper(), "shape": shape}, name)


def _op(name: str, op: Token, arguments: list[Tree[Token]], values: dict[str, Node]) -> Node:
    spec = OPS.get(op)
    if spec is None:
        raise UsageError(f"line {op.line}: there is no op {op}")
    places = {p.name: i for i, p in enumerate(spec.inputs)}
    inputs: list[Node | None] = [None] * len(places)
    attrs: dict[str, Attr] = {}
    for at, argument in enumerate(arguments):
        if argument.data == "attribute":
            attrs[str(argument.children[0])] = _literal(_trees(argument.children)[0])
            continue
        key = str(argument.children[0])
        place = at if argument.data == "input" else places.get(key, len(places))
        if place >= len(places):
            raise UsageError(f"line {op.line}: {spec.signature} has no place for {key}")
        inputs[place] = _find(argument.children[-1], values)
    return Node.make(op, inputs, attrs, name)
