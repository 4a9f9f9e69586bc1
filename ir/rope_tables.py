"""Cosine and sine tables of rotary position embeddings, the same bits on every machine.

Everything is binary64 addition and multiplication (docs/arithmetic.md section 6); a
quotient of two constants of the model is rounded correctly. Logarithm, exponential, sine
and cosine are therefore here, good to about 2e-16, and a table entry is the exact value
rounded to binary32, save for the rare tie.

*Source:* Su et al. 2021 (RoPE); Peng et al. 2023, sections 3.2 to 3.4 (YaRN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import UnsupportedError

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

MAX_ANGLE = float(1 << 23)
"""Radians up to which the reduction by pi/2 is exact."""


@dataclass(frozen=True)
class RopeScaling:
    """How positions are stretched past the context the model was trained on.

    `linear` divides every angle by `factor`. `yarn` divides only the slow pairs: those
    that turn fewer than `beta_slow` times in `orig_ctx` positions wholly, those that turn
    more than `beta_fast` times not at all, with a ramp between; `ext_factor` scales the
    share that is left alone.
    """

    kind: Literal["none", "linear", "yarn"] = "none"
    factor: float = 1.0
    orig_ctx: int = 0
    attn_factor: float = 1.0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "linear", "yarn"):
            raise UnsupportedError(
                f'Rope scaling "{self.kind}" is not supported; use none, linear or yarn.'
            )
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise UnsupportedError(
                f"A rope scaling factor of {self.factor} makes no sense; it must be above 0."
            )
        if self.kind == "yarn" and self.orig_ctx < 1:
            raise UnsupportedError(
                "YaRN needs the context length the model was trained on; "
                "give it with --yarn-orig-ctx."
            )

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.kind == "yarn":
            return (1.0 + 0.1 * ln(self.factor)) * self.attn_factor
        return self.attn_factor


def rope_table(
    positions: NDArray[np.integer],
    rot: int,
    base: float,
    *,
    scaling: RopeScaling | None = None,
    freq_factors: NDArray[np.floating] | None = None,
) -> tuple[Floats, Floats]:
    """Cosine and sine for each position and pair.

    *Shapes:* positions `[n]`, freq_factors `[rot/2]`; results `f32[n, rot/2]`.
    *Units:* `angle = position * frequencies(...)`, radians.
    """
    scaling = scaling or RopeScaling()
    freqs = frequencies(rot, base, scaling=scaling, freq_factors=freq_factors)
    at = np.asarray(positions, np.float64)
    shape = (len(at), rot // 2)
    cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
    if len(at) and np.abs(at).max() * np.abs(freqs).max(initial=0.0) > MAX_ANGLE:
        raise UnsupportedError(
            f"Rope angles past {MAX_ANGLE:.0f} radians are not supported; use a shorter context."
        )
    rows = max(1, _CHUNK // max(1, rot // 2))
    magnitude = scaling.magnitude
    for first in range(0, len(at), rows):
        part = slice(first, first + rows)
        c, s = cos_sin(at[part, None] * freqs)
        cos[part], sin[part] = c * magnitude, s * magnitude
    return cos, sin


_CHUNK = 16384
"""Angles at a time, so that the temporaries stay in the second-level cache."""


def frequencies(
    rot: int,
    base: float,
    *,
    scaling: RopeScaling,
    freq_factors: NDArray[np.floating] | None = None,
) -> Doubles:
    """Radians a position for each pair: `base^(-2 i / rot) / freq_factors[i]`, then scaled."""
    pairs = rot // 2
    log_base = ln(base)
    freqs = np.array([exp(-(2 * i / rot) * log_base) for i in range(pairs)], np.float64)
    if freq_factors is not None:
        freqs = freqs * np.array([1.0 / float(f) for f in freq_factors], np.float64)
    stretch = 1.0 / scaling.factor
    if scaling.kind == "linear":
        return freqs * stretch
    if scaling.kind == "yarn":
        keep = yarn_keep(rot, base, scaling)
        return freqs * (stretch * (1.0 - keep) + keep)
    return freqs


def yarn_keep(rot: int, base: float, scaling: RopeScaling) -> Doubles:
    """The share of each pair's own frequency that YaRN keeps: 1 for fast pairs, 0 for slow."""

    def pair_turning(times: float) -> float:
        """The pair that turns so many times over the original context."""
        turns = scaling.orig_ctx / (times * TWO_PI)
        return rot * ln(turns) / (2.0 * ln(base))

    low = max(0.0, float(math.floor(pair_turning(scaling.beta_fast))))
    high = min(rot - 1.0, float(math.ceil(pair_turning(scaling.beta_slow))))
    step = 1.0 / max(0.001, high - low)
    ramp = (np.arange(rot // 2, dtype=np.float64) - low) * step
    return (1.0 - np.minimum(1.0, np.maximum(0.0, ramp))) * scaling.ext_factor


# --- binary64 functions from additions and multiplications ---------------------------------

TWO_PI = float.fromhex("0x1.921fb54442d18p+2")
_LN2 = float.fromhex("0x1.62e42fefa2000p-1"), float.fromhex("0x1.9ef35793c7673p-41")
_LOG2E = float.fromhex("0x1.71547652b82fep+0")
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = (
    float.fromhex("0x1.921fb54000000p+0"),
    float.fromhex("0x1.10b4611800000p-30"),
    float.fromhex("0x1.313198a2e0370p-61"),
)
"""pi/2 in parts of 30, 30 and 53 bits: times a whole number below 2^23 the first two are exact."""
_MAGIC = 6755399441055744.0
"""1.5 * 2^52: adding it leaves the nearest integer, ties to even."""

_EXP_SERIES = [1 / math.factorial(n) for n in range(15)]
_SIN_SERIES = [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 9)]
_COS_SERIES = [(-1) ** n / math.factorial(2 * n) for n in range(2, 10)]


def exp(x: float) -> float:
    """e^x for abs x < 700, by Cody and Waite's reduction and Taylor's series."""
    k = (x * _LOG2E + _MAGIC) - _MAGIC
    r = (x - k * _LN2[0]) - k * _LN2[1]
    acc = 0.0
    for c in reversed(_EXP_SERIES):
        acc = acc * r + c
    return math.ldexp(acc, int(k))


def ln(x: float) -> float:
    """Natural logarithm of x > 0: the root of `exp(y) = x` by a third-order iteration."""
    if not (x > 0 and math.isfinite(x)):
        raise UnsupportedError(f"A rope base or factor of {x} makes no sense; it must be above 0.")
    mantissa, exponent = math.frexp(x)
    y = 0.0
    for _ in range(5):
        h = mantissa * exp(-y) - 1.0
        y = y + (h - h * h * 0.5 + h * h * h * (1 / 3))
    return exponent * _LN2[0] + (exponent * _LN2[1] + y)


def cos_sin(angle: Doubles) -> tuple[Doubles, Doubles]:
    """Cosine and sine of angles up to `MAX_ANGLE` radians."""
    turned = angle * _TWO_OVER_PI
    turned += _MAGIC
    quadrant = turned.view(np.int64).copy()
    turned -= _MAGIC
    r = angle.copy()
    for part in _HALF_PI:
        r -= turned * part
    rr = r * r
    sine = _series(rr, _SIN_SERIES)
    sine *= rr
    sine *= r
    sine += r
    cosine = _series(rr, _COS_SERIES)
    cosine *= rr
    cosine -= 0.5
    cosine *= rr
    cosine += 1.0
    odd = (quadrant & 1).astype(bool)
    cos, sin = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    cos *= 1.0 - ((quadrant + 1) & 2)
    sin *= 1.0 - (quadrant & 2)
    return cos, sin


def _series(x: Doubles, coefficients: Sequence[float]) -> Doubles:
    """Polynomial in `x`, lowest power first, in place of a fresh array."""
    acc = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        acc *= x
        acc += c
    return acc
