"""Log-probabilities of raw logits, before any sampler has touched them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetic.runtime.sampling.candidates import Floats, exp_nonpositive, log, order


def logprobs(logits: Floats) -> npt.NDArray[np.float64]:
    """The natural logarithm of each token's probability, f64[V].

    The same on every machine: the contract's exp and log, and a sum in token order.
    """
    below = logits - logits.max()
    total = np.add.accumulate(exp_nonpositive(below), dtype=np.float64)[-1]
    found: npt.NDArray[np.float64] = np.minimum(below.astype(np.float64) - float(log(total)), 0)
    return found


def likeliest(logits: Floats, count: int) -> list[int]:
    """The `count` likeliest tokens, ties to the lower id."""
    return order(logits, count).ids.tolist() if count > 0 else []
