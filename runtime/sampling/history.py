"""The tokens of a sequence as the penalties see them, with exact rollback."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import InternalError

_stamps = count(1)
"""Every accepted token gets its own number, so a stale mark is recognized."""


class Mark(NamedTuple):
    """A point to roll back to. `mu` is Mirostat's state there."""

    length: int
    stamp: int
    mu: np.float32


class History:
    """A growing array of token ids."""

    def __init__(self) -> None:
        self.length = 0
        self._tokens = np.empty(256, np.int32)
        self._stamps = np.empty(256, np.int64)

    def tokens(self) -> NDArray[np.int32]:
        """The ids so far: a view, valid until the next append."""
        return self._tokens[: self.length]

    def append(self, token: int) -> None:
        if self.length == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * self.length)
            self._stamps = np.resize(self._stamps, 2 * self.length)
        self._tokens[self.length] = token
        self._stamps[self.length] = next(_stamps)
        self.length += 1

    def extend(self, tokens: NDArray[np.int64]) -> None:
        """Append many."""
        length = self.length + len(tokens)
        while length > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * len(self._tokens))
            self._stamps = np.resize(self._stamps, 2 * len(self._stamps))
        self._tokens[self.length : length] = tokens
        self._stamps[self.length : length] = np.fromiter(_stamps, np.int64, len(tokens))
        self.length = length

    def stamp(self) -> int:
        """The number of the last token, 0 when there is none."""
        return int(self._stamps[self.length - 1]) if self.length else 0

    def cut(self, length: int, stamp: int) -> None:
        """Forget all after the first `length` tokens, whose last must bear `stamp`."""
        before = int(self._stamps[length - 1]) if 0 < length <= self.length else 0
        if length > self.length or before != stamp:
            raise InternalError(
                "The sampler was asked to roll back to a point it has left behind; "
                "marks must be used innermost first."
            )
        self.length = length

    def copy(self) -> History:
        twin = History()
        twin.length = self.length
        twin._tokens, twin._stamps = self._tokens.copy(), self._stamps.copy()
        return twin
