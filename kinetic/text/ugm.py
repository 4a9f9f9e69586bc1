"""SentencePiece unigram (`tokenizer.ggml.model` t5): the likeliest pieces of the whole text.

    normalize   the vocabulary's own table rewrites characters; spaces become U+2581
    pieces      the split whose scores have the largest sum (Viterbi)

*Source*: Kudo 2018, arXiv:1804.10959; the table is a double array as darts-clone lays it out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError
from kinetic.text.vocab import NORMAL, UNUSED, USER_DEFINED, Vocab

SPACE = "\u2581"
UNKNOWN_PENALTY = 10.0
"""An unknown character scores that much below the worst piece."""
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
_INNER_SPACE = re.compile(f"[^{SPACE}]{SPACE}")


class Charsmap:
    """The table of `tokenizer.ggml.precompiled_charsmap`: longest prefixes and what they become.

    *Raises*: ModelFileError for a table that does not hold what it says.
    """

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or 4 + size > len(data):
            raise ModelFileError(
                f"tokenizer.ggml.precompiled_charsmap has {len(data)} bytes, too few for its own "
                "table; convert the file again"
            )
        self._units: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._texts = data[4 + size :]

    def longest(self, text: bytes, start: int) -> tuple[int, bytes] | None:
        """The bytes of the longest known prefix from `start` on, and what they become."""
        units, found = self._units, None
        if not units:
            return None
        node = _offset(units[0])
        for at in range(start, len(text)):
            node ^= text[at]
            if not 0 < node < len(units) or units[node] & 0x800000FF != text[at]:
                break
            unit = units[node]
            node ^= _offset(unit)
            if unit >> 8 & 1 and node < len(units):
                found = at + 1 - start, units[node] & 0x7FFFFFFF
        if found is None or found[1] >= len(self._texts):
            return None
        end = self._texts.find(b"\0", found[1])
        return found[0], self._texts[found[1] : end if end >= 0 else None]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


class UgmModel:
    """Encodes plain text, without special tokens."""

    def __init__(
        self,
        vocab: Vocab,
        charsmap: Sequence[int] | NDArray[np.generic] | None,
        unknown: int | None,
        *,
        space_prefix: bool,
        merge_spaces: bool,
    ) -> None:
        if vocab.scores is None:
            raise ModelFileError("tokenizer.ggml.scores is missing; convert the file again")
        self._vocab, self._unknown = vocab, unknown
        self._space_prefix, self._merge_spaces = space_prefix, merge_spaces
        self._charsmap = None
        if charsmap is not None and len(charsmap):
            self._charsmap = Charsmap(np.asarray(charsmap).astype(np.uint8).tobytes())
        self._words: dict[str, list[int]] = {}
        self._chars: dict[str, str] = {}

    @functools.cached_property
    def _pieces(self) -> dict[str, tuple[int, float]]:
        """Token and score of each piece; a user-defined one costs nothing."""
        vocab, found = self._vocab, {}
        kinds, scores = vocab.kinds.tolist(), np.asarray(vocab.scores, np.float64).tolist()
        for text, token in vocab.ids.items():
            if kinds[token] & (NORMAL | USER_DEFINED | UNUSED):
                score = 0.0 if kinds[token] & USER_DEFINED else scores[token]
                found[text.decode("utf-8", "replace")] = token, score
        return found

    @functools.cached_property
    def _worst(self) -> float:
        kinds, scores = self._vocab.kinds, np.asarray(self._vocab.scores, np.float64)
        normal = scores[(kinds & NORMAL) != 0]
        return float(normal.min()) if len(normal) else 0.0

    @functools.cached_property
    def _longest(self) -> dict[str, int]:
        """The longest piece that starts with each character."""
        found: dict[str, int] = {}
        for piece in self._pieces:
            if piece and len(piece) > found.get(piece[0], 0):
                found[piece[0]] = len(piece)
        return found

    @functools.cached_property
    def _joined(self) -> bool:
        """Whether some piece reaches over a space, so that words cannot be split alone."""
        return any(_INNER_SPACE.search(piece) for piece in self._pieces if SPACE in piece)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        text = self._normalized(text)
        words = [text] if self._joined else re.findall(f"{SPACE}*[^{SPACE}]+|{SPACE}+$", text)
        out: list[int] = []
        for word in words:
            ids = self._words.get(word)
            if ids is None:
                ids = self._word(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(self._words) >= _CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = ids
            # Unknown characters side by side are one token.
            joins = ids and out and ids[0] == out[-1] == self._unknown
            out += ids[1:] if joins else ids
        return out

    def _normalized(self, text: str) -> str:
        """Rewritten by the table, with spaces in the vocabulary's form."""
        text = self._rewritten(text)
        if self._merge_spaces:
            # Each word gets its space; those at the end go.
            return "".join(SPACE + word for word in text.split(" ") if word)
        started = text and (self._space_prefix and not text.startswith(" "))
        return (SPACE if started else "") + text.replace(" ", SPACE)

    def _rewritten(self, text: str) -> str:
        if self._charsmap is None:
            return text
        data, out, at = text.encode(), bytearray(), 0
        while at < len(data):
            found = self._charsmap.longest(data, at)
            if found is None:
                lead = data[at]
                size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
                found = size, data[at : at + size]
            out += found[1]
            at += found[0]
        return out.decode("utf-8", "replace")

    def _word(self, word: str) -> list[int]:
        pieces, longest, n = self._pieces, self._longest, len(word)
        best: list[tuple[float, int, int]] = [(-np.inf, 0, -1)] * (n + 1)  # sum, start, token
        best[0] = (0.0, 0, -1)
        unknown = self._worst - UNKNOWN_PENALTY
        for start in range(n):
            total, alone = best[start][0], False
            for end in range(start + 1, min(n, start + longest.get(word[start], 0)) + 1):
                found = pieces.get(word[start:end])
                if found is None:
                    continue
                alone = alone or end == start + 1
                if total + found[1] > best[end][0]:
                    best[end] = total + found[1], start, found[0]
            if not alone and total + unknown > best[start + 1][0]:
                if self._unknown is None:
                    raise ModelFileError(
                        "the vocabulary has no unknown token; convert the file again"
                    )
                best[start + 1] = total + unknown, start, self._unknown
        out: list[int] = []
        at = n
        while at:
            _, at, token = best[at]
            if not (out and token == out[-1] == self._unknown):
                out.append(token)
        return out[::-1]
