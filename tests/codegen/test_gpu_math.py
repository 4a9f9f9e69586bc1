"""`kinetic.ir.math` expands to the same words on the GPU targets as in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from support.gpu_arguments import Runner
from support.gpu_launch import RUNNERS, find_runner
from support.gpu_reference import same_words

from kinetic.codegen.kernels.builder import F32, I32, U16, U32, Builder, Kernel, Value
from kinetic.codegen.kernels.math_words import MathWords
from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY

WORKGROUP = 64
FUNCTIONS = (
    *("recip", "recip_mid", "rsqrt", "sqrt", "exp", "exp_nonpositive", "log", "sigmoid"),
    *("silu", "tanh", "gelu_tanh", "erf", "gelu_erf", "softplus", "sin", "cos"),
)


@pytest.fixture(params=RUNNERS)
def gpu(request: pytest.FixtureRequest) -> Runner:
    return find_runner(request.param)


def over_all(name: str, write: Callable[[Builder, Value], None]) -> Kernel:
    """A kernel that calls `write` with the number of each element."""

    def body(k: Builder) -> None:
        write(k, k.group(0) * WORKGROUP + k.thread())

    return Kernel(name, WORKGROUP, body)


@cache
def unary(name: str) -> Kernel:
    function = getattr(math, name)

    def write(k: Builder, i: Value) -> None:
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        y[i] = function(MathWords(k), x[i])

    return over_all(f"math_{name}", write)


def patterns() -> np.ndarray:
    """Floats of every exponent and sign, the special ones among them."""
    strided = np.arange(0, 2**32, 2**20 - 3, dtype=np.uint64).astype(np.uint32)
    special = np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000], np.uint32)
    bits = np.concatenate([strided, special, special | np.uint32(2**31), [np.uint32(0x7FC00000)]])
    bits = np.resize(bits, -(-len(bits) // WORKGROUP) * WORKGROUP).astype(np.uint32)
    return bits.view(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_numpys(gpu: Runner, name: str) -> None:
    x = patterns()
    y = np.zeros_like(x)
    gpu.launch(unary(name), (len(x) // WORKGROUP, 1, 1), {"x": x, "y": y}, {})
    assert same_words(y, np.asarray(getattr(math, name)(NUMPY, x), np.float32))


@cache
def basic_operations() -> Kernel:
    def write(k: Builder, i: Value) -> None:
        a, b = k.buffer("a", F32)[i], k.buffer("b", F32)[i]
        for name, result in {
            "sum": a + b,
            "difference": a - b,
            "product": a * b,
            "not_fused": a * b + a,
            "largest": k.maximum(a, b),
            "whole": a.as_type(I32).to_float(),
            "unsigned": a.as_type(U32).to_float(),
        }.items():
            k.buffer(name, F32)[i] = result

    return over_all("basic_operations", write)


def test_basic_operations_round_once_and_keep_subnormals(gpu: Runner) -> None:
    rng = np.random.default_rng(0)
    a = patterns()
    b = rng.permutation(a)
    out = {
        name: np.zeros_like(a)
        for name in ["sum", "difference", "product", "not_fused", "largest", "whole", "unsigned"]
    }
    gpu.launch(basic_operations(), (len(a) // WORKGROUP, 1, 1), {"a": a, "b": b, **out}, {})
    with np.errstate(all="ignore"):
        assert same_words(out["sum"], a + b)
        assert same_words(out["difference"], a - b)
        assert same_words(out["product"], a * b)
        assert same_words(out["not_fused"], a * b + a)
        assert same_words(out["largest"], np.where(a > b, a, b))
    assert same_words(out["whole"], a.view(np.int32).astype(np.float32))
    assert same_words(out["unsigned"], a.view(np.uint32).astype(np.float32))


@cache
def widen() -> Kernel:
    def write(k: Builder, i: Value) -> None:
        half, y = k.buffer("half", U16), k.buffer("y", F32)
        y[i] = k.half_to_float(half[i])

    return over_all("widen", write)


def test_every_half_widens_exactly(gpu: Runner) -> None:
    half = np.arange(2**16, dtype=np.uint16)
    y = np.zeros(len(half), np.float32)
    gpu.launch(widen(), (len(half) // WORKGROUP, 1, 1), {"half": half, "y": y}, {})
    assert same_words(y, half.view(np.float16).astype(np.float32))


@cache
def dots() -> Kernel:
    def write(k: Builder, i: Value) -> None:
        a, b, y = k.buffer("a", U32), k.buffer("b", U32), k.buffer("y", I32)
        y[i] = k.dot4(a[i], b[i], i.as_type(I32) - 7)

    return over_all("dots", write)


def test_dot4_takes_signed_bytes(gpu: Runner) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-128, 128, (2, 128, 4)).astype(np.int8)
    a[0], b[0] = -128, -128
    y = np.zeros(128, np.int32)
    gpu.launch(dots(), (2, 1, 1), {"a": a, "b": b, "y": y}, {})
    expected = (a.astype(np.int32) * b).sum(-1) + np.arange(128) - 7
    assert (y == expected).all()


@cache
def integers() -> Kernel:
    def write(k: Builder, i: Value) -> None:
        a, b = k.buffer("a", U32)[i], k.buffer("b", U32)[i]
        signed_a, signed_b = a.as_type(I32), b.as_type(I32)
        one, none = k.const(U32, 1), k.const(U32, 0)
        flags = none
        for bit, test in enumerate(
            (a < b, a <= b, a > b, a >= b, a.equals(b), signed_a < signed_b, signed_a >= signed_b)
        ):
            flags = flags | (k.select(test, one, none) << bit)
        k.buffer("flags", U32)[i] = flags
        k.buffer("mixed", U32)[i] = ((a * b) ^ (a >> 5)) + (b // 12)
        k.buffer("signed", I32)[i] = (signed_a >> 5) - signed_b
        k.buffer("narrow", U16)[i] = a

    return over_all("integers", write)


def test_integers_compare_and_shift_by_their_signedness(gpu: Runner) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2**32, (2, 64)).astype(np.uint32)
    a[:8] = b[:8]
    flags, mixed = np.zeros_like(a), np.zeros_like(a)
    signed, narrow = np.zeros(64, np.int32), np.zeros(64, np.uint16)
    out = {"flags": flags, "mixed": mixed, "signed": signed, "narrow": narrow}
    gpu.launch(integers(), (1, 1, 1), {"a": a, "b": b, **out}, {})
    sa, sb = a.view(np.int32), b.view(np.int32)
    tests = (a < b, a <= b, a > b, a >= b, a == b, sa < sb, sa >= sb)
    assert (flags == sum(t.astype(np.uint32) << n for n, t in enumerate(tests))).all()
    assert (mixed == ((a * b) ^ (a >> 5)) + b // 12).all()
    assert (signed == (sa >> 5) - sb).all()
    assert (narrow == a.astype(np.uint16)).all()
