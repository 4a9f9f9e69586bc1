"""DRY ("don't repeat yourself"): a penalty on tokens that would prolong a repetition.

Where the last tokens already stood earlier, the token that followed them there is made
less likely: by `multiplier * base^(length - allowed_length)`, `length` being how many
tokens match. A sequence breaker ends a match.

*Source:* p-e-w, text-generation-webui pull request 5677 (2024), as llama.cpp has it.
"""

from __future__ import annotations

import numpy as np

from kinetic.errors import InternalError
from kinetic.runtime.sampling.params import SamplingParams
from kinetic.runtime.sampling.penalties import Floats, Ids, last


class Dry:
    """The penalty of one set of parameters; it holds no state."""

    def __init__(self, params: SamplingParams) -> None:
        self.multiplier = np.float32(params.dry_multiplier)
        self.allowed = params.dry_allowed_length
        self.last_n = params.dry_penalty_last_n
        self.powers = _powers(params.dry_base)
        self.longest = self.allowed + len(self.powers) - 1
        """Matches are counted no further: the penalty has reached its cap."""
        self.tails: dict[int, list[tuple[int, ...]]] = {}
        for breaker in params.dry_sequence_breakers or ():
            if isinstance(breaker, str):
                raise InternalError(f"the DRY breaker {breaker!r} reached the sampler as text")
            head, *tail = breaker
            self.tails.setdefault(head, []).append(tuple(tail))
        for tails in self.tails.values():
            tails.sort(key=len, reverse=True)
        self.single = {head for head, tails in self.tails.items() if () in tails}

    def apply(self, logits: Floats, history: Ids) -> None:
        """Subtract the penalties from `logits`, in place."""
        window = last(history, self.last_n)
        limit = min(self.longest, self._since_breaker(window))
        if len(window) <= self.allowed or limit < self.allowed:
            return
        lengths = match_lengths(window, limit)
        following = window[1:]
        keep = lengths >= self.allowed
        tokens, which = np.unique(following[keep], return_inverse=True)
        exponents = np.zeros(len(tokens), np.int64)
        np.maximum.at(exponents, which, lengths[keep] - self.allowed)
        usable = np.array([int(t) not in self.single for t in tokens], bool)
        with np.errstate(over="ignore"):
            logits[tokens[usable]] -= self.multiplier * self.powers[exponents[usable]]

    def _since_breaker(self, window: Ids) -> int:
        """Tokens after the last sequence breaker, as far as it matters."""
        longest_tail = max((len(t[0]) for t in self.tails.values()), default=0)
        recent = window[max(0, len(window) - self.longest - longest_tail - 1) :].tolist()
        for back, token in enumerate(reversed(recent)):
            after = recent[len(recent) - back :]
            for tail in self.tails.get(token, ()):
                if len(tail) <= back and tuple(after[: len(tail)]) == tail:
                    return back - len(tail)
        return len(window)


def match_lengths(window: Ids, limit: int) -> np.ndarray:
    """For each token but the last: how many tokens up to it repeat the window's end.

    *Shapes:* window `[n]`, result `int64[n - 1]`, at most `limit` each.
    """
    lengths = np.zeros(len(window) - 1, np.int64)
    ends = np.arange(len(window) - 1)
    for length in range(limit):
        ends = ends[ends >= length]
        ends = ends[window[ends - length] == window[len(window) - 1 - length]]
        if len(ends) == 0:
            break
        lengths[ends] = length + 1
    return lengths


def _powers(base: float) -> Floats:
    """`base^0, base^1, ...` by binary32 products, while they stay finite."""
    powers = [np.float32(1)]
    step = np.float32(base)
    with np.errstate(over="ignore"):
        while step > 1.000001 and np.isfinite(powers[-1] * step):
            powers.append(powers[-1] * step)
    return np.array(powers, np.float32)
