"""Byte-level BPE (`tokenizer.ggml.model` gpt2) and BPE over raw UTF-8 (gemma4)."""

from __future__ import annotations

import functools

from kinetic.errors import ModelFileError
from kinetic.text.merging import PairTable, merge
from kinetic.text.pretokenizers import Rules
from kinetic.text.vocab import Metadata, Strings, Vocab

_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
SPACE = "\u2581"


@functools.cache
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable character for each byte.

    *Source*: Radford et al. 2019; printable Latin-1 stands for itself, the rest is moved up.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = {b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in plain)}
    return tuple(moved.get(b, chr(b)) for b in range(256))


@functools.cache
def byte_values() -> dict[str, int]:
    """The inverse of `byte_alphabet`."""
    return {c: b for b, c in enumerate(byte_alphabet())}


class _RankTable(PairTable):
    """Pairs by their place in the file's list of merges."""

    def __init__(self, known: list[bytes], merges: Strings | None) -> None:
        super().__init__(known)
        self._merges = merges

    @functools.cached_property
    def _ranks(self) -> dict[bytes, int]:
        items = self._merges.raw_items() if self._merges is not None else []
        # Reversed, so that the first of two equal merges wins.
        return dict(zip(reversed(items), range(len(items) - 1, -1, -1), strict=True))

    def priority(self, left: bytes, right: bytes) -> int:
        # The file separates a pair at the first space after its first byte.
        if b" " in left[1:]:
            return -1
        return self._ranks.get(left + b" " + right, -1)


class BpeModel:
    """Encodes plain text, without special tokens."""

    def __init__(self, vocab: Vocab, rules: Rules, merges: Strings | None) -> None:
        self._vocab = vocab
        self._rules = rules
        alphabet = [c.encode() for c in byte_alphabet()]
        self._alphabet = dict(enumerate(byte_alphabet()))
        self._table = _RankTable([] if rules.raw_utf8 else alphabet, merges)
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        if self._rules.raw_utf8:
            text = text.replace(" ", SPACE)
        words = self._words
        out: list[int] = []
        for word in self._rules.split(text):
            ids = words.get(word)
            if ids is None:
                ids = self._word(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(words) >= _CACHED_WORDS:
                        words.clear()
                    words[word] = ids
            out += ids
        self._table.trim()
        return out

    def _word(self, word: str) -> list[int]:
        ids = self._vocab.ids
        table = self._table
        if self._rules.raw_utf8:
            if self._rules.ignore_merges or not word.strip("\n"):
                whole = ids.get(word.encode())
                if whole is not None:
                    return [whole]
            symbols = [table.symbol(c.encode()) for c in word]
        else:
            data = word.encode()
            if self._rules.ignore_merges and len(data) < 512:
                mapped = data.decode("latin-1").translate(self._alphabet).encode()
                whole = ids.get(mapped)
                if whole is not None:
                    return [whole]
            symbols = list(data)
        out: list[int] = []
        for symbol in merge(symbols, table):
            text = table.texts[symbol]
            token = ids.get(text)
            if token is not None:
                out.append(token)
            else:
                out += self._bytes(text)
        return out

    def _bytes(self, text: bytes) -> list[int]:
        """A symbol that is no token, byte by byte; a byte without a token is dropped."""
        ids = self._vocab.ids
        spelled = (
            (b"<0x%02X>" % b for b in text) if self._rules.raw_utf8 else (bytes((b,)) for b in text)
        )
        return [ids[s] for s in spelled if s in ids]


def merges_of(gguf: Metadata, required: bool) -> Strings | None:
    """The list of merges, which only a few vocabularies do without.

    *Raises*: ModelFileError if it is missing and needed.
    """
    found = gguf.get_strings("tokenizer.ggml.merges", None)
    if found is None and required:
        raise ModelFileError(
            "metadata key tokenizer.ggml.merges is missing; convert the file again"
        )
    return found
