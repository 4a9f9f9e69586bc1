"""Unigram vocabularies: the likeliest pieces, as Hugging Face finds them, and the table before."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_writer import write_gguf
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, normalizers, pre_tokenizers

from kinetic.errors import ModelFileError
from kinetic.ir.gguf import GGUFFile
from kinetic.text.tokenizer import Tokenizer
from kinetic.text.ugm import Charsmap

SPACE = "\u2581"
LETTERS = "abcdefgh.,"
UNKNOWN = 3


def pieces() -> list[tuple[str, float]]:
    rng = np.random.default_rng(3)
    texts = [SPACE, *LETTERS, *(a + b for a in LETTERS[:8] for b in "abcd")]
    texts += [SPACE + a + b for a in "abc" for b in ("", "a", "bc", "cad")]
    texts += ["abcd", "cadab", "dabcab"]
    scores = np.round(rng.uniform(-9, -2, len(texts)), 3).tolist()
    marks = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return marks + list(zip(texts, scores, strict=True))


def vocabulary(**more: object) -> dict[str, object]:
    found = pieces()
    keys: dict[str, object] = {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [text for text, _ in found],
        "tokenizer.ggml.scores": np.array([score for _, score in found], np.float32),
        "tokenizer.ggml.token_type": np.array([3, 3, 3, 2] + [1] * (len(found) - 4), np.int32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    return keys | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def made(folder: Path, **more: object) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(write_gguf(folder / "v.gguf", vocabulary(**more))))


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(tmp_path_factory.mktemp("t"))


@pytest.fixture(scope="module")
def theirs() -> HuggingFace:
    exact = [(text, float(np.float32(score))) for text, score in pieces()]
    found = HuggingFace(models.Unigram(exact, unk_id=UNKNOWN))
    found.normalizer = normalizers.Strip()
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    return found


@settings(max_examples=300, deadline=None)
@given(text=st.text(f"{LETTERS}  xyz\u00e9\U0001f600", max_size=40))
def test_pieces_are_the_likeliest(mine: Tokenizer, theirs: HuggingFace, text: str) -> None:
    assert mine.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_text_is_enclosed_and_comes_back(mine: Tokenizer) -> None:
    ids = mine.encode("abc  cad", add_special=True)
    assert ids[0] == 0 and ids[-1] == 2
    assert mine.detokenize(ids[1:-1]) == b"abc cad"
    assert mine.encode("") == [] and mine.encode("", add_special=True) == [0, 2]


def test_unknown_characters_side_by_side_are_one_token(mine: Tokenizer) -> None:
    assert mine.encode("xyz\u00e9").count(UNKNOWN) == 1
    assert mine.encode("xay").count(UNKNOWN) == 2


def test_long_texts_take_linear_time(mine: Tokenizer) -> None:
    started = time.perf_counter()
    mine.encode("ab" * 50000)
    mine.encode("abc cad " * 50000)
    assert time.perf_counter() - started < 5


# ---- the table -----------------------------------------------------------------------------


def double_array(table: dict[str, str]) -> bytes:
    """The table as a file holds it."""
    texts, values = bytearray(), {}
    for key, text in table.items():
        values[key.encode() + b"\0"] = len(texts)
        texts += text.encode() + b"\0"
    units, taken = [0] * 4096, {0}

    def place(at: int, keys: list[bytes]) -> None:
        labels = sorted({key[0] for key in keys})
        base = next(b for b in range(1, 4096) if not any(b ^ c in taken for c in labels))
        taken.update(base ^ c for c in labels)
        units[at] |= (at ^ base) << 10 | (1 << 8 if 0 in labels else 0)
        for c in labels:
            rest = [key[1:] for key in keys if key[0] == c]
            if c:
                units[base ^ c] = c
                place(base ^ c, rest)

    def fill(at: int, key: bytes, whole: bytes) -> None:
        node = at ^ (units[at] >> 10)
        if key[0] == 0:
            units[node] = values[whole] | 1 << 31
        else:
            fill(node ^ key[0], key[1:], whole)

    place(0, [*values])
    for key in values:
        fill(0, key, key)
    array = np.array(units, np.uint32).astype("<u4").tobytes()
    return len(array).to_bytes(4, "little") + array + bytes(texts)


TABLE = {"\ufb01": "fa", "\uff21": "a", "\u3000": " ", "cc": "d", "ccc": "e", "\u00ad": ""}


def test_the_longest_entry_of_the_table_is_taken(tmp_path: Path, mine: Tokenizer) -> None:
    data = np.frombuffer(double_array(TABLE), np.uint8)
    tok = made(tmp_path, precompiled_charsmap=data)
    for text, plain in (
        ("\uff21\ufb01", "afa"),
        ("a\u3000b", "a b"),
        ("cccc", "ec"),
        ("cc c", "d c"),
        ("a\u00adb\u00e9", "ab\u00e9"),
    ):
        assert tok.encode(text) == mine.encode(plain), ascii(text)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), text=st.binary(min_size=1, max_size=8))
def test_a_damaged_table_is_refused_or_harmless(data: bytes, text: bytes) -> None:
    for found in (data, (4 * (len(data) // 8)).to_bytes(4, "little") + data):
        try:
            entry = Charsmap(found).longest(text, 0)
        except ModelFileError:
            continue
        assert entry is None or 0 < entry[0] <= len(text)


def test_scores_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores is missing"):
        keys = vocabulary()
        del keys["tokenizer.ggml.scores"]
        Tokenizer.from_gguf(GGUFFile.open(write_gguf(tmp_path / "v.gguf", keys)))
