"""What a receipt holds: the one table of its fields, and the check of a stranger's against it.

Each field is a function that says what is wrong with a value, or None. An object is a table of
fields; all must be there and no others may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from kinetic.errors import ModelFileError
from kinetic.receipts.canonical import Json

VERSION = 1
FINISHES = ("end", "stop", "length", "context", "cancelled", "deadline")
KINDS = ("grammar", "json_schema", "calls")
BANNED = "-inf"
"""A token's bias that JSON has no number for."""

Check = Callable[[Json], str | None]
Table = Mapping[str, "Check | Table"]


def text(value: Json) -> str | None:
    """Any text that is proper Unicode."""
    if not isinstance(value, str):
        return "must be text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "must be proper Unicode"
    return None


def line(value: Json) -> str | None:
    """Text of one line: it is shown in a report, whose lines it must not be able to forge."""
    wrong = text(value)
    if wrong is None and not all(c.isprintable() for c in str(value)):
        return "must be one line without control characters"
    return wrong


def whole(low: int, high: int) -> Check:
    """A whole number in a range."""

    def check(value: Json) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a whole number from {low} to {high}"

    return check


def number(value: Json) -> str | None:
    """A finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return None if good and math.isfinite(value) else "must be a number"  # type: ignore[arg-type]
    except OverflowError:
        return "must be a number"


def hex_digits(count: int) -> Check:
    """So many hex digits in small letters."""
    pattern = re.compile(f"[0-9a-f]{{{count}}}")

    def check(value: Json) -> str | None:
        good = isinstance(value, str) and pattern.fullmatch(value)
        return None if good else f"must be {count} hex digits"

    return check


def one_of(*known: Json) -> Check:
    """One of a few values, of the same type."""

    def check(value: Json) -> str | None:
        good = any(type(value) is type(k) and value == k for k in known)
        return None if good else f"must be one of {', '.join(map(str, known))}"

    return check


def nothing_or(inner: Check | Table) -> Check:
    """None, or what `inner` takes."""

    def check(value: Json) -> str | None:
        return None if value is None else _wrong(value, inner)

    return check


def list_of(inner: Check | Table, most: int) -> Check:
    """A list of such values."""

    def check(value: Json) -> str | None:
        if not isinstance(value, list) or len(value) > most:
            return f"must be a list of at most {most}"
        for i, item in enumerate(value):
            wrong = _wrong(item, inner)
            if wrong is not None:
                return f"at {i} {wrong}"
        return None

    return check


def _flag(value: Json) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _input(value: Json) -> str | None:
    """Messages, or a prompt's text, or its token ids."""
    return None if isinstance(value, str | list) else "must be messages or a prompt's text"


def _bias(value: Json) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of token ids and numbers"
    for key, bias in value.items():
        if not re.fullmatch("0|[1-9][0-9]{0,9}", key):
            return f"must have token ids as keys, not {key[:40]!r}"
        if bias != BANNED and number(bias) is not None:
            return f"at {key} must be a number or {BANNED}"
    return None


def _breaker(value: Json) -> str | None:
    return None if isinstance(value, str) else list_of(_TOKEN, 1 << 10)(value)


def _seal(value: Json) -> str | None:
    good = isinstance(value, dict) and all(hex_digits(16)(v) is None for v in value.values())
    return None if good else "must be an object of hashes, 16 hex digits each"


_TOKEN = whole(0, 2**31 - 1)
_COUNT = whole(0, 2**31 - 1)
_HASH = hex_digits(64)
_TOKENS: Table = {"count": _COUNT, "blake3": _HASH, "ids": list_of(_TOKEN, 1 << 24)}
_FILE: Table = {"file": text, "path": text, "size": whole(0, 2**63 - 1), "blake3": _HASH}

SAMPLING: Table = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "top_n_sigma"), number),
    **dict.fromkeys(("xtc_probability", "xtc_threshold", "repeat_penalty"), number),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), number),
    **dict.fromkeys(("dry_multiplier", "dry_base", "mirostat_tau", "mirostat_eta"), number),
    **dict.fromkeys(("top_k", "repeat_last_n", "mirostat"), whole(-(2**63), 2**63)),
    **dict.fromkeys(("dry_allowed_length", "dry_penalty_last_n"), whole(-(2**63), 2**63)),
    "dry_sequence_breakers": nothing_or(list_of(_breaker, 1 << 10)),
    "logit_bias": _bias,
    "seed": whole(0, 2**64 - 1),
}
"""The fields of `SamplingParams`."""

REQUEST: Table = {
    "choice": whole(0, 1 << 20),
    "max_tokens": nothing_or(whole(1, 2**31 - 1)),
    "stop": list_of(text, 1 << 10),
    "ignore_eos": _flag,
    "shown": list_of(_TOKEN, 1 << 16),
    "constraint": nothing_or(
        {
            "kind": one_of(*KINDS),
            "text": text,
            "reasoning": nothing_or(
                {"opener": text, "closer": text, "turn": text, "answer": text, "open": _flag}
            ),
        }
    ),
}
"""What else of a request decides its answer."""

RECEIPT: Table = {
    "receipt": one_of(VERSION),
    "kinetic": {"version": line, "build": hex_digits(16)},
    "arithmetic": line,
    "graph": _HASH,
    "model": _FILE,
    "device": {
        "class": line,
        "name": line,
        "settings": {
            "ctx-size": whole(1, 2**31 - 1),
            "kv-type": line,
            "lora": list_of({**_FILE, "scale": number}, 64),
        },
    },
    "input": _input,
    "prompt": _TOKENS,
    "sampling": {**SAMPLING, **REQUEST},
    "output": {"finish": one_of(*FINISHES), "text": text, "tokens": _TOKENS},
    "seal": _seal,
}
SIGNATURE: Table = {"public_key": hex_digits(64), "ed25519": hex_digits(128)}


def check_fields(record: Mapping[str, Json], where: str) -> None:
    """Hold a receipt to the table.

    *Raises*: ModelFileError that names the field.
    """
    table = {**RECEIPT, "signature": SIGNATURE} if "signature" in record else RECEIPT
    if "receipt" in record and record["receipt"] != VERSION:
        raise ModelFileError(
            f"{where}: the field receipt is {str(record['receipt'])[:40]}, and this Kinetic reads "
            f"version {VERSION}; a newer one may read it"
        )
    wrong = _wrong(dict(record), table)
    if wrong is not None:
        raise ModelFileError(f"{where}: the field {wrong}; the receipt was changed or cut")


def _wrong(value: Json, table: Check | Table) -> str | None:
    """What is wrong with a value, beginning with the name of the field in it, if any."""
    if not isinstance(table, Mapping):
        return table(value)
    if not isinstance(value, dict):
        return "must be an object"
    for name in table:
        if name not in value:
            return f"{name} is missing"
    for name in value:
        if name not in table:
            return f"{name[:80]!r} is not one that a receipt has"
    for name, inner in table.items():
        wrong = _wrong(value[name], inner)
        if wrong is not None:
            # "must ..." is about this field, anything else about one inside of it.
            join = "." if isinstance(inner, Mapping) and not wrong.startswith("must ") else " "
            return f"{name}{join}{wrong}"
    return None
