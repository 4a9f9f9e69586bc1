"""The core of scheduling: memory, barriers and weights; what each op launches is beside it.

Values live in one arena. A value's memory is free again after its last reader, once a
barrier has passed. A launch needs a barrier before it exactly when it touches memory
that a launch since the last barrier wrote, or writes memory that one read.
Source: linear-scan allocation (Poletto and Sarkar, 1999) over a straight line of code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kinetic.codegen.kernels.cpu.experts import routing_size
from kinetic.codegen.kernels.cpu.layout import packed_size
from kinetic.codegen.kernels.cpu.repack import repack
from kinetic.codegen.kernels.cpu.rows import elementwise
from kinetic.codegen.passes.arena import Arena
from kinetic.codegen.targets.llvm_ir import Function
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.errors import UnsupportedError
from kinetic.ir.cpu_abi import ROWS, act_stride
from kinetic.ir.graph import Graph, Node
from kinetic.ir.program import (
    Arg,
    ArgKind,
    CacheLayout,
    Launch,
    Output,
    PackedWeight,
    RopeTable,
    StateLayout,
    VectorWeight,
)
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import Format
from kinetic.ir.types import QuantType, RoutingType, TensorType, WeightType

_VIEWS = ("split_heads", "merge_heads")

Region = tuple[str, int, int]
"""Memory that a launch touches: (space, from, to)."""


@dataclass
class Schedule:
    """The result: launches and everything that they name."""

    launches: list[Launch]
    packed: dict[str, PackedWeight]
    vectors: dict[str, VectorWeight]
    caches: dict[str, CacheLayout]
    states: dict[str, StateLayout]
    tables: list[RopeTable]
    outputs: dict[str, Output]
    arena_bytes: int
    state_bytes: int
    kernels: dict[str, Callable[[], Sequence[Function]]]
    whole_texts: bool = False
    n_positions: int | None = None


def int_arg(value: int) -> Arg:
    """A number in a launch."""
    return Arg(ArgKind.INT, value)


def float_arg(value: float) -> Arg:
    """An f32 number in a launch."""
    return Arg(ArgKind.FLOAT, float(np.float32(value)))


STEP = Arg(ArgKind.STEP)
"""The step block."""


def weight_format(node: Node) -> Format:
    """The declared format of a weight node."""
    assert isinstance(node.type, WeightType)
    return FORMATS[node.type.format_name]


def row_bytes(node: Node) -> int:
    """Bytes between rows of an f32 value: its width padded to eight floats."""
    assert isinstance(node.type, TensorType | QuantType)
    width = 1
    for extent in node.type.shape[1:]:
        assert isinstance(extent, int)
        width *= extent
    return -(-width // ROWS) * ROWS * 4


def dense_width(node: Node, what: str) -> int:
    """Bytes of a row that vector code reads whole.

    *Raises* `UnsupportedError` where the width is not a multiple of eight.
    """
    assert isinstance(node.type, TensorType | QuantType)
    width = node.type.shape[-1]
    assert isinstance(width, int)
    if width % ROWS:
        raise UnsupportedError(
            f"%{node.name} ({what}) is {width} wide; the CPU kernels need a multiple of {ROWS}"
        )
    return width * 4


Emit = Callable[["Scheduler", Node, int], None]
"""Puts the launches of a node, the index-th of the graph, into the schedule."""

EMITTERS: dict[str, Emit] = {}


_Emit = TypeVar("_Emit", bound=Callable[..., None])


def emits(*ops: str) -> Callable[[_Emit], _Emit]:
    """The decorated function emits the launches of these ops."""

    def register(emit: _Emit) -> _Emit:
        EMITTERS.update(dict.fromkeys(ops, emit))
        return emit

    return register


class Scheduler:
    """One walk over the lowered graph.

    Emitters use, in this order: `order_reads` and `allocate` (or `take_over`), then `launch`;
    `simple` is all three for an op that makes a new value of its inputs.
    """

    def __init__(
        self, graph: Graph, target: CpuTarget, kv_type: str, max_rows: int, max_outputs: int
    ):
        self.graph, self.target, self.kv_type = graph, target, kv_type
        self.limits = {"T": max_rows, "R": max_outputs}
        self.arena = Arena()
        self.place: dict[Node, tuple[int, int]] = {}
        self.out = Schedule([], {}, {}, {}, {}, [], {}, 0, 0, {})
        self._reads: list[Region] = []
        self._writes: list[Region] = []
        self._roots: dict[Node, Node] = {}
        self._last: dict[Node, int] = {}

    def run(self) -> Schedule:
        """The whole schedule."""
        nodes = self.graph.nodes
        for i, node in enumerate(nodes):
            for source in node.sources:
                self._last[self.root(source)] = i
        for node in self.graph.outputs.values():
            self._last[self.root(node)] = len(nodes)
        for i, node in enumerate(nodes):
            emit = EMITTERS.get(node.op)
            if emit is None:
                raise UnsupportedError(f"op {node.op} has no kernel in {self.target.device_class}")
            emit(self, node, i)
            for source in {self.root(s) for s in node.sources}:
                dead = self._last.get(source) == i and source in self.place
                if dead and self.place[source] != self.place.get(self.root(node)):
                    self.arena.release(self.place[source])
        if self.out.launches:
            self.set_barrier()
        for name, node in self.graph.outputs.items():
            assert isinstance(node.type, TensorType) and isinstance(node.type.shape[-1], int)
            offset = self.place[self.root(node)][0]
            self.out.outputs[name] = Output(offset, row_bytes(node), node.type.shape[-1])
        self.out.arena_bytes = self.arena.top
        return self.out

    # -- memory and order ------------------------------------------------------------
    def root(self, node: Node) -> Node:
        """The value whose memory this one is."""
        while node.op in _VIEWS:
            node = node.inputs[0]  # type: ignore[assignment]
        return node

    def buffer(self, node: Node) -> Arg:
        return Arg(ArgKind.BUFFER, self.place[self.root(node)][0])

    def region(self, node: Node) -> Region:
        start, stop = self.place[self.root(node)]
        return ("arena", start, stop)

    def rows_of(self, node: Node) -> str:
        found = node.type
        assert isinstance(found, TensorType | QuantType | RoutingType)
        letter = found.rows if isinstance(found, RoutingType) else found.shape[0]
        assert isinstance(letter, str)
        return letter

    def count(self, node: Node) -> Arg:
        return Arg(ArgKind.COUNT, self.rows_of(node))

    def allocate(self, node: Node) -> None:
        rows = self.limits[self.rows_of(node)]
        if isinstance(node.type, QuantType):
            blocks = row_bytes(node) // 4 // node.type.block
            nbytes = rows * blocks * act_stride(node.type.block)
        elif isinstance(node.type, RoutingType):
            nbytes = routing_size(rows * node.type.used)
        else:
            nbytes = rows * row_bytes(node)
        self.place[node] = self.arena.take(nbytes)

    def set_barrier(self) -> None:
        last = self.out.launches[-1]
        self.out.launches[-1] = Launch(last.kernel, last.args, True, last.node)
        self._reads, self._writes = [], []
        self.arena.barrier()

    @staticmethod
    def overlap(some: list[Region], others: list[Region]) -> bool:
        return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)

    def order_reads(self, reads: list[Region]) -> None:
        """Put a barrier before the next launch if it reads what is being written."""
        if self.overlap(reads, self._writes):
            self.set_barrier()

    def launch(
        self,
        kernel: str,
        args: Sequence[Arg],
        node: Node,
        reads: list[Region],
        writes: list[Region],
    ) -> None:
        if self.overlap(reads, self._writes) or self.overlap(writes, self._reads + self._writes):
            self.set_barrier()
        self.out.launches.append(Launch(kernel, tuple(args), False, node.name))
        self._reads += reads
        self._writes += writes

    def need(self, name: str, make: Callable[[], Sequence[Function]]) -> str:
        self.out.kernels.setdefault(name, make)
        return name

    def simple(
        self, node: Node, index: int, kernel: str, args: Callable[[], Sequence[Arg]]
    ) -> None:
        """A launch that reads its f32 inputs and writes one new value."""
        inputs = [s for s in node.sources if self.root(s) in self.place]
        reads = [self.region(s) for s in inputs]
        self.order_reads(reads)
        self.allocate(node)
        self.launch(kernel, args(), node, reads, [self.region(node)])

    # -- weights -----------------------------------------------------------------------
    def key(self, node: Node) -> tuple[str, str, tuple[int, int]]:
        """Key, tensor and row range of a weight node."""
        name, shape = node.get("name", str), node.attrs["shape"]
        assert isinstance(shape, tuple) and isinstance(shape[0], int)
        rows: Any = node.attrs["rows"] or (0, shape[0])
        suffix = "" if node.attrs["rows"] is None else f"[{rows[0]}:{rows[0] + rows[1]}]"
        part: Any = node.attrs["part"]
        suffix += "" if part is None else f"[:, {part[0]}:{part[0] + part[1]}]"
        return name + suffix, name, rows

    def vector(self, node: Node | None, *, transposed: bool = False) -> Arg:
        if node is None:
            return int_arg(0)
        key, tensor, rows = self.key(node)
        if transposed:
            key += " transposed"
        self.out.vectors.setdefault(key, VectorWeight(key, tensor, rows, transposed))
        return Arg(ArgKind.VECTOR, key)

    def matrix(self, node: Node) -> Arg:
        key, tensor, rows = self.key(node)
        if key not in self.out.packed:
            fmt = weight_format(node)
            assert isinstance(node.type, WeightType)
            columns = node.type.shape[1]
            target = self.target
            kernel = self.need(f"repack_{fmt.name.lower()}", lambda: repack(fmt, target))
            size = packed_size(fmt, rows[1], columns)
            self.out.packed[key] = PackedWeight(key, tensor, fmt.name, rows, columns, size, kernel)
        return Arg(ArgKind.PACKED, key)

    def is_free(self, source: Node, index: int, others: Sequence[Node]) -> bool:
        """Whether the launch of node `index` may write over `source`: nobody reads it later,
        nor does the launch itself as one of its other inputs."""
        root = self.root(source)
        return self._last[root] == index and root not in [self.root(o) for o in others]

    def take_over(self, node: Node, source: Node, index: int, others: Sequence[Node]) -> None:
        """Let `node` live where `source` does, or in a copy if `source` is still needed."""
        if self.is_free(source, index, others):
            self.place[node] = self.place[self.root(source)]
        else:
            self.place[node] = self.copy(node, source)

    def copy(self, node: Node, source: Node) -> tuple[int, int]:
        """Copy `source` for the use of `node`; where the copy lies."""
        kernel = self.need("map_copy", lambda: [elementwise(self.target, "copy")])
        reads = [self.region(source)]
        self.order_reads(reads)
        span = self.arena.take(self.limits[self.rows_of(source)] * row_bytes(source))
        buffer, copy = self.buffer(source), Arg(ArgKind.BUFFER, span[0])
        zero = float_arg(0.0)
        args = [buffer, buffer, copy, int_arg(row_bytes(source)), zero, zero, self.count(source)]
        self.launch(kernel, args, node, reads, [("arena", *span)])
        return span
