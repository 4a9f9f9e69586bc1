"""Reading the golden tokenizer cases and comparing a tokenizer with them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kinetic.ir.gguf import GGUFFile
from kinetic.text.tokenizer import Tokenizer

Case = dict[str, Any]


class Overridden:
    """A model file with some string keys replaced."""

    def __init__(self, gguf: GGUFFile, **keys: str) -> None:
        self._gguf = gguf
        self._keys = {k.replace("__", "."): v for k, v in keys.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gguf, name)

    def get_str(self, key: str, *default: str) -> str:
        return self._keys.get(key) or self._gguf.get_str(key, *default)


def with_pre(gguf: GGUFFile, name: str) -> Tokenizer:
    return Tokenizer.from_gguf(Overridden(gguf, tokenizer__ggml__pre=name))


def ids_of(case: Case) -> tuple[list[int], list[int], list[int], list[int]]:
    """The ids for (plain, parse, add, add_parse), with absent ones filled in."""
    plain = case["plain"]
    add = case.get("add", plain)
    return plain, case.get("parse", plain), add, case.get("add_parse", add)


def encode_all(tok: Tokenizer, text: str) -> tuple[list[int], list[int], list[int], list[int]]:
    return (
        tok.encode(text),
        tok.encode(text, parse_special=True),
        tok.encode(text, add_special=True),
        tok.encode(text, add_special=True, parse_special=True),
    )


def check_cases(tok: Tokenizer, texts: list[str], cases: list[Case]) -> None:
    assert len(texts) == len(cases)
    for text, case in zip(texts, cases, strict=True):
        want = ids_of(case)
        assert encode_all(tok, text) == want, ascii(text)
        for ids, field, special in (
            (want[0], "detok_plain_hex", False),
            (want[3], "detok_add_parse_hex", True),
        ):
            expected = bytes.fromhex(case[field]) if field in case else text.encode()
            assert tok.detokenize(ids, render_special=special) == expected, ascii(text)


def digest(rows: list[tuple[list[int], ...]]) -> str:
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
