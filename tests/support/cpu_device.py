"""Graphs on the CPU classes, for tests: weights in memory, programs, word comparison."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import AVX2_CLASS, SCALAR_CLASS, CpuTarget, cpu_target
from kinetic.errors import UnsupportedError
from kinetic.ir.cpu_abi import PAGE
from kinetic.ir.graph import CacheSpec, Graph, Meta, Node
from kinetic.ir.ops.spec import Weight
from kinetic.ir.program import Program
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.rows import Rows

Floats = npt.NDArray[np.float32]
TARGETS = ("vnni512", "maddubs", "scalar")
"""Everything that may compute differently: the integer dots of AVX2, and plain x86-64."""
PRODUCT_TARGETS = (*TARGETS, "vnni")
"""The same for products, the only kernels that 256-bit VNNI has a form of its own of."""


@functools.cache
def target(name: str) -> CpuTarget:
    """A target by its test name; the test is skipped where this CPU lacks it."""
    try:
        if name == "scalar":
            return cpu_target(SCALAR_CLASS)
        return cpu_target(AVX2_CLASS, dot=name)
    except UnsupportedError as error:
        pytest.skip(f"{name}: {error}")


def same_words(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> bool:
    """Equal shapes and bits, any NaN being equal to any other."""
    return a.shape == b.shape and bool((canonical(a) == canonical(b)).all())


def canonical(x: npt.NDArray[np.floating]) -> npt.NDArray[np.uint32]:
    """The words of f32 values, with one word for every NaN."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), words)


# -- weights -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Info:
    """What a device asks of a tensor."""

    shape: tuple[int, ...]
    type_id: int


@dataclass
class Memory:
    """A model file that is only in memory: raw blocks by name."""

    tensors: dict[str, Info] = field(default_factory=dict)
    bytes: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def put(self, name: str, fmt: str, shape: tuple[int, ...], raw: npt.NDArray[np.uint8]) -> None:
        """Add a tensor; `raw` is its blocks in the format's bytes."""
        self.tensors[name] = Info(shape, FORMATS[fmt].ggml_id)
        self.bytes[name] = np.ascontiguousarray(raw).reshape(-1)

    def put_floats(self, name: str, values: Floats) -> None:
        """Add an F32 tensor."""
        values = np.ascontiguousarray(values, np.float32)
        self.put(name, "F32", values.shape, values.view(np.uint8))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes."""
        return self.bytes[name]

    def advise_dontneed(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Nothing to let go of."""

    def release(self, name: str) -> None:
        """Nothing to let go of."""

    def weight(self, name: str) -> Weight:
        """A tensor as the reference takes it."""
        info, raw = self.tensors[name], self.bytes[name]
        fmt = next(f for f in FORMATS.values() if f.ggml_id == info.type_id)
        rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        return Weight(fmt, info.shape, raw.reshape(rows, -1))


def random_weights(
    rng: np.random.Generator, name: str, rows: int, columns: int, flavour: str
) -> npt.NDArray[np.uint8]:
    """Raw bytes of a matrix whose scales (or values) are of a kind; see `gpu_inputs`."""
    from support.gpu_inputs import activations, weights

    fmt = FORMATS[name]
    if isinstance(fmt, BlockFormat):
        return weights(rng, fmt, rows, columns // fmt.values, flavour)
    values = activations(rng, rows, columns, "plain" if flavour == "holes" else flavour)
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


# -- graphs --------------------------------------------------------------------------------


def graph_of(outputs: Mapping[str, Node], caches: Mapping[str, CacheSpec] | None = None) -> Graph:
    """A graph that is only its outputs."""
    tokens = Node.make("tokens", name="tokens")
    meta = Meta("test", 4096, 1, 1, 8, 1, 1, 8, dict(caches or {}))
    return Graph((tokens,), dict(outputs), "test", meta)


# -- running ---------------------------------------------------------------------------------


@contextmanager
def device(
    program: Program, memory: Memory, *, threads: int = 2, n_ctx: int = 4096
) -> Iterator[CpuDevice]:
    """The program on its device, with pages for one context."""
    made = CpuDevice(program, memory, threads=threads, n_ctx=n_ctx, n_pages=-(-n_ctx // PAGE))
    try:
        yield made
    finally:
        made.close()


def plain_rows(
    tokens: Sequence[int] | npt.NDArray[np.integer],
    *,
    start: int = 0,
    wanted: Sequence[int] = (),
) -> Rows:
    """Rows of one sequence whose pages lie in order; `wanted` are row numbers."""
    ids = np.asarray(tokens, np.int32)
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    table = np.arange(-(-(start + len(ids)) // PAGE), dtype=np.int32)
    chosen = np.array(wanted, np.int32)
    return Rows(ids, positions, positions.astype(np.int64), [table] * len(ids), chosen)


def outputs(made: CpuDevice, rows: Rows) -> dict[str, Floats]:
    """Every output of one step, copied; those of letter R have a row for each wanted one."""
    made.step(rows)
    counts = {}
    for name in made.program.outputs:
        count = len(rows.wanted) if name.startswith("wanted") else len(rows)
        counts[name] = made.output(name, count).copy()
    return counts


def compile_for(name: str, graph: Graph, cache: object = None, **options: object) -> Program:
    """Compile for a target by its test name; `cache` is a folder for machine code."""
    return compile_graph(graph, target(name), object_cache=cache, **options)  # type: ignore[arg-type]
