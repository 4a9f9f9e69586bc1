"""String arrays of a GGUF file, found fast and decoded on demand.

A vocabulary is a chain of 64-bit lengths each followed by its bytes, so the end of the array
is only known after walking it. Walking 250,000 links one by one takes Python 40 ms; the scan
below guesses all links of a window at once and keeps those that form one unbroken chain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError

_LENGTH = struct.Struct("<Q")
_WINDOW = 1 << 17
_WALK = 4096  # links to walk singly after a window that was mostly not a chain

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]


class StringArray(Sequence[str]):
    """A read-only sequence of strings that still lie in the file.

    *Raises*: ModelFileError when a string that is asked for is not UTF-8.
    """

    __slots__ = ("_buf", "_label", "_lengths", "_starts")

    def __init__(self, buf: Bytes, starts: Offsets, lengths: Offsets, label: str) -> None:
        self._buf = buf
        self._starts = starts
        self._lengths = lengths
        self._label = label

    def __len__(self) -> int:
        return len(self._starts)

    def raw(self, index: int) -> bytes:
        """The bytes of one string, without decoding them."""
        start = int(self._starts[index])
        return self._buf[start : start + int(self._lengths[index])].tobytes()

    def raw_items(self) -> list[bytes]:
        """The bytes of every string, in order."""
        if not len(self._starts):
            return []
        # One copy of the whole region: slicing bytes is several times faster than slicing numpy.
        first = int(self._starts[0])
        begins = (self._starts - first).tolist()
        ends = (self._starts - first + self._lengths).tolist()
        blob = self._buf[first : first + ends[-1]].tobytes()
        return [blob[a:b] for a, b in zip(begins, ends, strict=True)]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self._decode(i) for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._decode(index)

    def _decode(self, index: int) -> str:
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError:
            raise ModelFileError(
                f"{self._label}[{index}] at byte {int(self._starts[index])} is not UTF-8; "
                "the file is damaged, download or convert it again"
            ) from None

    def __iter__(self) -> Iterator[str]:
        for index, item in enumerate(self.raw_items()):
            try:
                yield item.decode()
            except UnicodeDecodeError:
                yield self._decode(index)  # raises with the place

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (StringArray, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"


class ChainBroken(Exception):
    """A link points past the end of the file; holds its index and place, and where it ends."""

    def __init__(self, index: int, offset: int, needs: int) -> None:
        super().__init__(index, offset, needs)
        self.index, self.offset, self.needs = index, offset, needs


def scan_strings(buf: Bytes, pos: int, count: int) -> tuple[Offsets, Offsets, int]:
    """Find `count` length-prefixed strings that start at byte `pos`.

    Returns the byte where each string starts, each length, and the byte after the last.

    *Raises*: ChainBroken at the first string that does not fit the file.
    """
    starts = np.empty(count, np.int64)
    lengths = np.empty(count, np.int64)
    size = len(buf)
    done = 0
    view = buf.data
    while done < count:
        n = _chain_in_window(buf, pos, count - done, starts[done:], lengths[done:])
        if n:
            done += n
            pos = int(starts[done - 1] + lengths[done - 1])
        # Too few: long strings or zero bytes inside strings; walk past them one by one.
        walk = 0 if n > 64 else min(_WALK, count - done)
        if n and done < count:
            walk = max(walk, 1)
        for _ in range(walk):
            if pos + 8 > size:
                raise ChainBroken(done, pos, pos + 8)
            (length,) = _LENGTH.unpack_from(view, pos)
            if length > size - pos - 8:
                raise ChainBroken(done, pos, pos + 8 + length)
            starts[done] = pos + 8
            lengths[done] = length
            pos += 8 + length
            done += 1
    return starts, lengths, pos


def _chain_in_window(buf: Bytes, pos: int, want: int, starts: Offsets, lengths: Offsets) -> int:
    """Fill in the links of one window whose prefixes are a byte and seven zeros; return how many.

    A length below 256 is such a prefix. Zero bytes inside strings make false candidates, but a
    candidate counts only if the one before it ends exactly there, so by induction all are true.
    """
    window = buf[pos : pos + _WINDOW]
    if len(window) < 16:
        return 0
    zero = window == 0
    seven = zero[1:-6].copy()
    for k in range(2, 8):
        seven &= zero[k : len(zero) - 7 + k]
    place = np.flatnonzero(seven)
    if not len(place) or place[0] != 0:
        return 0
    length = window[place].astype(np.int64)
    after = place + 8 + length
    linked = after[:-1] == place[1:]
    broken = np.flatnonzero(~linked)
    # The link before a break is itself sound; the last of the window must end inside the file.
    n = int(broken[0]) + 1 if len(broken) else len(place)
    n = min(n, want)
    while n and pos + int(after[n - 1]) > len(buf):
        n -= 1
    starts[:n] = place[:n] + (pos + 8)
    lengths[:n] = length[:n]
    return n
