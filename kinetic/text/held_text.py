"""How much of a stream must be held back because it may turn out to be a marker."""

from __future__ import annotations

from collections.abc import Iterable


def partial_marker(text: str, markers: Iterable[str]) -> int:
    """The length of the longest tail of `text` that begins a marker without completing it."""
    best = 0
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text)), best, -1):
            if text.endswith(marker[:size]):
                best = size
                break
    return best


def first_marker(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """The first marker in `text`: its place and itself; of two at one place, the longer."""
    found: tuple[int, int, str] | None = None
    for marker in markers:
        at = text.find(marker, start)
        if at >= 0 and (found is None or (at, -len(marker)) < found[:2]):
            found = (at, -len(marker), marker)
    return None if found is None else (found[0], found[2])
