"""Tokens in the order that every filter and sum uses: logit descending, lower id first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class Candidates(NamedTuple):
    """Tokens still in play, ordered, and their logits; never empty."""

    ids: Ids
    logits: Floats

    def first(self, count: int) -> Candidates:
        """The likeliest `count`, one at least."""
        count = max(1, count)
        return Candidates(self.ids[:count], self.logits[:count])

    def pick(self, keep: NDArray[np.bool_]) -> Candidates:
        """Those marked, in the same order."""
        return Candidates(self.ids[keep], self.logits[keep])


def weights(c: Candidates) -> Floats:
    """`exp(logit - best logit)`: probabilities before they are divided by their sum."""
    return exp_nonpositive(below_best(c))


def below_best(c: Candidates) -> Floats:
    """`logit - best logit`, at or below 0."""
    with np.errstate(over="ignore"):
        return c.logits - c.logits[0]


def exp_nonpositive(x: Floats) -> Floats:
    """The contract's exponential of numbers at or below 0."""
    return np.asarray(math.exp_nonpositive(NUMPY, x), np.float32)


def log(x: Floats | np.float32) -> Floats:
    """The contract's natural logarithm."""
    return np.asarray(math.log(NUMPY, np.asarray(x, np.float32)), np.float32)


def reciprocal(x: Floats | np.float32) -> Floats:
    """The contract's 1/x."""
    return np.asarray(math.recip(NUMPY, np.asarray(x, np.float32)), np.float32)


def running_sum(x: Floats) -> Floats:
    """Partial sums from the first term on, one binary32 addition each.

    `add.accumulate` is defined element by element, unlike numpy's pairwise `sum`.
    """
    return np.add.accumulate(x, dtype=np.float32)


def draw(c: Candidates, uniform: float) -> int:
    """Index of the candidate that a number in [0, 1) falls on."""
    inside = running_sum(weights(c))
    found = int(np.searchsorted(inside, np.float32(uniform) * inside[-1], side="right"))
    # Where the product rounds up to the sum itself, the last token that added to it.
    return min(found, int(np.searchsorted(inside, inside[-1])))


NEGLIGIBLE = 16.7
"""exp(-16.7) is below 2^-24, half the last place of any sum of weights, the best being 1.

In descending order a term that rounds away is followed only by terms that do, so tokens
this far below the best change no running sum and are never drawn.
"""


def order(logits: Floats, top_k: int, within: float = np.inf) -> Candidates:
    """The `top_k` likeliest tokens of a vocabulary (all for 0 or below), banned ones left out.

    Without a `top_k`, tokens more than `within` below the best may be left out too.
    *Shapes:* logits `[V]` with a finite maximum.
    """
    count = len(logits) if top_k <= 0 else min(top_k, len(logits))
    if count == len(logits) and within < np.inf:
        floor = np.float32(float(logits.max()) - within)
        pool = np.flatnonzero(logits >= np.nextafter(floor, np.float32(-np.inf)))
    else:
        pool = _pool(logits, count)
    values = logits[pool]
    # Adding 0 makes -0 equal to +0, whose order the id decides.
    bits = (values + np.float32(0)).view(np.uint32)
    ascending = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))
    keys = (~ascending).astype(np.uint64) << np.uint64(32) | pool.astype(np.uint64)
    keys.sort()
    ids = (keys[:count] & np.uint64(0xFFFFFFFF)).astype(np.int32)
    ordered = logits[ids]
    usable = int(np.count_nonzero(ordered != -np.inf))
    return Candidates(ids[:usable], ordered[:usable])


_STRIDES = 64


def _pool(logits: Floats, count: int) -> NDArray[np.intp]:
    """Ids that may be among the `count` largest, found without sorting a vocabulary.

    The logits are dealt into many columns; at least `count` of them reach the `count`-th
    largest column maximum, so nothing below it can matter.
    """
    columns = len(logits) // _STRIDES
    if count * 4 > columns:
        return np.arange(len(logits))
    best = logits[: columns * _STRIDES].reshape(_STRIDES, columns).max(axis=0)
    floor = np.partition(best, columns - count)[columns - count]
    return np.flatnonzero(logits >= floor)
