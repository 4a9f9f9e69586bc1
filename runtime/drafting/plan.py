"""How many guesses are worth their rows, from what steps cost on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
_RATIOS = (1.0, 1.2, 1.3, 1.4, 1.5, 1.65, 2.0, 2.3, 3.0, 3.5, 4.5, 5.5, 10.5, 20.0, 40.0)
"""What steps of so many rows take, a step of one row being 1, until they have been seen."""
_LEVEL, _SHAPE = 0.3, 0.1
"""What the newest observation counts for: in how fast the machine is just now, and in what so
many rows cost beside others."""
_WIDEST = 4.0
"""One observation is not believed further than this from what was expected."""


class StepCost:
    """What a step costs by its number of rows, a step of one row costing about 1.

    Other programs slow everything down for a while, so a step is compared with those just
    before it: what is learned is the shape of the curve.
    """

    def __init__(self) -> None:
        self._level: float | None = None
        self._shape: list[float | None] = [None] * len(_KNOTS)
        self._curve = list(_RATIOS)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        i = min(range(len(_KNOTS)), key=lambda k: abs(_KNOTS[k] - rows))
        unit = seconds / _between(_RATIOS, rows)
        level = self._level or unit
        apart = min(_WIDEST, max(1 / _WIDEST, unit / level))
        self._level = level * (1 + _LEVEL * (apart - 1))
        old = self._shape[i] or 1.0
        self._shape[i] = old + _SHAPE * (apart - old)
        self._fit()

    def _fit(self) -> None:
        """The curve through what was seen; between and beyond, the ratios scaled alike."""
        seen = [i for i, shape in enumerate(self._shape) if shape is not None]
        scales = np.interp(range(len(_KNOTS)), seen, [self._shape[i] or 1.0 for i in seen])
        self._curve = np.maximum.accumulate(scales * _RATIOS).tolist()

    @property
    def seconds(self) -> float | None:
        """What a step of one row takes just now; None before the first step."""
        return None if self._level is None else self._level * self(1)

    def __call__(self, rows: int) -> float:
        """What a step of so many rows should cost."""
        return _between(self._curve, rows)


def _between(values: Sequence[float], rows: int) -> float:
    for i in range(1, len(_KNOTS)):
        if rows <= _KNOTS[i]:
            low, high = _KNOTS[i - 1], _KNOTS[i]
            return values[i - 1] + (values[i] - values[i - 1]) * (rows - low) / (high - low)
    return values[-1] * rows / _KNOTS[-1]


def draft_lengths(
    chances: Sequence[Sequence[float]], users: int, base: int, cost: StepCost, most: int
) -> list[int]:
    """How many of its guesses each chain should run, so that tokens come fastest.

    `chances[c][i]` is the chance that guesses 0 to i of chain c are all right. A step gives a
    token to each of `users` whatever is guessed; `base` are the rows that it has without
    guesses, `most` the rows that guesses may add.

    The likeliest guesses of all chains are worth taking first, and chances only fall along a
    chain; so it is enough to look at each number of guesses once.
    """
    guesses = sorted(
        ((-chance, c) for c, of_one in enumerate(chances) for chance in of_one),
    )[:most]
    tokens = float(users)
    best, best_rate, gain = 0, tokens / cost(base), 0.0
    for count, (chance, _) in enumerate(guesses, 1):
        gain -= chance
        rate = (tokens + gain) / cost(base + count)
        if rate > best_rate:
            best, best_rate = count, rate
    lengths = [0] * len(chances)
    for _, c in guesses[:best]:
        lengths[c] += 1
    return lengths
