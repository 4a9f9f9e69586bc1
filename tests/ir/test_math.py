"""The maths library against float64, with the bounds and costs its table states."""

from __future__ import annotations

import math as libm
import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

_erf = np.vectorize(libm.erf, otypes=[np.float64])
TINY = 2.0**-126


@pytest.fixture(scope="module")
def inputs() -> Floats:
    """2^20 patterns strided through every binary32, dense runs, and the awkward ones."""
    strided = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    runs = [
        np.linspace(-20, 20, 100_001),
        np.linspace(-90, 90, 50_001),
        np.linspace(0.5, 2, 50_001),
    ]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 2.0**-126, 2.0**-149]
    edges = [88.72283, 88.722839, -87.33654, -87.33655, 0.92, 0.41421354, 4.0, 9.25]
    near = np.concatenate([np.nextafter(np.float32(e), np.float32([-1e9, 1e9])) for e in edges])
    dense = np.concatenate([*runs, special, edges, near]).astype(np.float32)
    return np.concatenate([strided, dense])


def exact(f: Callable[[Doubles], Doubles], x: Floats) -> Doubles:
    with np.errstate(all="ignore"):
        return f(x.astype(np.float64))


def run(name: str, x: Floats) -> Floats:
    got = getattr(math, name)(NUMPY, x)
    assert got.dtype == np.float32
    return got


def ulps(got: Floats, want: Doubles) -> Doubles:
    """Distance in units of the last place of `want`; infinities and NaNs must agree."""
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.where(np.abs(want) > 0, np.abs(want), 1.0)))
        unit = 2.0 ** (np.maximum(exponent, -126) - 23)
        distance = np.abs(got.astype(np.float64) - want) / unit
        overflow = np.abs(want) >= 2.0**128 * (1 - 2.0**-25)
        same = (got == np.sign(want) * np.inf) & overflow | np.isnan(got) & np.isnan(want)
        distance = np.where(same, 0.0, np.where(overflow, np.inf, distance))
    return np.where(np.isnan(distance), np.inf, distance)


def flushed(y: Doubles) -> Doubles:
    return np.where(np.abs(y) < TINY, 0.0, y)


def _sigmoid(x: Doubles) -> Doubles:
    return np.where(x < -700, 0.0, 1 / (1 + np.exp(-x)))


BOUNDS: dict[str, tuple[float, Callable[[Doubles], Doubles]]] = {
    "recip": (2, lambda x: 1 / x),
    "rsqrt": (2, lambda x: 1 / np.sqrt(x)),
    "sqrt": (2, np.sqrt),
    "exp": (1, lambda x: flushed(np.exp(x))),
    "log": (1, np.log),
    "sigmoid": (3.5, lambda x: flushed(_sigmoid(x))),
    "silu": (4, lambda x: x * flushed(_sigmoid(x))),
    "tanh": (4, np.tanh),
    "erf": (1.5, _erf),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_error_stays_within_the_stated_bound(name: str, inputs: Floats) -> None:
    bound, reference = BOUNDS[name]
    error = ulps(run(name, inputs), exact(reference, inputs))
    worst = int(error.argmax())
    assert error[worst] <= bound, f"{name}({inputs[worst]!r}) is off by {error[worst]} ulp"


def test_the_table_states_what_is_tested_here() -> None:
    rows = dict(re.findall(r"\| `(\w+)` \| \d+ \| ([\d.]+) \|", math.__doc__ or ""))
    assert {name: float(rows[name]) for name in BOUNDS} == {n: b for n, (b, _) in BOUNDS.items()}


class _Counter:
    """A builder that only counts; constants and bit casts are free."""

    def __init__(self) -> None:
        self.operations = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        def operation(*_: object) -> int:
            self.operations += name not in ("f32", "i32", "bits", "unbits")
            return 0

        return operation


def test_the_table_states_the_true_costs() -> None:
    stated = {}
    for names, costs in re.findall(r"^\| (`[^|]+`) \| ([\d, ]+) \|", math.__doc__ or "", re.M):
        stated |= dict(zip(re.findall(r"`(\w+)`", names), costs.split(", "), strict=True))
    assert len(stated) > 18
    for name, cost in stated.items():
        counter = _Counter()
        getattr(math, name)(counter, 0)
        assert counter.operations == int(cost), name


def test_softplus(inputs: Floats) -> None:
    want = exact(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), inputs)
    got = run("softplus", inputs)
    tail = want < TINY
    assert np.all(got[tail] == 0) or np.all(got[tail & (got != 0)] >= TINY * (1 - 2.0**-23))
    assert ulps(got, want)[~tail].max() <= 2


def test_gelu_tanh(inputs: Floats) -> None:
    x = inputs[np.isfinite(inputs)]
    inner = exact(lambda v: 2 * 0.7978845608028654 * v * (1 + 0.044715 * v * v), x)
    with np.errstate(all="ignore"):
        want = x * _sigmoid(inner)
    got, kept = run("gelu_tanh", x), inner > -87
    relative = np.abs(got - want)[kept] <= np.maximum(4, 2 * np.abs(inner[kept])) * 2.0**-23 * (
        np.abs(want[kept]) + TINY
    )
    overflow = np.isinf(got[kept]) & (want[kept] > 3.4e38)
    assert np.all(relative | overflow)
    assert np.all(np.abs(got[~kept]) < 1e-35)


def test_gelu_erf(inputs: Floats) -> None:
    x = inputs[np.isfinite(inputs)]
    want = exact(lambda v: 0.5 * v * (1 + _erf(v * libm.sqrt(0.5))), x)
    assert np.all(np.abs(run("gelu_erf", x) - want) <= np.abs(x.astype(float)) * 2.0**-23 + 1e-44)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_to_ten_thousand(name: str, inputs: Floats) -> None:
    x = np.concatenate([inputs, np.linspace(-1e4, 1e4, 200_001).astype(np.float32)])
    x = x[np.abs(x) <= 1e4]
    error = np.abs(run(name, x) - exact(getattr(np, name), x))
    assert error.max() < 2.0**-23


def test_softcap_is_the_contracts_expression() -> None:
    x = np.linspace(-200, 200, 4001).astype(np.float32)
    inverse = np.float32(1 / 30)
    want = np.float32(30) * run("tanh", x * inverse)
    assert np.array_equal(math.softcap(NUMPY, x, 30.0, 1 / 30), want)


def test_short_forms_give_the_same_words(inputs: Floats) -> None:
    for short, full, part in (
        ("exp_nonpositive", "exp", ~(inputs > 0)),
        ("recip_mid", "recip", (np.abs(inputs) >= 2.0**-125) & (np.abs(inputs) <= 2.0**125)),
        ("rsqrt_mid", "rsqrt", (inputs >= TINY) & (inputs < np.inf)),
    ):
        assert np.array_equal(run(short, inputs[part]), run(full, inputs[part]), equal_nan=True)


def test_exact_points() -> None:
    powers = (2.0 ** np.arange(-149, 128)).astype(np.float32)
    with np.errstate(over="ignore"):
        assert np.array_equal(run("recip", powers), (1 / powers.astype(float)).astype(np.float32))
    for name, x, y in (
        ("exp", [0.0, -0.0, np.inf, -np.inf], [1.0, 1.0, np.inf, 0.0]),
        ("recip", [np.inf, 1.0], [0.0, 1.0]),
        ("sigmoid", [0.0, np.inf, -np.inf], [0.5, 1.0, 0.0]),
        ("tanh", [np.inf, -np.inf, 1e-40, 20.0], [1.0, -1.0, np.float32(1e-40), 1.0]),
        ("erf", [np.inf, -np.inf, 5.0], [1.0, -1.0, 1.0]),
        ("log", [1.0, 0.0, np.inf], [0.0, -np.inf, np.inf]),
        ("sqrt", [0.0, 1.0, 4.0, np.inf], [0.0, 1.0, 2.0, np.inf]),
        ("cos", [0.0], [1.0]),
    ):
        assert np.array_equal(run(name, np.float32(x)), np.float32(y)), name


def test_zeros_keep_their_sign() -> None:
    zeros = np.float32([0.0, -0.0])
    for name in ("tanh", "erf", "sqrt", "silu", "gelu_tanh"):
        assert np.array_equal(np.signbit(run(name, zeros)), [False, True]), name
    for name in ("recip", "rsqrt"):
        assert np.array_equal(run(name, zeros), [np.inf, -np.inf]), name
    assert np.array_equal(np.signbit(run("recip", np.float32([np.inf, -np.inf]))), [False, True])


def test_nan_of_any_payload_stays_nan() -> None:
    nans = np.uint32([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF]).view(np.float32)
    for name in (*BOUNDS, "softplus", "gelu_tanh", "gelu_erf", "sin", "cos", "exp_nonpositive"):
        assert np.isnan(run(name, nans)).all(), name


def test_f16_is_read_exactly() -> None:
    patterns = np.arange(65536, dtype=np.int32)
    want = patterns.astype(np.uint16).view(np.float16).astype(np.float32)
    got = math.f16_bits_to_f32(NUMPY, patterns)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    assert np.array_equal(got.view(np.int32)[numbers], want.view(np.int32)[numbers])


def test_f16_is_rounded_to_nearest_even(inputs: Floats) -> None:
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    top = np.float32([65519.0, 65519.996, 65520.0, 65536.0])
    x = np.concatenate([inputs, ties, -ties, top])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).view(np.uint16).astype(np.int32)
    want = np.where(np.isnan(x), want & 0x8000 | 0x7E00, want)
    assert np.array_equal(math.f32_to_f16_bits(NUMPY, x), want)


def test_bf16_there_and_back(inputs: Floats) -> None:
    patterns = np.arange(65536, dtype=np.int32)
    wide = math.bf16_bits_to_f32(NUMPY, patterns)
    assert np.array_equal(wide.view(np.uint32), patterns.astype(np.uint32) << 16)
    back = math.f32_to_bf16_bits(NUMPY, wide)
    assert np.array_equal(back[~np.isnan(wide)], patterns[~np.isnan(wide)])
    assert np.isnan(math.bf16_bits_to_f32(NUMPY, back[np.isnan(wide)])).all()
    x = inputs[np.isfinite(inputs) & (np.abs(inputs) < 3e38)]
    near = math.bf16_bits_to_f32(NUMPY, math.f32_to_bf16_bits(NUMPY, x)).astype(float)
    _, exponent = np.frexp(x.astype(float))
    assert np.all(np.abs(near - x) <= 2.0 ** (np.maximum(exponent, -125).astype(float) - 9))
    ties = np.uint32([0x3F808000, 0x3F818000]).view(np.float32)
    assert math.f32_to_bf16_bits(NUMPY, ties).tolist() == [0x3F80, 0x3F82]


def test_rounding_helpers() -> None:
    x = np.float32([0.5, 1.5, -0.5, -2.5, 2.4999, 4194303.5])
    assert math.rne(NUMPY, x).tolist() == [0.0, 2.0, 0.0, -2.0, 2.0, 4194304.0]
    assert math.rne_int(NUMPY, x).tolist() == [0, 2, 0, -2, 2, 4194304]
    one, nan = np.float32([1.0]), np.float32([np.nan])
    assert math.fmax(NUMPY, nan, one)[0] == 1 and np.isnan(math.fmax(NUMPY, one, nan)[0])
    assert math.fneg(NUMPY, np.float32([0.0])).view(np.uint32)[0] == 0x80000000


def test_scalars_and_broadcasting_work_without_warnings() -> None:
    with np.errstate(all="raise"):
        assert math.exp(NUMPY, np.asarray(np.float32(1000.0))) == np.inf
        assert math.recip(NUMPY, np.asarray(np.float32(-0.0))) == -np.inf
