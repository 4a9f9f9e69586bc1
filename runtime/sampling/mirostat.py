"""Mirostat 1 and 2: sampling steered to a target surprise.

*Units:* surprise is in bits; `mu` is the largest surprise allowed, moved after each token.
*Source:* Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly
controls perplexity" (version 1 is its algorithm 1; version 2 cuts at `mu` itself).
"""

from __future__ import annotations

import numpy as np

from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY
from kinetic.runtime.sampling.candidates import (
    Candidates,
    Floats,
    below_best,
    log,
    reciprocal,
    running_sum,
    weights,
)

LOG2E = np.float32(1.4426950408889634)
LN2 = np.float32(0.6931471805599453)
_ESTIMATE_OVER = 100
"""Tokens from which version 1 estimates the distribution's exponent."""


def surprises(c: Candidates) -> Floats:
    """Bits of surprise of each candidate among these."""
    total = running_sum(weights(c))[-1]
    return (log(total) - below_best(c)) * LOG2E


def cut(c: Candidates, version: int, mu: np.float32, n_vocab: int) -> Candidates:
    """The candidates that `mu` leaves."""
    if version == 2:
        return c.first(int(np.count_nonzero(surprises(c) <= mu)))
    return c.first(_zipf_count(c, mu, n_vocab))


def _zipf_count(c: Candidates, mu: np.float32, n_vocab: int) -> int:
    """Version 1's k: fit Zipf's law to the likeliest tokens, then solve for the count."""
    seen = min(_ESTIMATE_OVER, len(c.ids))
    if seen < 2:
        return 1
    rank = np.arange(1, seen, dtype=np.float32)
    t = log((rank + np.float32(1)) * reciprocal(rank))
    b = c.logits[: seen - 1] - c.logits[1:seen]
    s = running_sum(t * b)[-1] * reciprocal(running_sum(t * t)[-1])
    with np.errstate(all="ignore"):
        excess = s - np.float32(1)
        spread = np.float32(1) - _exp(-excess * log(np.float32(n_vocab)))
        ratio = excess * reciprocal(spread)
        k = _exp((log(ratio) + mu * LN2) * reciprocal(s))
    # s of exactly 1, or 0 for a flat distribution, leaves no number; one token is safe.
    return int(min(float(k), len(c.ids))) if k >= 1 else 1


def _exp(x: np.ndarray | np.float32) -> np.float32:
    return np.float32(math.exp(NUMPY, np.asarray(x, np.float32)))
