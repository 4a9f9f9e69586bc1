"""The PTX interpreter notices what a GPU might let pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support import gpu_launch
from support.ptx_interpreter import PtxFault, PtxRunner, parse, run_program

from kinetic.codegen.kernels.builder import F32, U32, Builder, GpuCode, Kernel
from kinetic.codegen.kernels.gpu.attention import Heads, attention_segments
from kinetic.codegen.kernels.gpu.fold import fold
from kinetic.codegen.kernels.gpu.matmul import matmul
from kinetic.codegen.kernels.gpu.quantize import quantize_rows
from kinetic.codegen.targets import ptx
from kinetic.codegen.targets.ptx import PtxBuilder
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat


def launch(body: Callable[[Builder], None], grid: int = 1, size: int = 32) -> np.ndarray:
    """Run a kernel of 32 threads that has a buffer `y`; returns it."""
    y = np.zeros(size, np.uint32)
    PtxRunner().launch(Kernel("faulty", 32, body), (grid, 1, 1), {"y": y}, {})
    return y


def test_a_correct_kernel_passes() -> None:
    def body(k: Builder) -> None:
        y, memory = k.buffer("y", U32), k.shared(U32, 32)
        memory[k.thread()] = k.thread()
        k.barrier()
        fold(k, memory, [k.const(U32, 0)], k.thread(), 32, lambda a, b: a + b)
        y[k.thread()] = memory[0]

    assert (launch(body) == sum(range(32))).all()


def test_a_write_past_a_buffer() -> None:
    def body(k: Builder) -> None:
        k.buffer("y", U32)[k.thread() + 1] = k.thread()

    with pytest.raises(PtxFault, match="outside every buffer"):
        launch(body)


def test_two_threads_that_store_to_one_word() -> None:
    def body(k: Builder) -> None:
        k.buffer("y", U32)[k.thread() >> 1] = k.thread()

    with pytest.raises(PtxFault, match="two threads store"):
        launch(body)


def test_a_read_of_what_nobody_wrote() -> None:
    def body(k: Builder) -> None:
        y, memory = k.buffer("y", U32), k.shared(U32, 64)
        memory[k.thread()] = k.thread()
        k.barrier()
        y[k.thread()] = memory[k.thread() + 1]

    with pytest.raises(PtxFault, match="nobody wrote"):
        launch(body)


def test_a_read_before_the_barrier() -> None:
    def body(k: Builder) -> None:
        y, memory = k.buffer("y", U32), k.shared(U32, 32)
        memory[k.thread()] = k.thread()
        y[k.thread()] = memory[k.thread() ^ 1]

    with pytest.raises(PtxFault, match="read without a barrier"):
        launch(body)


def test_a_write_over_what_another_read() -> None:
    def body(k: Builder) -> None:
        y, memory = k.buffer("y", U32), k.shared(U32, 32)
        memory[k.thread()] = k.thread()
        k.barrier()
        y[k.thread()] = memory[0]
        memory[k.thread()] = k.thread() + 1
        k.barrier()
        y[k.thread()] = memory[k.thread()] + y[k.thread()]

    with pytest.raises(PtxFault, match="write without a barrier after another's read"):
        launch(body)


def test_a_barrier_that_some_threads_skip() -> None:
    def body(k: Builder) -> None:
        y = k.buffer("y", U32)
        with k.if_(k.thread() < 16):
            k.barrier()
            y[k.thread()] = k.thread()

    with pytest.raises(PtxFault, match="never reaches"):
        launch(body)


def test_instructions_outside_the_contract() -> None:
    class Fusing(PtxBuilder):
        def binary(self, op, a, b):  # type: ignore[no-untyped-def]
            return self._intrinsic("llvm.fma.f32", F32, a, b, a)

    def body(k: Builder) -> None:
        y = k.buffer("y", F32)
        y[k.thread()] = k.binary("mul", y[k.thread()], k.const(F32, 3.0))

    code = Fusing(Kernel("fusing", 32, body)).build()
    with pytest.raises(PtxFault, match="not in the contract"):
        run(code, np.zeros(32, np.float32))


def run(code: GpuCode, y: np.ndarray) -> None:
    run_program(parse(code.code.decode()), code, (1, 1, 1), {"y": y}, {})


def test_lines_it_does_not_know() -> None:
    text = ptx.emit(Kernel("empty", 32, lambda k: None)).code.decode()
    with pytest.raises(PtxFault, match="not understood"):
        parse(text.replace("\tret;", "\t???;"))


def test_threads_that_part_meet_again() -> None:
    def body(k: Builder) -> None:
        y, total = k.buffer("y", U32), k.variable(k.const(U32, 0))
        with k.loop(0, k.thread()) as i, k.if_((i & 1).equals(1)):
            total.value = total.value + i
        k.barrier()
        y[k.thread()] = total.value

    expected = [sum(range(1, t, 2)) for t in range(32)]
    assert launch(body).tolist() == expected


class Skipping(PtxBuilder):
    """Leaves out one barrier, by number."""

    def __init__(self, kernel: Kernel, skipped: int) -> None:
        super().__init__(kernel)
        self.barriers = 0
        self._skipped = skipped

    def barrier(self) -> None:
        if self.barriers != self._skipped:
            super().barrier()
        self.barriers += 1


class Sabotaged(PtxRunner):
    """A runner that leaves out one barrier of one kernel."""

    def __init__(self, kernel: Kernel, skipped: int) -> None:
        super().__init__()
        self._target, self._skipped = kernel, skipped

    def code(self, kernel: Kernel) -> GpuCode:
        if kernel is self._target:
            return Skipping(kernel, self._skipped).build()
        return super().code(kernel)


HEADS = Heads(1, 1, 64, 0.125)
Q8_0 = FORMATS["Q8_0"]


def run_quantize(runner: PtxRunner) -> None:
    gpu_launch.quantize(runner, np.ones((2, 256), np.float32), 256)


def run_product(runner: PtxRunner) -> None:
    assert isinstance(Q8_0, BlockFormat)
    raw = np.ones((9, 5, Q8_0.nbytes), np.uint8)
    gpu_launch.product(runner, Q8_0, raw, np.ones((2, 160), np.float32))


def run_attention(runner: PtxRunner) -> None:
    pages = np.ones((3, 1, 64, 64), np.float16)
    table = np.arange(3, dtype=np.uint32)[None]
    cache = gpu_launch.Cache(pages, pages, table, np.array([150], np.uint32))
    gpu_launch.attend(runner, HEADS, cache, np.ones((1, 1, 64), np.float32), None)


# Kernel, a launch of it, and how many of its last barriers order nothing: after the
# product's fold only the thread that made a sum reads it.
CASES = {
    "quantize": (quantize_rows(256), run_quantize, 0),
    "product": (matmul(Q8_0, 1), run_product, 1),  # type: ignore[arg-type]
    "attention": (attention_segments(HEADS), run_attention, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_barrier_of_our_kernels_is_needed(case: str) -> None:
    kernel, go, spare = CASES[case]
    go(Sabotaged(kernel, skipped=-1))
    whole = Skipping(kernel, -1)
    whole.build()
    assert whole.barriers > 2
    for skipped in range(whole.barriers - spare):
        with pytest.raises(PtxFault):
            go(Sabotaged(kernel, skipped))
