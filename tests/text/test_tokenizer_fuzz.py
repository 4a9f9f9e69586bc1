"""Damaged vocabularies load, or are refused with an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.errors import KineticError
from kinetic.ir.gguf import GGUFFile
from kinetic.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tokenizers"
FILES = {p.stem: p.read_bytes() for p in sorted(GOLDEN.glob("tiny-*.gguf"))}
TEXT = "Hello <s> w\u00f6rld\n\n 12345 \u4f60\u597d \U0001f600 </s> it's a_b"


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 12_000), st.integers(0, 255)), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_damaged_vocabularies(
    tmp_path_factory: pytest.TempPathFactory, name: str, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(FILES[name])
    for at, value in flips:
        data[at % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "vocab.gguf"
    path.write_bytes(data)
    try:
        tok = Tokenizer.from_gguf(GGUFFile.open(path))
        for special in (False, True):
            ids = tok.encode(TEXT, add_special=special, parse_special=special)
            assert all(0 <= i < tok.n_tokens for i in ids)
            tok.decode(ids, render_special=special)
            tok.detokenize(ids)
        assert all(0 <= i < tok.n_tokens for i in tok.end_ids)
    except KineticError as error:
        assert "\n" not in str(error)
