"""How many guesses are worth their rows, from what steps cost on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
_RATIOS = (1.0, 1.2, 1.35, 1.5, 1.8, 2.1, 2.8, 3.4, 4.7, 6.0, 8.6, 11.0, 22.0, 43.0, 85.0)
"""What steps of so many rows take, a step of one row being 1, until they have been seen."""
_NEW = 0.15
"""What the newest observation counts for."""


class StepCost:
    """Seconds a step takes by its number of rows, measured as steps run."""

    def __init__(self) -> None:
        self._seconds: list[float | None] = [None] * len(_KNOTS)
        self._curve = list(_RATIOS)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        i = min(range(len(_KNOTS)), key=lambda k: abs(_KNOTS[k] - rows))
        if _KNOTS[i] != rows:
            seconds *= _RATIOS[i] / _between(_RATIOS, rows)
        old = self._seconds[i]
        # One slow step (another program, a page fault) should not count for much.
        seen = seconds if old is None else old + _NEW * (min(seconds, 2 * old) - old)
        self._seconds[i] = seen
        self._fit()

    def _fit(self) -> None:
        """The curve through what was seen; between and beyond, the ratios scaled alike."""
        seen = [i for i, seconds in enumerate(self._seconds) if seconds is not None]
        scales = np.interp(
            range(len(_KNOTS)), seen, [(self._seconds[i] or 0) / _RATIOS[i] for i in seen]
        )
        self._curve = np.maximum.accumulate(scales * _RATIOS).tolist()

    def __call__(self, rows: int) -> float:
        """Seconds that a step of so many rows should take (of any unit before the first)."""
        return _between(self._curve, rows)


def _between(values: Sequence[float], rows: int) -> float:
    for i in range(1, len(_KNOTS)):
        if rows <= _KNOTS[i]:
            low, high = _KNOTS[i - 1], _KNOTS[i]
            return values[i - 1] + (values[i] - values[i - 1]) * (rows - low) / (high - low)
    return values[-1] * rows / _KNOTS[-1]


def draft_lengths(
    chances: Sequence[Sequence[float]], base: int, cost: StepCost, most: int
) -> list[int]:
    """How many of its guesses each sequence should run, so that tokens come fastest.

    `chances[s][i]` is the chance that guesses 0 to i of sequence s are all right; `base` the
    rows that the step has without guesses, `most` the rows that guesses may add.

    The likeliest guesses of all sequences are worth taking first, and chances only fall along
    a sequence; so it is enough to look at each number of guesses once.
    """
    guesses = sorted(
        ((-chance, s) for s, of_one in enumerate(chances) for chance in of_one),
    )[:most]
    tokens = float(len(chances))
    best, best_rate, gain = 0, tokens / cost(base), 0.0
    for count, (chance, _) in enumerate(guesses, 1):
        gain -= chance
        rate = (tokens + gain) / cost(base + count)
        if rate > best_rate:
            best, best_rate = count, rate
    lengths = [0] * len(chances)
    for _, s in guesses[:best]:
        lengths[s] += 1
    return lengths
