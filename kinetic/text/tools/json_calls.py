"""Reads calls written as JSON, keeping the model's own spelling of the arguments."""

from __future__ import annotations

import json

from kinetic.text.tools.dialect import Call

NAME_KEYS = ("name", "function")
ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class NotJson(ValueError):
    """The text is not the JSON that was looked for."""


def _constant(name: str) -> object:
    raise NotJson(name)


_STRICT = json.JSONDecoder(parse_constant=_constant)
# Models write line breaks inside strings; everything else must be right.
_LENIENT = json.JSONDecoder(strict=False, parse_constant=_constant)


def skip_space(text: str, at: int) -> int:
    """The next place that is not white space."""
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def read_value(text: str, at: int = 0) -> tuple[object, str, int]:
    """The JSON value at a place: itself, its text in strict JSON, and where it ends.

    *Raises*: NotJson.
    """
    at = skip_space(text, at)
    try:
        value, end = _STRICT.raw_decode(text, at)
        return value, text[at:end], end
    except (ValueError, RecursionError):
        pass
    try:
        value, end = _LENIENT.raw_decode(text, at)
        return value, dumps(value), end
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def dumps(value: object) -> str:
    """JSON text.

    *Raises*: NotJson for what JSON cannot say.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotJson(str(error)) from None


def fields(text: str, at: int = 0) -> tuple[dict[str, tuple[object, str]], int]:
    """The fields of the JSON object at a place, each with its value and text, and its end.

    *Raises*: NotJson.
    """
    at = skip_space(text, at)
    if text[at : at + 1] != "{":
        raise NotJson("no object")
    found: dict[str, tuple[object, str]] = {}
    at = skip_space(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, _, at = read_value(text, at)
        at = skip_space(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise NotJson("no key")
        value, spelled, at = read_value(text, at + 1)
        found[key] = value, spelled
        at = skip_space(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        if text[at : at + 1] != ",":
            raise NotJson("no comma")
        at = skip_space(text, at + 1)


def read_call(text: str, at: int = 0) -> tuple[Call, int]:
    """The call object at a place, `{"name": ..., "arguments": ...}`, and its end.

    *Raises*: NotJson if it is none.
    """
    found, end = fields(text, at)
    inner = found.get("function")
    if inner is not None and isinstance(inner[0], dict):
        found, _ = fields(inner[1])
    name = next((found[k][0] for k in NAME_KEYS if k in found), None)
    if not isinstance(name, str) or not name:
        raise NotJson("no name")
    value, spelled = next((found[k] for k in ARGUMENT_KEYS if k in found), ({}, "{}"))
    return Call(name, arguments_text(value, spelled)), end


def arguments_text(value: object, spelled: str) -> str:
    """Arguments as JSON text; an object that was written as a JSON string is taken out of it."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            inner, text, end = read_value(value)
        except NotJson:
            return spelled
        if isinstance(inner, dict) and not value[end:].strip():
            return text
    return spelled


def read_calls(text: str, at: int = 0) -> tuple[tuple[Call, ...], int]:
    """The call or list of calls at a place, and where it ends.

    *Raises*: NotJson.
    """
    at = skip_space(text, at)
    if text[at : at + 1] != "[":
        call, end = read_call(text, at)
        return (call,), end
    calls: list[Call] = []
    at = skip_space(text, at + 1)
    while text[at : at + 1] != "]":
        if calls:
            if text[at : at + 1] != ",":
                raise NotJson("no comma")
            at += 1
        call, at = read_call(text, at)
        calls.append(call)
        at = skip_space(text, at)
    if not calls:
        raise NotJson("an empty list")
    return tuple(calls), at + 1


def inside_string(text: str, quotes: str = '"') -> bool:
    """Whether a text ends inside a quoted string."""
    quote = ""
    chars = iter(text)
    for char in chars:
        if quote:
            if char == "\\":
                next(chars, None)
            elif char == quote:
                quote = ""
        elif char in quotes:
            quote = char
    return bool(quote)
