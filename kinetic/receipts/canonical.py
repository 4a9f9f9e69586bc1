"""JSON in one form, and JSON from strangers.

The canonical form is what is hashed and signed: keys sorted, no spaces, ASCII, numbers as
Python writes them, which read back to the same value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NoReturn

from kinetic.errors import ModelFileError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_BYTES = 64 << 20
"""Of a receipt: a prompt of millions of tokens fits."""
MAX_DEPTH = 64
"""Of lists and objects inside each other, a recorded JSON Schema included."""


def canonical(value: Json) -> bytes:
    """A value in the one form that is hashed and signed."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def parse(data: bytes, where: str) -> dict[str, Json]:
    """An object of JSON.

    *Raises*: ModelFileError for anything else: bytes that are not UTF-8, a key that comes twice,
    numbers that JSON has not, nesting without end.
    """
    if len(data) > MAX_BYTES:
        raise ModelFileError(
            f"{where} has {len(data)} bytes, more than the allowed {MAX_BYTES}; it is no receipt"
        )
    try:
        text = data.decode("utf-8")
        if depth(text) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than the allowed {MAX_DEPTH} levels")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _no_receipt(where, f"not UTF-8 text at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _no_receipt(
            where, f"not proper JSON at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise _no_receipt(where, "nested too deep") from None
    except ValueError as error:
        raise _no_receipt(where, f"not proper JSON: {error}") from None
    if not isinstance(value, dict):
        raise _no_receipt(where, "JSON, but not an object of fields")
    return value


def _no_receipt(where: str, why: str) -> ModelFileError:
    return ModelFileError(
        f"{where} is no receipt, or a damaged one: it is {why}; kinetic run --receipt writes one"
    )


def leaves(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every value that is no object, with its dotted name. An empty object is a leaf, a list is
    one."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def depth(text: str) -> int:
    """How deep brackets nest outside of strings; what `json` would recurse into."""
    deepest = depth = at = 0
    while at < len(text):
        c = text[at]
        if c == '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif c in "]}":
            depth -= 1
        at += 1
    return deepest


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} comes twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
