"""Makes a JSON Schema safe for the grammar library, or refuses it: nothing is ever ignored.

The library refuses most of what it cannot enforce. What it would let pass is caught here:

    x-guidance            switches of the library's own, one of which ignores keywords
    a key with an escape  `{"\\u0061": ...}` is the key `a`, but the library takes it for another;
                          so "any other key" is written as a pattern, whose keys have no escapes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import cast

from kinetic.errors import UsageError
from kinetic.text.grammar.pattern import FORMATS, rewritten

MAX_BYTES = 1 << 18
MAX_DEPTH = 128
# The library follows references by calling itself: some thousand in a row are its stack's end.
MAX_TARGETS = 400
_ONE: tuple[str, ...] = (
    "additionalProperties",
    "items",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)
_ONE += ("unevaluatedItems", "unevaluatedProperties", "contentSchema")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_REFUSED: tuple[str, ...] = ("x-guidance", "$dynamicRef", "$recursiveRef", "unevaluatedItems")
_REFUSED += ("unevaluatedProperties", "dependencies", "dependentSchemas", "dependentRequired")
_REFUSED += ("propertyNames", "uniqueItems", "contains", "minContains", "maxContains", "not")
_REFUSED += ("if", "then", "else")
_HARMLESS: Mapping[str, object] = {"uniqueItems": False}


_TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_filled(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


_FORMS: tuple[tuple[tuple[str, ...], str, Callable[[object], bool]], ...] = (
    (("type",), f"one of {', '.join(_TYPES)}, or a list of such", _is_type),
    (_LISTS, "a list of at least one schema", _is_filled),
    (_MAPS, "an object of schemas", lambda value: isinstance(value, Mapping)),
    (_COUNTS, "a whole number of at least 0", _is_count),
    (("minimum", "maximum", "exclusiveMinimum"), "a number", _is_number),
    (("exclusiveMaximum",), "a number", _is_number),
    (("multipleOf",), "a number above 0", lambda value: _is_number(value) and value > 0),  # type: ignore[operator]
    (("required",), "a list of strings", _are_texts),
    (("enum",), "a list of at least one value", _is_filled),
    (("pattern", "format"), "a string", lambda value: isinstance(value, str)),
)
"""What the values of some keywords must be, and how that is said."""


def prepared(schema: object) -> dict[str, object] | bool:
    """The schema as the library is to have it.

    *Raises*: UsageError for what is no schema, too big or deep, or cannot be enforced.
    """
    try:
        size = len(json.dumps(schema))
    except (ValueError, TypeError, RecursionError):
        raise UsageError("the schema must be JSON that is not nested too deep") from None
    if size > MAX_BYTES:
        raise UsageError(f"the schema has {size} bytes, more than the allowed {MAX_BYTES}")
    targets: set[str] = set()
    ready = _schema(schema, "", 0, schema, targets)
    if len(targets) > MAX_TARGETS:
        raise UsageError(f"the schema refers to more than {MAX_TARGETS} definitions; use fewer")
    return ready


def _schema(
    schema: object, where: str, depth: int, root: object, targets: set[str]
) -> dict[str, object] | bool:
    if isinstance(schema, bool):
        return schema
    place = where or "/"
    if not isinstance(schema, Mapping):
        raise UsageError(f"the schema at {place} must be an object, true or false")
    if depth > MAX_DEPTH:
        raise UsageError(f"the schema is nested more than {MAX_DEPTH} levels deep")
    for key in _REFUSED:
        if key in schema and not (key in _HARMLESS and schema[key] == _HARMLESS[key]):
            raise UsageError(f"the schema's {where}/{key} cannot be enforced; leave {key} out")
    if depth and ("$id" in schema or "$anchor" in schema):
        raise UsageError(f"the schema's {where}/$id or $anchor is not supported; use #/$defs/...")
    reference = schema.get("$ref")
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        raise UsageError(f"the schema's {where}/$ref must begin with #, inside this schema")
    if isinstance(reference, str):
        targets.add(reference)
    _check_forms(schema, where)
    out: dict[str, object] = dict(schema)
    for key, value in schema.items():
        if key in _ONE:
            out[key] = _schema(value, f"{where}/{key}", depth + 1, root, targets)
        elif key in _LISTS and isinstance(value, list):
            out[key] = [
                _schema(v, f"{where}/{key}/{i}", depth + 1, root, targets)
                for i, v in enumerate(value)
            ]
        elif key in _MAPS and isinstance(value, Mapping):
            out[key] = {
                k: _schema(v, f"{where}/{key}/{k}", depth + 1, root, targets)
                for k, v in value.items()
            }
        elif key in _COUNTS and isinstance(value, float) and value.is_integer():
            out[key] = int(value)
    _rewrite_patterns(out, where)
    if "anyOf" not in out and _apart(out.get("oneOf"), root):
        out["anyOf"] = out.pop("oneOf")
    _close_keys(out, where)
    return out


def _check_forms(schema: Mapping[str, object], where: str) -> None:
    """The library's own words for these would not say which keyword is wrong."""
    for key, value in schema.items():
        for keys, words, good in _FORMS:
            if key in keys and not good(value):
                raise UsageError(f"the schema's {where}/{key} must be {words}; correct it")


def _rewrite_patterns(schema: dict[str, object], where: str) -> None:
    pattern, format = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        schema["pattern"] = rewritten(pattern, f"{where}/pattern")
    by_key = schema.get("patternProperties")
    if isinstance(by_key, Mapping):
        place = f"{where}/patternProperties"
        schema["patternProperties"] = {rewritten(k, place): v for k, v in by_key.items()}
    if isinstance(format, str) and format in FORMATS:
        del schema["format"]
        more = schema.get("allOf", [])
        if "pattern" not in schema:
            schema["pattern"] = rewritten(FORMATS[format], where)
        elif isinstance(more, list):
            schema["allOf"] = [*more, {"pattern": rewritten(FORMATS[format], where)}]


def _apart(choices: object, root: object) -> bool:
    """Whether no value can match two of the choices, since their types differ."""
    if not isinstance(choices, list):
        return False
    seen: set[str] = set()
    for choice in choices:
        for _ in range(MAX_DEPTH):
            reference = choice.get("$ref") if isinstance(choice, Mapping) else None
            if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
                break
            definitions = root.get("$defs") if isinstance(root, Mapping) else None
            name = reference.removeprefix("#/$defs/")
            choice = definitions.get(name) if isinstance(definitions, Mapping) else None
        kind = choice.get("type") if isinstance(choice, Mapping) else None
        kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        own = {"number" if k == "integer" else str(k) for k in kinds}
        if not own or own & seen:
            return False
        seen |= own
    return True


def _close_keys(schema: dict[str, object], where: str) -> None:
    names = schema.get("properties") or {}
    patterns = schema.get("patternProperties") or {}
    other = schema.get("additionalProperties", True)
    if other is False or not isinstance(names, Mapping) or not (names or patterns):
        return
    if patterns:
        raise UsageError(
            f"the schema's {where}/patternProperties can only be enforced "
            "with additionalProperties false"
        )
    pattern = rewritten(other_keys(list(names)), f"{where}/additionalProperties")
    others = cast(Mapping[str, object], {pattern: other})
    schema["patternProperties"], schema["additionalProperties"] = dict(others), False


def other_keys(names: list[str]) -> str:
    """A pattern of every text but these."""
    heads = sorted({name[:k] for name in names for k in range(len(name) + 1)})
    parts = [_spelled(h) for h in heads if h not in names]
    for head in heads:
        after = sorted({h[len(head)] for h in heads if len(h) == len(head) + 1 and h[:-1] == head})
        chars = "".join(map(_spelled, after))
        parts.append(_spelled(head) + (f"[^{chars}]" if chars else r"[\s\S]") + r"[\s\S]*")
    return f"^(?:{'|'.join(parts)})$"


def _spelled(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"\\u{{{ord(c):x}}}" for c in text)
