"""The memory plan's allocator: byte ranges of one arena, reused between barriers.

Source: linear-scan allocation (Poletto and Sarkar, 1999) over a straight line of code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ALIGN = 64


@dataclass
class Arena:
    """First-fit allocation of byte ranges, with frees that wait for a barrier."""

    free: list[tuple[int, int]] = field(default_factory=lambda: [(0, 1 << 62)])
    waiting: list[tuple[int, int]] = field(default_factory=list)
    top: int = 0

    def take(self, nbytes: int) -> tuple[int, int]:
        """A range of at least `nbytes`, aligned."""
        nbytes = -(-nbytes // ALIGN) * ALIGN
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= nbytes:
                self.free[i] = (start + nbytes, stop)
                self.top = max(self.top, start + nbytes)
                return start, start + nbytes
        raise AssertionError("the last free range has no end")

    def release(self, span: tuple[int, int]) -> None:
        """Give a range back after the next barrier."""
        self.waiting.append(span)

    def barrier(self) -> None:
        """Ranges that waited become free; neighbours join."""
        spans = sorted(s for s in self.free + self.waiting if s[0] < s[1])
        self.waiting = []
        joined: list[tuple[int, int]] = []
        for start, stop in spans:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        self.free = joined
