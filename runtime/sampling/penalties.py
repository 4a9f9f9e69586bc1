"""Penalties on tokens seen before, applied to a copy of the logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.runtime.sampling.params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


def last(history: Ids, count: int) -> Ids:
    """The last `count` tokens; all of them for a count below 0."""
    return history if count < 0 or count >= len(history) else history[len(history) - count :]


def penalize(logits: Floats, history: Ids, params: SamplingParams) -> None:
    """Repeat, presence and frequency penalties over the last tokens, in place.

    A positive logit is multiplied by `fl(1/repeat)`, another by `fl(repeat)`; then
    `count * frequency` and `presence` are subtracted.
    *Source:* Keskar et al. 2019 (CTRL) for the repeat penalty.
    """
    window = last(history, params.repeat_last_n)
    if len(window) == 0:
        return
    tokens, counts = np.unique(window, return_counts=True)
    old = logits[tokens]
    repeat, inverse = np.float32(params.repeat_penalty), np.float32(1 / params.repeat_penalty)
    with np.errstate(over="ignore"):
        new = np.where(old > 0, old * inverse, old * repeat)
        seen = counts.astype(np.float32) * np.float32(params.frequency_penalty)
        logits[tokens] = new - (seen + np.float32(params.presence_penalty))
