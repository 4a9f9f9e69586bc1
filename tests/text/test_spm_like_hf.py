"""SentencePiece vocabularies give Hugging Face's ids around special tokens (TK-03)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as HuggingFace
from tokenizers.models import BPE

from kinetic.ir.gguf import GGUFFile
from kinetic.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tokenizers"
VOCABULARIES = ("tiny-spm", "tiny-spm-noprefix")
"""Each part of a text gets a space in front, as with `legacy`; none does."""
NORMAL, CONTROL = 1, 3


def both(name: str) -> tuple[Tokenizer, HuggingFace]:
    """Our tokenizer and theirs, which has a merge for each way to make a piece of two."""
    with GGUFFile.open(GOLDEN / f"{name}.gguf") as file:
        pieces = file.get_strings("tokenizer.ggml.tokens")
        scores = file.metadata["tokenizer.ggml.scores"]
        types = file.metadata["tokenizer.ggml.token_type"]
        prefix = file.get_bool("tokenizer.ggml.add_space_prefix", True)
        ours = Tokenizer.from_gguf(file)
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = sorted(
        (-float(scores[i]), ids[piece[:at]], ids[piece[at:]], piece[:at], piece[at:])
        for piece, i in ids.items()
        if types[i] == NORMAL
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    )
    pairs = [(a, b) for *_, a, b in merges]
    theirs = HuggingFace(BPE(ids, pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = [normalizers.Prepend("\u2581")] if prefix else []
    theirs.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "\u2581")])
    control = [piece for piece, i in ids.items() if types[i] == CONTROL]
    theirs.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    return ours, theirs


@pytest.mark.parametrize("name", VOCABULARIES)
def test_text_after_a_special_token_is_split_as_theirs(name: str) -> None:
    ours, theirs = both(name)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from(["<s>", "</s>", " ", "  ", "\n", "a", "he", "the", " b"])))
    def check(parts: list[str]) -> None:
        text = "".join(parts)
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode_spans(text, []) == expected

    check()
    for text in ("<s> Hello", "a</s> b", "</s>\n\nx"):
        assert ours.encode_spans(text, []) == theirs.encode(text, add_special_tokens=False).ids
