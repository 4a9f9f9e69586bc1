"""BERT's tokenizer follows Hugging Face, where llama.cpp's departs from it too."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_writer import write_gguf
from support.tiny_encoders import wordpiece
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, normalizers, pre_tokenizers

from kinetic.ir.gguf import GGUFFile
from kinetic.text.tokenizer import Tokenizer

SPACE = "\u2581"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, HuggingFace]:
    keys = wordpiece() | {"general.architecture": "bert"}
    file = GGUFFile.open(write_gguf(tmp_path_factory.mktemp("t") / "v.gguf", keys))
    vocab: dict[str, int] = {}
    for i, token in enumerate(keys["tokenizer.ggml.tokens"]):  # type: ignore[arg-type,var-annotated]
        if token.startswith(SPACE):
            vocab.setdefault(token[1:], i)
        else:
            vocab.setdefault(token if token.startswith("[") else f"##{token}", i)
    theirs = HuggingFace(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer.from_gguf(file), theirs


def same(both: tuple[Tokenizer, HuggingFace], text: str) -> list[int]:
    mine = both[0].encode(text)
    assert mine == both[1].encode(text, add_special_tokens=False).ids, ascii(text)
    return mine


def test_a_syllable_keeps_all_its_parts(both: tuple[Tokenizer, HuggingFace]) -> None:
    assert len(same(both, "\ud55c")) == 3  # han: h, a, n


def test_vowel_signs_that_take_space_stay(both: tuple[Tokenizer, HuggingFace]) -> None:
    assert len(same(both, "\u0928\u093f\u092f\u093e")) == 4
    assert same(both, "cafe\u0301 \u00c5") == same(both, "cafe a")


def test_a_word_of_more_than_100_characters_is_unknown(
    both: tuple[Tokenizer, HuggingFace],
) -> None:
    assert 1 not in same(both, "a" * 100)
    assert same(both, "a" * 101) == [1]
    assert same(both, "a." + "b" * 200000)[2:] == [1]


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(
        st.characters(max_codepoint=0x52F, exclude_categories=("Cn", "Cs", "Cc", "Cf"))
        | st.sampled_from(" \t\nab,!\u4e2d\uac00\ud7a3\u0130\u1e9e\u0928\u093f\u0e33\u2028"),
        max_size=20,
    )
)
def test_any_text_of_these_is_cut_alike(both: tuple[Tokenizer, HuggingFace], text: str) -> None:
    same(both, text)
