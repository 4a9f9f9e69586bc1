"""SentencePiece BPE (`tokenizer.ggml.model` llama): pieces merge by score."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable

from kinetic.errors import ModelFileError
from kinetic.text.merging import PairTable, merge
from kinetic.text.vocab import Vocab

SPACE = "\u2581"
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64

# A token, in a list joined by zero bytes, that holds a space after another character: U+2581
# that does not follow a zero or another one.
_INNER_SPACE = re.compile(rb"(?s)(?<!\x00)(?<!\xe2\x96\x81)\xe2\x96\x81")


class _ScoreTable(PairTable):
    """Pairs whose joined text is a token; the higher its score the sooner they merge."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__([])
        self._vocab = vocab

    def priority(self, left: bytes, right: bytes) -> int:
        token = self._vocab.ids.get(left + right)
        if token is None:
            return -1
        if self._vocab.scores is None:
            return 0
        (bits,) = struct.unpack("<I", struct.pack("<f", float(self._vocab.scores[token]) + 0.0))
        # Float order as unsigned order, turned round so that the best score comes first.
        ordered = bits ^ 0xFFFFFFFF if bits >> 31 else bits | 1 << 31
        return int(ordered ^ 0xFFFFFFFF)


class SpmModel:
    """Encodes plain text, without special tokens; spaces must not be replaced yet."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._table = _ScoreTable(vocab)
        self._symbols: dict[str, int] = {}
        self._words: dict[str, list[int]] = {}

    @functools.cached_property
    def _split(self) -> Callable[[str], list[str]]:
        """Cuts a text into words that no merge can join, so that words can be remembered.

        A word ends before a space, unless some token holds a space after that same character.
        """
        joined = b"\0" + b"\0".join(self._vocab.ids)
        before: set[str] = set()
        for match in _INNER_SPACE.finditer(joined):
            left = joined[max(0, match.start() - 4) : match.start()]
            before.add(left.decode("utf-8", "ignore")[-1:])
            if len(before) > 64 or "" in before:
                return lambda text: [text]
        word = f"{SPACE}*[^{SPACE}]*"
        if before:
            joints = "".join(map(re.escape, sorted(before)))
            word += f"(?:(?<=[{joints}]){SPACE}+[^{SPACE}]*)*"
        return re.compile(word).findall

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        text = text.replace(" ", SPACE)
        if len(text) <= _CACHED_LENGTH:
            return self._finish(self._word(text))
        out: list[int] = []
        words = self._words
        for word in self._split(text):
            ids = words.get(word)
            if ids is None:
                ids = self._word(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(words) >= _CACHED_WORDS:
                        words.clear()
                    words[word] = ids
            out += ids
        return self._finish(out)

    def _finish(self, ids: list[int]) -> list[int]:
        if self._table.trim():
            self._symbols.clear()
        return ids

    def _word(self, word: str) -> list[int]:
        known, table, ids = self._symbols, self._table, self._vocab.ids
        symbols = []
        for char in word:
            symbol = known.get(char)
            if symbol is None:
                symbol = known[char] = table.symbol(char.encode())
            symbols.append(symbol)
        out: list[int] = []
        for symbol in merge(symbols, table):
            text = table.texts[symbol]
            token = ids.get(text)
            if token is not None:
                out.append(token)
            else:
                out += [self._byte(b) for b in text]
        return out

    def _byte(self, value: int) -> int:
        token = self._vocab.ids.get(b"<0x%02X>" % value)
        if token is None:
            token = self._vocab.ids.get(bytes((value,)))
        if token is None:
            token = self._vocab.special_id("unknown_token_id")
        if token is None:
            raise ModelFileError(
                f"the vocabulary has no token for byte 0x{value:02X} and no unknown token; "
                "convert the file again"
            )
        return token
