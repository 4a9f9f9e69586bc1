"""The text builder of LLVM IR: its values compute what they say, its mistakes are caught."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import TARGETS, target

from kinetic.codegen.kernels.cpu.layout import plane_widths
from kinetic.codegen.kernels.cpu.simd import F32, CpuFunction, load_f16, to_f16
from kinetic.codegen.targets.llvm_ir import Function, Value
from kinetic.codegen.targets.llvm_x86 import (
    CpuTarget,
    assembly,
    compile_object,
    cpu_target,
    host_class,
    link,
    module_text,
)
from kinetic.errors import InternalError, UnsupportedError


def built(chosen: CpuTarget, body: Callable[[CpuFunction], None]) -> Callable[[int, int], None]:
    """A function of two addresses in this process."""
    k = CpuFunction("f", (("ptr", "a"), ("ptr", "b")), chosen)
    body(k)
    k.ret()
    address = link(compile_object(chosen, module_text(chosen, [k])), ["f"])["f"]
    made: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        address
    )
    return made


def call(made: Callable[[int, int], None], a: np.ndarray, b: np.ndarray) -> None:
    made(a.ctypes.data, b.ctypes.data)


@pytest.mark.parametrize("name", TARGETS)
def test_every_f16_widens_and_rounds_back(name: str) -> None:
    """All 65,536 halves, and floats on both sides of every rounding boundary."""

    def body(k: CpuFunction) -> None:
        with k.loop(0, 65536 * 2, 16) as i:
            k.store(load_f16(k, k.arg["a"], i.index), k.arg["b"], i.index << 1)

    def back(k: CpuFunction) -> None:
        with k.loop(0, 65536 * 4, 32) as i:
            half = to_f16(k, k.load(F32, k.arg["a"], i.index))
            k.store(half, k.arg["b"], i.index >> 1)

    halves = np.arange(65536, dtype=np.uint16)
    wide = np.zeros(65536, np.float32)
    call(built(target(name), body), halves, wide)
    expected = halves.view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    assert (wide.view(np.uint32) == expected.view(np.uint32))[~nan].all()
    assert np.isnan(wide[nan]).all()
    rounded = np.zeros(65536, np.uint16)
    run = built(target(name), back)
    with np.errstate(all="ignore"):
        middle = ((wide.astype(np.float64) + np.roll(wide, -1)) / 2).astype(np.float32)
        for x in (wide, middle):
            for y in (x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(0))):
                call(run, y, rounded)
                want = y.astype(np.float16)
                finite = ~np.isnan(want)
                assert (rounded == want.view(np.uint16))[finite].all()
                assert np.isnan(rounded.view(np.float16)[~finite]).all()


@pytest.mark.parametrize("name", TARGETS)
def test_products_and_sums_are_rounded_apart(name: str) -> None:
    """`a * b + c` is never fused, and subnormals stay."""

    def body(k: CpuFunction) -> None:
        a, b, c = (k.load(F32, k.arg["a"], 32 * i) for i in range(3))
        k.store(a * b + c, k.arg["b"])
        k.store(a * b - c, k.arg["b"], 32)

    rng = np.random.default_rng(0)
    run = built(target(name), body)
    for scale in (1.0, 1e-20, 1e-22):
        x = (rng.standard_normal((3, 8)) * scale).astype(np.float32)
        x[2] = -(x[0] * x[1])  # what a fused form would leave is the rounding error
        out = np.zeros((2, 8), np.float32)
        call(run, x, out)
        assert (out[0] == 0).all() and (out[1] == x[0] * x[1] - x[2]).all()


@settings(max_examples=30, deadline=None)
@given(start=st.integers(-5, 20), stop=st.integers(-5, 20), step=st.integers(1, 7))
def test_loops_run_as_pythons_range(start: int, stop: int, step: int) -> None:
    def body(k: CpuFunction) -> None:
        first, last = (k.load("i64", k.arg["a"], 8 * i) for i in range(2))
        with k.loop(first, last, step, carry=[k.const("i64", 0), k.const("i64", 0)]) as i:
            count, total = i.carried
            i.next = [count + 1, total + i.index]
        for at, value in enumerate(i.results):
            k.store(value, k.arg["b"], 8 * at)

    out = np.zeros(2, np.int64)
    call(built(cpu_target(), body), np.array([start, stop], np.int64), out)
    expected = range(start, stop, step)
    assert out.tolist() == [len(expected), sum(expected)]


@settings(max_examples=25, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_float_constants_are_exact(x: float) -> None:
    k = Function("f", ())
    text = k.const("float", x).ref
    assert struct.pack(">d", x).hex() == text.removeprefix("0x").lower()


def test_mistakes_are_named() -> None:
    k = Function("broken", (("i64", "n"), ("float", "x")))
    with pytest.raises(InternalError, match="broken: add of i64 and float"):
        k.binary("add", k.arg["n"], k.arg["x"])
    with (
        pytest.raises(InternalError, match="broken: a loop carries 1 values"),
        k.loop(0, 3, carry=[k.const("i64", 0)]),
    ):
        pass
    bad = Function("bad", ())
    bad.emit("add i64 %nowhere, 1", "i64")
    bad.ret()
    with pytest.raises(InternalError, match=r"(?s)codegen produced bad LLVM IR: .*nowhere"):
        compile_object(cpu_target(), module_text(cpu_target(), [bad]))


def test_text_is_the_same_each_time() -> None:
    def text() -> str:
        k = CpuFunction("f", (("ptr", "a"),), cpu_target())
        with k.loop(0, 10) as i, k.if_(i.index.compare("sgt", 3)):
            k.store(k.splat(k.const("float", 0.1), 8), k.arg["a"])
        return k.ret().text

    assert text() == text()


def test_classes_that_cannot_be() -> None:
    with pytest.raises(UnsupportedError, match="device class cpu-x86_64-avx9 is not known"):
        cpu_target("cpu-x86_64-avx9")
    assert cpu_target().device_class == host_class()
    assert len({target(name).key for name in ("scalar", "maddubs")}) == 2


def test_assembly_shows_the_function() -> None:
    k = CpuFunction("shown", (("ptr", "a"),), cpu_target())
    x: Value = k.load(F32, k.arg["a"])
    k.store(x * x, k.arg["a"])
    k.ret()
    assert "shown:" in assembly(cpu_target(), module_text(cpu_target(), [k]))


@given(st.integers(1, 8))
def test_planes_hold_every_bit_of_a_code_once(bits: int) -> None:
    held = [place + i for width, place in plane_widths(bits) for i in range(width)]
    assert held == list(range(bits))
