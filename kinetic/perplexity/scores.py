"""What logits say about the tokens that came: likelihoods, divergences, and their sums.

These are statistics, outside the exact arithmetic: sums are in float64, exponentials numpy's.

*Shapes*: n scored tokens of a vocabulary of V: logits [n, V], targets [n].
*Source*: llama.cpp's `tools/perplexity/perplexity.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Tokens = NDArray[np.int32]
Words = NDArray[np.uint16]

RANGE = 16.0
"""Logits further below the best than this are stored, and compared, as if they were not."""
STEPS = 65535.0
_LEAST_SCALE = 1e-30
"""Logits that differ by less are equal; the inverse of a smaller scale would be infinite."""
SCALARS = 4
"""16-bit words before a row's codes: its scale and its least log-probability, as float32."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float


def row_words(n_vocab: int) -> int:
    """16-bit words of one stored row: the scalars, and a code for each token, padded to even."""
    return SCALARS + n_vocab + n_vocab % 2


def log_sums(logits: Floats) -> tuple[Floats, Doubles]:
    """Each row's greatest logit, and the logarithm of its summed exponentials above it."""
    best = logits.max(axis=1)
    return best, np.log(np.exp(logits - best[:, None]).sum(axis=1, dtype=np.float64))


def surprise(logits: Floats, targets: Tokens) -> Doubles:
    """Negative log-likelihood of each token that came. *Units*: nats."""
    best, log_sum = log_sums(logits)
    came = logits[np.arange(len(targets)), targets]
    return log_sum - (came - best)


def encode_rows(logits: Floats) -> Words:
    """Log-probabilities as stored rows, [n, row_words(V)]."""
    n, n_vocab = logits.shape
    best, log_sum = log_sums(logits)
    least = np.maximum(logits.min(axis=1), best - np.float32(RANGE))
    scale = (best - least) / np.float32(STEPS)
    rows = np.zeros((n, row_words(n_vocab)), np.uint16)
    scalars = rows[:, :SCALARS].view(np.float32)
    scalars[:, 0] = scale
    scalars[:, 1] = least - best - log_sum.astype(np.float32)
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale > _LEAST_SCALE)
    codes = np.rint(inverse[:, None] * np.maximum(logits - least[:, None], 0))
    rows[:, SCALARS : SCALARS + n_vocab] = np.minimum(codes, STEPS)
    return rows


def decode_rows(rows: Words, n_vocab: int) -> Floats:
    """The log-probabilities of stored rows, [n, V]."""
    scalars = np.ascontiguousarray(rows[:, :SCALARS]).view(np.float32)
    codes = rows[:, SCALARS : SCALARS + n_vocab].astype(np.float32)
    return scalars[:, :1] * codes + scalars[:, 1:]


@dataclass
class PerplexitySums:
    """Likelihoods summed over the tokens scored so far."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Doubles) -> None:
        """Take in more tokens' negative log-likelihoods."""
        self.count += len(values)
        self.total += float(values.sum())
        self.squares += float((values * values).sum())

    @property
    def perplexity(self) -> Estimate:
        """exp of the mean negative log-likelihood."""
        value = exp(self.total / self.count) if self.count else float("nan")
        return Estimate(value, value * _mean(self.total, self.squares, self.count, 2).error)


def _mean(total: float, squares: float, count: int, least: int = 11) -> Estimate:
    """The mean of a sum; its error is 0 where there are fewer than `least` values."""
    if count < 1:
        return Estimate(0.0, 0.0)
    value = total / count
    variance = squares / count - value * value
    enough = variance > 0 and count >= least
    return Estimate(value, sqrt(variance / (count - 1)) if enough else 0.0)


@dataclass
class Comparison:
    """Two models' predictions of the same tokens: this one's, and the base's from a file."""

    own: PerplexitySums = field(default_factory=PerplexitySums)
    base: PerplexitySums = field(default_factory=PerplexitySums)
    products: float = 0.0
    divergences: list[Doubles] = field(default_factory=list)
    differences: list[Doubles] = field(default_factory=list)
    same_top: int = 0

    def add(self, logits: Floats, targets: Tokens, rows: Words) -> None:
        """Take in tokens: this model's logits, and the base's stored rows."""
        at = np.arange(len(targets))
        base = decode_rows(rows, logits.shape[1])
        best, log_sum = log_sums(logits)
        own = logits - (best + log_sum.astype(np.float32))[:, None]
        nll, base_nll = -own[at, targets].astype(np.float64), -base[at, targets].astype(np.float64)
        self.own.add(nll)
        self.base.add(base_nll)
        self.products += float((nll * base_nll).sum())
        self.same_top += int((logits.argmax(axis=1) == base.argmax(axis=1)).sum())
        weights = np.where(base > -RANGE, np.exp(base), np.float32(0))
        self.divergences.append((weights * (base - own)).sum(axis=1, dtype=np.float64))
        self.differences.append(np.exp(-nll) - np.exp(-base_nll))

    @property
    def count(self) -> int:
        """Tokens compared so far."""
        return self.own.count

    @property
    def log_ratio(self) -> Estimate:
        """ln(PPL / PPL of the base)."""
        own = _mean(self.own.total, self.own.squares, self.count)
        base = _mean(self.base.total, self.base.squares, self.count)
        error = own.error**2 + base.error**2 - 2 * self._covariance
        return Estimate(own.value - base.value, sqrt(max(0.0, error)))

    @property
    def _covariance(self) -> float:
        n = self.count
        if n < 10:
            return 0.0
        return (self.products / n - (self.own.total / n) * (self.base.total / n)) / (n - 1)

    @property
    def correlation(self) -> float:
        """Of both models' negative log-likelihoods, -1 to 1."""
        own = _mean(self.own.total, self.own.squares, self.count)
        base = _mean(self.base.total, self.base.squares, self.count)
        errors = own.error * base.error
        return self._covariance / errors if errors else 0.0

    @property
    def difference(self) -> Estimate:
        """PPL - PPL of the base."""
        own, base = self.own.perplexity, self.base.perplexity
        shared = 2 * own.value * base.value * self._covariance
        error = own.error**2 + base.error**2 - shared
        return Estimate(own.value - base.value, sqrt(max(0.0, error)))

    @property
    def divergence(self) -> Estimate:
        """The mean KL divergence of this model from the base. *Units*: nats."""
        return _mean_of(self.kl_values())

    @property
    def mean_dp(self) -> Estimate:
        """The mean change of the probability of the token that came."""
        return _mean_of(self.dp_values())

    @property
    def rms_dp(self) -> Estimate:
        """The root of the mean square of that change."""
        square = _mean_of(self.dp_values() ** 2)
        root = sqrt(square.value)
        return Estimate(root, 0.5 / root * square.error if root else 0.0)

    @property
    def top_agreement(self) -> Estimate:
        """The share of tokens where both models' likeliest token is the same."""
        share = self.same_top / self.count
        return Estimate(share, sqrt(share * (1 - share) / max(1, self.count - 1)))

    def kl_values(self) -> Doubles:
        """Each token's divergence."""
        return np.concatenate(self.divergences)

    def dp_values(self) -> Doubles:
        """Each token's change of probability."""
        return np.concatenate(self.differences)


def _mean_of(values: Doubles) -> Estimate:
    return _mean(float(values.sum()), float((values * values).sum()), len(values))
