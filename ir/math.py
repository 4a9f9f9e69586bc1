"""exp, recip, tanh and the rest, written once over an abstract builder.

Every device class expands these to the same binary32 add, subtract and multiply, so they
give the same words everywhere (docs/arithmetic.md section 1). No division, no fused
multiply-add, no library call. numpy's builder is `math_numpy.NumpyBuilder`.

Costs count builder operations (constants and bit casts are free); errors are the worst
found over 2^20 patterns strided through all binary32 inputs plus dense runs, in units in
the last place of the exact result (`tests/ir/test_math.py` holds them to it):

| function | operations | error | notes |
| --- | ---: | ---: | --- |
| `recip_mid` | 10 | 2 | words of `recip` for 2^-125 <= abs x <= 2^125 |
| `recip` | 20 | 2 | every input; powers of two are exact |
| `rsqrt_mid` | 15 | 2 | words of `rsqrt` for 2^-126 <= x < inf |
| `rsqrt` | 27 | 2 | -0 gives -inf as IEEE's does, below 0 NaN |
| `sqrt` | 26 | 2 | NaN below 0 |
| `exp_nonpositive` | 23 | 1 | words of `exp` for x <= 0 and NaN |
| `exp` | 27 | 1 | exp(0) = 1; +0 below 2^-126, inf above the largest float |
| `log` | 41 | 1 | -inf at 0, NaN below |
| `sigmoid` | 38 | 3.5 | flushes to +0 below 2^-126 |
| `silu` | 39 | 4 | where the sigmoid is not flushed; -inf gives NaN (inf * 0) |
| `tanh` | 41 | 4 | odd, exact for tiny x |
| `gelu_tanh` | 43 | | relative error below 2^-23 max(4, 4 abs z), `z` as defined there |
| `erf` | 56 | 1.5 | odd |
| `gelu_erf` | 60 | | absolute error up to abs x 2^-23 |
| `softplus` | 56 | 2 | flushes to +0 below 2^-126 |
| `sin`, `cos` | 32, 33 | | absolute error below 2^-23 for abs x <= 10000, meaningless beyond |
| `f16_bits_to_f32`, `f32_to_f16_bits` | 13, 18 | 0, 0.5 | nearest even |
| `bf16_bits_to_f32`, `f32_to_bf16_bits` | 1, 10 | 0, 0.5 | nearest even |

NaN in, NaN out. Coefficients are minimax fits (Lawson's iteration on weighted least
squares), rounded to binary32 from the lowest power up with the rest fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

V = TypeVar("V")


class MathBuilder(Protocol[V]):
    """What a target must offer. `V` is its value: an array, an SSA name, a register.

    Float operations round to nearest even and are never fused; compares are ordered (false
    on NaN); integers are int32 and wrap; shift counts are Python ints.
    """

    def f32(self, value: float) -> V: ...
    def i32(self, value: int) -> V: ...
    def fadd(self, x: V, y: V) -> V: ...
    def fsub(self, x: V, y: V) -> V: ...
    def fmul(self, x: V, y: V) -> V: ...
    def fgt(self, x: V, y: V) -> V: ...
    def flt(self, x: V, y: V) -> V: ...
    def fge(self, x: V, y: V) -> V: ...
    def fle(self, x: V, y: V) -> V: ...
    def feq(self, x: V, y: V) -> V: ...
    def select(self, c: V, x: V, y: V) -> V: ...
    def iadd(self, x: V, y: V) -> V: ...
    def isub(self, x: V, y: V) -> V: ...
    def iand(self, x: V, y: V) -> V: ...
    def ior(self, x: V, y: V) -> V: ...
    def ixor(self, x: V, y: V) -> V: ...
    def shl(self, x: V, n: int) -> V: ...
    def lshr(self, x: V, n: int) -> V: ...
    def ashr(self, x: V, n: int) -> V: ...
    def ilt(self, x: V, y: V) -> V: ...
    def igt(self, x: V, y: V) -> V: ...
    def ieq(self, x: V, y: V) -> V: ...
    def bits(self, x: V) -> V: ...
    def unbits(self, i: V) -> V: ...
    def i2f(self, i: V) -> V: ...


SIGN = -0x80000000
MAGNITUDE = 0x7FFFFFFF
INF_BITS = 0x7F800000
MAGIC = 12582912.0
"""1.5 * 2^23: adding it leaves a rounded integer in the low bits."""
MAGIC_BITS = 0x4B400000


# --- small helpers -----------------------------------------------------------------------


def fmax(b: MathBuilder[V], x: V, y: V) -> V:
    """`select(x > y, x, y)`; 2 operations."""
    return b.select(b.fgt(x, y), x, y)


def fmin(b: MathBuilder[V], x: V, y: V) -> V:
    """`select(x < y, x, y)`; 2 operations."""
    return b.select(b.flt(x, y), x, y)


def fabs(b: MathBuilder[V], x: V) -> V:
    """The sign bit cleared."""
    return b.unbits(b.iand(b.bits(x), b.i32(MAGNITUDE)))


def fneg(b: MathBuilder[V], x: V) -> V:
    """The sign bit turned over."""
    return b.unbits(b.ixor(b.bits(x), b.i32(SIGN)))


def rne(b: MathBuilder[V], x: V) -> V:
    """The nearest integer, ties to even, as a float; for abs x < 2^22."""
    return b.fsub(b.fadd(x, b.f32(MAGIC)), b.f32(MAGIC))


def rne_int(b: MathBuilder[V], x: V) -> V:
    """The nearest integer, ties to even, as an int32; for abs x < 2^22."""
    return b.isub(b.bits(b.fadd(x, b.f32(MAGIC))), b.i32(MAGIC_BITS))


def _horner(b: MathBuilder[V], x: V, coefficients: Sequence[float]) -> V:
    """Polynomial in `x`, lowest power first."""
    acc = b.f32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        acc = b.fadd(b.fmul(acc, x), b.f32(c))
    return acc


def _with_sign_of(b: MathBuilder[V], magnitude: V, x: V) -> V:
    clean = b.iand(b.bits(magnitude), b.i32(MAGNITUDE))
    return b.unbits(b.ior(clean, b.iand(b.bits(x), b.i32(SIGN))))


# --- reciprocal and square roots ---------------------------------------------------------

_RECIP_START = 0x7EF43880
_RECIP_STEP = 2.001582145690918
"""Chosen together: `y (STEP - x y)` is within 0.16 % of 1/x after one step."""


def recip_mid(b: MathBuilder[V], x: V) -> V:
    """1/x for 2^-125 <= abs x <= 2^125, the same words as `recip`.

    A start from the bits, one Newton step with its constants tuned, one third-order step
    in the form `y + y (h + h h)`, whose last addition makes the only large rounding.
    """
    y = b.unbits(b.isub(b.i32(_RECIP_START), b.bits(x)))
    y = b.fmul(y, b.fsub(b.f32(_RECIP_STEP), b.fmul(x, y)))
    h = b.fsub(b.f32(1.0), b.fmul(x, y))
    return b.fadd(y, b.fmul(y, b.fadd(b.fmul(h, h), h)))


def recip(b: MathBuilder[V], x: V) -> V:
    """1/x for every x: 0 gives inf and inf gives 0, with the sign kept."""
    magnitude = b.iand(b.bits(x), b.i32(MAGNITUDE))
    small = b.ilt(magnitude, b.i32(0x01000000))
    large = b.igt(magnitude, b.i32(0x7E000000))
    one = b.f32(1.0)
    scale = b.select(small, b.f32(2.0**24), b.select(large, b.f32(2.0**-24), one))
    y = b.fmul(recip_mid(b, b.fmul(x, scale)), scale)
    zero = b.unbits(b.iand(b.bits(x), b.i32(SIGN)))
    return b.select(b.ieq(magnitude, b.i32(INF_BITS)), zero, y)


_RSQRT_START = 0x5F1F2000
_RSQRT_A = 1.6895745
_RSQRT_B = 0.71361265


def _rsqrt_start(b: MathBuilder[V], x: V) -> V:
    """1/sqrt(x) to 0.07 %: a start from the bits and one tuned Newton step."""
    y = b.unbits(b.isub(b.i32(_RSQRT_START), b.lshr(b.bits(x), 1)))
    xyy = b.fmul(b.fmul(b.fmul(x, b.f32(_RSQRT_B)), y), y)
    return b.fmul(y, b.fsub(b.f32(_RSQRT_A), xyy))


def _rsqrt_correction(b: MathBuilder[V], h: V) -> V:
    """`(1 - h)^(-1/2) - 1` to third order."""
    return b.fmul(h, b.fadd(b.fmul(h, b.f32(0.375)), b.f32(0.5)))


def rsqrt_mid(b: MathBuilder[V], x: V) -> V:
    """1/sqrt(x) for 2^-126 <= x < inf, the same words as `rsqrt`."""
    y = _rsqrt_start(b, x)
    h = b.fsub(b.f32(1.0), b.fmul(b.fmul(x, y), y))
    return b.fadd(y, b.fmul(y, _rsqrt_correction(b, h)))


def _out_of_subnormals(b: MathBuilder[V], x: V, back: float) -> tuple[V, V]:
    """`x` times 2^24 where it is subnormal, and the factor that brings the result back."""
    small = b.flt(x, b.f32(2.0**-126))
    one = b.f32(1.0)
    scaled = b.fmul(x, b.select(small, b.f32(2.0**24), one))
    return scaled, b.select(small, b.f32(back), one)


def rsqrt(b: MathBuilder[V], x: V) -> V:
    """1/sqrt(x): inf of its sign at a zero, 0 at inf, NaN below 0."""
    scaled, back = _out_of_subnormals(b, x, 2.0**12)
    y = b.fmul(rsqrt_mid(b, scaled), back)
    y = b.select(b.feq(x, b.f32(float("inf"))), b.f32(0.0), y)
    # A zero's sign with the exponent filled in is the infinity of that sign.
    edge = b.select(b.feq(x, b.f32(0.0)), b.unbits(b.ior(b.bits(x), b.i32(INF_BITS))), _nan(b))
    return b.select(b.fgt(x, b.f32(0.0)), y, edge)


def sqrt(b: MathBuilder[V], x: V) -> V:
    """The square root: NaN below 0, zeros and inf as they are."""
    scaled, back = _out_of_subnormals(b, x, 2.0**-12)
    y = _rsqrt_start(b, scaled)
    s = b.fmul(scaled, y)
    h = b.fsub(b.f32(1.0), b.fmul(s, y))
    s = b.fmul(b.fadd(s, b.fmul(s, _rsqrt_correction(b, h))), back)
    s = b.select(b.flt(x, b.f32(float("inf"))), s, x)
    edge = b.select(b.feq(x, b.f32(0.0)), x, _nan(b))
    return b.select(b.fgt(x, b.f32(0.0)), s, edge)


def _nan(b: MathBuilder[V]) -> V:
    return b.unbits(b.i32(0x7FC00000))


# --- exponential family ------------------------------------------------------------------

_LOG2E = 1.4426950216293335
_LN2_HI = 0.693145751953125
"""15 bits of ln 2: times a whole number below 256 it is exact."""
_LN2_LO = 1.4286067653302115e-06
_EXP_MAGIC = MAGIC + 127.0
"""With the exponent's bias inside, the shifted bits are 2^k as a float."""
_EXP_LO = -87.33654022216797
"""Least float whose exponential is at least 2^-126."""
_EXP_HI = 88.72283172607422
"""Largest float whose exponential is finite."""
_EXP_Q = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166828840970993,
    0.008368703536689281,
    0.0013818938750773668,
)


def _exp_parts(b: MathBuilder[V], x: V) -> tuple[V, V]:
    """`exp(x) = 2^k (1 + u)`: u, and the bits of 2^k (meaningful for -127 < k < 128).

    `x = k ln2 + r` by Cody and Waite: `x - k LN2_HI` is exact.
    """
    t = b.fadd(b.fmul(x, b.f32(_LOG2E)), b.f32(_EXP_MAGIC))
    k = b.fsub(t, b.f32(_EXP_MAGIC))
    r = b.fsub(x, b.fmul(k, b.f32(_LN2_HI)))
    r = b.fsub(r, b.fmul(k, b.f32(_LN2_LO)))
    u = b.fadd(r, b.fmul(b.fmul(r, r), _horner(b, r, _EXP_Q)))
    return u, b.shl(b.bits(t), 23)


def exp_nonpositive(b: MathBuilder[V], x: V) -> V:
    """exp(x) for x <= 0 or NaN, the same words as `exp`; what softmax needs."""
    u, scale = _exp_parts(b, x)
    y = b.fmul(b.fadd(u, b.f32(1.0)), b.unbits(scale))
    return b.select(b.flt(x, b.f32(_EXP_LO)), b.f32(0.0), y)


def exp(b: MathBuilder[V], x: V) -> V:
    """e^x, +0 where the exact result is below 2^-126, inf where it passes the largest float."""
    u, scale = _exp_parts(b, x)
    # Added to the exponent rather than multiplied: 2^128 is no float, yet 0.7 * 2^128 is.
    exponent = b.isub(scale, b.i32(0x3F800000))
    y = b.unbits(b.iadd(b.bits(b.fadd(u, b.f32(1.0))), exponent))
    y = b.select(b.flt(x, b.f32(_EXP_LO)), b.f32(0.0), y)
    beyond = b.fmul(x, b.f32(float("inf")))
    return b.select(b.fle(x, b.f32(_EXP_HI)), y, beyond)


def sigmoid(b: MathBuilder[V], x: V) -> V:
    """1 / (1 + exp(-x)), from exp(-abs x) so that neither side loses digits."""
    e = exp_nonpositive(b, b.unbits(b.ior(b.bits(x), b.i32(SIGN))))
    r = recip_mid(b, b.fadd(e, b.f32(1.0)))
    return b.select(b.flt(x, b.f32(0.0)), b.fmul(e, r), r)


def silu(b: MathBuilder[V], x: V) -> V:
    """x * sigmoid(x)."""
    return b.fmul(x, sigmoid(b, x))


_TANH_ONE = 9.25
"""From here on tanh rounds to 1."""


def tanh(b: MathBuilder[V], x: V) -> V:
    """`-m / (2 + m)` with `m = exp(-2 abs x) - 1`, which keeps small arguments exact."""
    clamped = fabs(b, x)
    clamped = b.select(b.fgt(clamped, b.f32(_TANH_ONE)), b.f32(_TANH_ONE), clamped)
    u, scale_bits = _exp_parts(b, b.fmul(clamped, b.f32(-2.0)))
    scale = b.unbits(scale_bits)
    m = b.fadd(b.fmul(u, scale), b.fsub(scale, b.f32(1.0)))
    y = b.fmul(m, recip_mid(b, b.fadd(m, b.f32(2.0))))
    return _with_sign_of(b, y, x)


def gelu_tanh(b: MathBuilder[V], x: V) -> V:
    """GELU by its tanh form, `x/2 (1 + tanh(z))`, written `x * sigmoid(2 z)`.

    `z = sqrt(2/pi) x (1 + 0.044715 x^2)`. The sigmoid keeps the digits that `1 + tanh`
    loses for negative x. *Source:* ggml's `ggml_gelu_f32`; Hendrycks and Gimpel 2016.
    """
    cubic = b.fadd(b.fmul(b.fmul(x, x), b.f32(0.044715 * _TWO_SQRT_2_PI)), b.f32(_TWO_SQRT_2_PI))
    return b.fmul(x, sigmoid(b, b.fmul(x, cubic)))


_TWO_SQRT_2_PI = 2 * 0.79788456080286535587989211986876


def temper(b: MathBuilder[V], x: V, contexts: V, scale: V) -> V:
    """`x * (1 + scale * log(1 + contexts))`."""
    grown = b.fadd(b.fmul(log(b, b.fadd(contexts, b.f32(1.0))), scale), b.f32(1.0))
    return b.fmul(x, grown)


SWIGLU_OAI_LIMIT = 7.0
SWIGLU_OAI_SLOPE = 1.702


def swiglu_oai(b: MathBuilder[V], gate: V, up: V) -> V:
    """`g sigmoid(1.702 g) (1 + u)`, `g` being at most 7 and `u` between -7 and 7.

    *Source:* the gpt-oss reference implementation, `swiglu`.
    """
    limit = b.f32(SWIGLU_OAI_LIMIT)
    g = fmin(b, gate, limit)
    u = fmax(b, fmin(b, up, limit), b.f32(-SWIGLU_OAI_LIMIT))
    return b.fmul(b.fmul(g, sigmoid(b, b.fmul(g, b.f32(SWIGLU_OAI_SLOPE)))), b.fadd(u, b.f32(1.0)))


def softcap(b: MathBuilder[V], x: V, cap: float, inverse: float) -> V:
    """`fl(cap) * tanh(x * fl(1/cap))`; the caller passes both constants."""
    return b.fmul(b.f32(cap), tanh(b, b.fmul(x, b.f32(inverse))))


# --- logarithms --------------------------------------------------------------------------

_LOG_P = (
    0.3333333134651184,
    -0.2500081956386566,
    0.2000124156475067,
    -0.166234090924263,
    0.14201579988002777,
    -0.13159610331058502,
    0.12762217223644257,
    -0.07636439055204391,
)


def _log1p_scaled(b: MathBuilder[V], f: V, k: V) -> V:
    """`k ln2 + ln(1 + f)` for sqrt(1/2) <= 1 + f <= sqrt(2) and whole k."""
    ff = b.fmul(f, f)
    y = b.fmul(b.fmul(ff, f), _horner(b, f, _LOG_P))
    y = b.fadd(y, b.fmul(k, b.f32(_LN2_LO)))
    y = b.fsub(y, b.fmul(ff, b.f32(0.5)))
    return b.fadd(b.fadd(y, f), b.fmul(k, b.f32(_LN2_HI)))


_SQRT_HALF_BITS = 0x3F3504F3


def log(b: MathBuilder[V], x: V) -> V:
    """Natural logarithm: -inf at 0, NaN below."""
    small = b.flt(x, b.f32(2.0**-126))
    scaled = b.fmul(x, b.select(small, b.f32(2.0**24), b.f32(1.0)))
    offset = b.isub(b.bits(scaled), b.i32(_SQRT_HALF_BITS))
    mantissa = b.iadd(b.iand(offset, b.i32(0x007FFFFF)), b.i32(_SQRT_HALF_BITS))
    k = b.fsub(b.i2f(b.ashr(offset, 23)), b.select(small, b.f32(24.0), b.f32(0.0)))
    y = _log1p_scaled(b, b.fsub(b.unbits(mantissa), b.f32(1.0)), k)
    y = b.select(b.flt(x, b.f32(float("inf"))), y, x)
    edge = b.select(b.feq(x, b.f32(0.0)), b.f32(float("-inf")), _nan(b))
    return b.select(b.fgt(x, b.f32(0.0)), y, edge)


def softplus(b: MathBuilder[V], x: V) -> V:
    """ln(1 + e^x), as `max(x, 0) + ln(1 + exp(-abs x))`."""
    e = exp_nonpositive(b, b.unbits(b.ior(b.bits(x), b.i32(SIGN))))
    big = b.fgt(e, b.f32(0.41421354))
    f = b.select(big, b.fmul(b.fsub(e, b.f32(1.0)), b.f32(0.5)), e)
    tail = _log1p_scaled(b, f, b.select(big, b.f32(1.0), b.f32(0.0)))
    return b.fadd(fmax(b, x, b.f32(0.0)), tail)


# --- error function ----------------------------------------------------------------------

_ERF_SPLIT = 0.92
_ERF_ONE = 4.0
"""From here on erf rounds to 1."""
_ERF_SMALL = (
    0.12837915122509003,
    -0.3761250078678131,
    0.11281877011060715,
    -0.026768580079078674,
    0.004995853640139103,
    -0.0006003801245242357,
)
_ERF_LARGE = (
    -1.1285144090652466,
    -0.6357181668281555,
    -0.10526201874017715,
    0.022890063002705574,
    -0.0032149816397577524,
    0.00021398744138423353,
)


def erf(b: MathBuilder[V], x: V) -> V:
    """Error function: `x + x P(x^2)` near 0, `1 - exp(Q(abs x))` beyond."""
    a = fabs(b, x)
    near = b.fadd(a, b.fmul(a, _horner(b, b.fmul(a, a), _ERF_SMALL)))
    c = b.select(b.fgt(a, b.f32(_ERF_ONE)), b.f32(_ERF_ONE), a)
    tail = exp_nonpositive(b, b.fmul(c, _horner(b, c, _ERF_LARGE)))
    far = b.fsub(b.f32(1.0), tail)
    return _with_sign_of(b, b.select(b.flt(a, b.f32(_ERF_SPLIT)), near, far), x)


def gelu_erf(b: MathBuilder[V], x: V) -> V:
    """GELU by its definition, `x/2 + x/2 erf(x / sqrt 2)`."""
    half = b.fmul(x, b.f32(0.5))
    return b.fadd(half, b.fmul(half, erf(b, b.fmul(x, b.f32(0.7071067811865476)))))


# --- sine and cosine ---------------------------------------------------------------------

_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.5703125, 4.837512969970703e-04, 7.549789948768648e-08)
"""pi/2 in parts: times a whole number below 2^13 the first two are exact."""
_SIN_P = (-0.16666655242443085, 0.008332187309861183, -0.000195179003640078)
_COS_P = (0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05)


def _sin_turned(b: MathBuilder[V], x: V, turn: int) -> V:
    """sin(x + turn pi/2)."""
    t = b.fadd(b.fmul(x, b.f32(_TWO_OVER_PI)), b.f32(MAGIC))
    k = b.fsub(t, b.f32(MAGIC))
    r = x
    for part in _HALF_PI:
        r = b.fsub(r, b.fmul(k, b.f32(part)))
    rr = b.fmul(r, r)
    sine = b.fadd(r, b.fmul(b.fmul(r, rr), _horner(b, rr, _SIN_P)))
    cosine = b.fmul(b.fmul(rr, rr), _horner(b, rr, _COS_P))
    cosine = b.fadd(b.fsub(cosine, b.fmul(rr, b.f32(0.5))), b.f32(1.0))
    quadrant = b.iadd(b.bits(t), b.i32(turn)) if turn else b.bits(t)
    odd = b.ieq(b.iand(quadrant, b.i32(1)), b.i32(1))
    sign = b.shl(b.iand(quadrant, b.i32(2)), 30)
    return b.unbits(b.ixor(b.bits(b.select(odd, cosine, sine)), sign))


def sin(b: MathBuilder[V], x: V) -> V:
    """Sine for abs x <= 10000."""
    return _sin_turned(b, x, 0)


def cos(b: MathBuilder[V], x: V) -> V:
    """Cosine for abs x <= 10000."""
    return _sin_turned(b, x, 1)


# --- half precision ----------------------------------------------------------------------


def f16_bits_to_f32(b: MathBuilder[V], i: V) -> V:
    """The f16 in the low 16 bits of an int32 (the rest 0), widened exactly."""
    magnitude = b.iand(i, b.i32(0x7FFF))
    wide = b.iadd(b.shl(magnitude, 13), b.i32(112 << 23))
    tiny = b.bits(b.fmul(b.i2f(magnitude), b.f32(2.0**-24)))
    wide = b.select(b.ilt(magnitude, b.i32(0x0400)), tiny, wide)
    # Inf and NaN: the exponent field becomes all ones.
    wide = b.select(b.igt(magnitude, b.i32(0x7BFF)), b.ior(wide, b.i32(INF_BITS)), wide)
    return b.unbits(b.ior(wide, b.shl(b.iand(i, b.i32(0x8000)), 16)))


def f32_to_f16_bits(b: MathBuilder[V], x: V) -> V:
    """The nearest f16, ties to even, as an int32 in 0..0xFFFF; NaN becomes 0x7E00."""
    bits = b.bits(x)
    magnitude = b.iand(bits, b.i32(MAGNITUDE))
    odd = b.iand(b.lshr(magnitude, 13), b.i32(1))
    rounded = b.iadd(b.iadd(magnitude, b.i32(0x0FFF)), odd)
    normal = b.isub(b.lshr(rounded, 13), b.i32(112 << 10))
    # A unit of the last place of 0.5 is the f16 subnormals' step, so the add rounds.
    shifted = b.bits(b.fadd(b.unbits(magnitude), b.f32(0.5)))
    half = b.select(b.ilt(magnitude, b.i32(0x38800000)), b.isub(shifted, b.i32(0x3F000000)), normal)
    half = b.select(b.igt(magnitude, b.i32(0x477FFFFF)), b.i32(0x7C00), half)
    half = b.select(b.igt(magnitude, b.i32(INF_BITS)), b.i32(0x7E00), half)
    return b.ior(half, b.iand(b.lshr(bits, 16), b.i32(0x8000)))


def bf16_bits_to_f32(b: MathBuilder[V], i: V) -> V:
    """The bf16 in the low 16 bits of an int32, widened exactly."""
    return b.unbits(b.shl(i, 16))


def f32_to_bf16_bits(b: MathBuilder[V], x: V) -> V:
    """The nearest bf16, ties to even, as an int32 in 0..0xFFFF; NaN stays NaN."""
    bits = b.bits(x)
    odd = b.iand(b.lshr(bits, 16), b.i32(1))
    rounded = b.lshr(b.iadd(b.iadd(bits, b.i32(0x7FFF)), odd), 16)
    nan = b.igt(b.iand(bits, b.i32(MAGNITUDE)), b.i32(INF_BITS))
    return b.select(nan, b.ior(b.lshr(bits, 16), b.i32(0x0040)), rounded)
