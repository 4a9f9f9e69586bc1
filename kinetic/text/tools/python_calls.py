"""Reads calls written as Python, `[weather(city='Oslo', days=2)]`, without running anything."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence

from kinetic.text.tools.dialect import Call
from kinetic.text.tools.json_calls import NotJson, dumps
from kinetic.text.tools.tool import Tool

_WORDS: dict[str, object] = {"true": True, "false": False, "null": None}
_MAX_CHARS = 1 << 20


def read_python_calls(text: str, tools: Sequence[Tool]) -> tuple[Call, ...]:
    """The calls of a whole text: one call, or a list of them.

    Arguments without a name take the names of the tool's parameters, in their order.

    *Raises*: NotJson if the text is anything else.
    """
    if len(text) > _MAX_CHARS:
        raise NotJson("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes such as "\d", which Python keeps
            body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotJson(str(error)) from None
    nodes = body.elts if isinstance(body, (ast.List, ast.Tuple)) else [body]
    if not nodes:
        raise NotJson("an empty list")
    try:
        return tuple(_call(node, tools) for node in nodes)
    except RecursionError:
        raise NotJson("too deep") from None


def _call(node: ast.expr, tools: Sequence[Tool]) -> Call:
    if not isinstance(node, ast.Call):
        raise NotJson("no call")
    name = _dotted(node.func)
    arguments: dict[str, object] = {}
    if node.args:
        tool = next((t for t in tools if t.name == name), None)
        names = list(tool.properties) if tool is not None else []
        if len(node.args) > len(names):
            raise NotJson("arguments without names")
        arguments.update(zip(names, map(_value, node.args), strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise NotJson("arguments without names")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(name, dumps(arguments))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise NotJson("no name")


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A pair of escapes, as JSON writes one character of many.
        pairs = node.value.encode("utf-16-le", "surrogatepass")
        return pairs.decode("utf-16-le", "replace")
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, bool, type(None))):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _value(node.operand)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        out: dict[str, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise NotJson("a key that is no text")
            out[key.value] = _value(value)
        return out
    raise NotJson("not a plain value")
