"""The filters of the chain, each from ordered candidates to fewer of them.

Probabilities are never divided out: a filter compares weights with its threshold times
their sum, which is the last of the running sums in candidate order.
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

_CHAINS = 32


def sigma_floor(logits: Floats, n: float) -> np.float32:
    """The least logit that top-n-sigma keeps: `max - n sigma` over the tokens not banned.

    Mean and deviation are sums in 32 chains by token id (docs/arithmetic.md section 2).
    *Source:* Tang et al. 2024, "Top-n sigma".
    """
    usable = logits != -np.inf
    inverse = np.float32(1 / int(np.count_nonzero(usable)))
    mean = _chained_sum(np.where(usable, logits, np.float32(0))) * inverse
    apart = np.where(usable, logits - mean, np.float32(0))
    variance = _chained_sum(apart * apart) * inverse
    sigma = np.float32(math.sqrt(NUMPY, np.asarray(variance, np.float32)))
    return np.float32(logits.max() - np.float32(n) * sigma)


def _chained_sum(x: Floats) -> np.float32:
    rows = np.zeros((-(-len(x) // _CHAINS), _CHAINS), np.float32)
    rows.reshape(-1)[: len(x)] = x
    # Along the outer axis numpy adds row after row; a test holds it to that.
    chains = np.add.reduce(rows, axis=0, dtype=np.float32)
    while len(chains) > 1:
        chains = chains[: len(chains) // 2] + chains[len(chains) // 2 :]
    return np.float32(chains[0])


def typical(c: Candidates, p: float) -> Candidates:
    """The tokens whose surprise is nearest the expected one, until they add up to `p`.

    *Source:* Meister et al. 2022, "Locally typical sampling".
    """
    if p >= 1 or len(c.ids) == 1:
        return c
    w = weights(c)
    total = running_sum(w)[-1]
    surprise = log(total) - below_best(c)
    # A weight of 0 adds nothing, however surprising it is, were it infinitely so.
    finite = np.where(w > 0, surprise, np.float32(0))
    entropy = running_sum(w * reciprocal(total) * finite)[-1]
    apart = np.abs(surprise - entropy)
    nearest = np.argsort(apart, kind="stable")
    inside = running_sum(w[nearest])
    count = int(np.count_nonzero(inside <= np.float32(p) * total)) + 1
    return c.pick(np.isin(np.arange(len(w)), nearest[:count]))


def top_p(c: Candidates, p: float) -> Candidates:
    """The likeliest tokens, until they add up to `p`.

    *Source:* Holtzman et al. 2020, "The curious case of neural text degeneration".
    """
    if p >= 1:
        return c
    inside = running_sum(weights(c))
    return c.first(int(np.count_nonzero(inside < np.float32(p) * inside[-1])) + 1)


def min_p(c: Candidates, p: float) -> Candidates:
    """Tokens at least `p` times as likely as the best, compared as logits."""
    if p <= 0:
        return c
    floor = c.logits[0] + log(np.float32(p))
    return c.first(int(np.count_nonzero(c.logits >= floor)))


def xtc(c: Candidates, threshold: float) -> Candidates:
    """Without the tokens at least `threshold` likely, save the least likely of those."""
    w = weights(c)
    likely = int(np.count_nonzero(w >= np.float32(threshold) * running_sum(w)[-1]))
    return Candidates(c.ids[likely - 1 :], c.logits[likely - 1 :]) if likely > 1 else c


def temper(c: Candidates, temperature: float) -> Candidates:
    """Distances from the best logit times `fl(1/temperature)`; the best becomes 0."""
    largest = float(np.finfo(np.float32).max)
    inverse = np.float32(min(1 / max(temperature, 1e-300), largest))
    with np.errstate(over="ignore"):
        return Candidates(c.ids, below_best(c) * inverse)
