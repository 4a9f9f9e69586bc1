"""Scheduling: the lowered graph as kernel launches, with barriers and a memory plan.

Values live in one arena. A value's memory is free again after its last reader, once a
barrier has passed. A launch needs a barrier before it exactly when it touches memory
that a launch since the last barrier wrote, or writes memory that one read.
Source: linear-scan allocation (Poletto and Sarkar, 1999) over a straight line of code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetic.codegen.kernels.cpu import rows as row_kernels
from kinetic.codegen.kernels.cpu.attention import (
    HeadShape,
    Rotation,
    attention,
    rope_write,
    rope_write_name,
)
from kinetic.codegen.kernels.cpu.experts import (
    MAX_EXPERTS,
    RouteShape,
    expert_glu,
    expert_matmul,
    expert_rows,
    expert_sum,
    route,
    routing_size,
)
from kinetic.codegen.kernels.cpu.layout import packed_size
from kinetic.codegen.kernels.cpu.matmul import Epilogue, matmul
from kinetic.codegen.kernels.cpu.matmul_float import matmul_float
from kinetic.codegen.kernels.cpu.repack import repack
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
    VectorWeight,
)
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat, FloatFormat, Format
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
    tables: list[RopeTable]
    outputs: dict[str, Output]
    arena_bytes: int
    state_bytes: int
    kernels: dict[str, Callable[[], Sequence[Function]]]


def _int(value: int) -> Arg:
    return Arg(ArgKind.INT, value)


def _float(value: float) -> Arg:
    return Arg(ArgKind.FLOAT, float(np.float32(value)))


_STEP = Arg(ArgKind.STEP)


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


def _dense(node: Node, what: str) -> int:
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


class Scheduler:
    """One walk over the lowered graph."""

    def __init__(
        self, graph: Graph, target: CpuTarget, kv_type: str, max_rows: int, max_outputs: int
    ):
        self.graph, self.target, self.kv_type = graph, target, kv_type
        self.limits = {"T": max_rows, "R": max_outputs}
        self.arena = Arena()
        self.place: dict[Node, tuple[int, int]] = {}
        self.out = Schedule([], {}, {}, {}, [], {}, 0, 0, {})
        self._reads: list[Region] = []
        self._writes: list[Region] = []
        self._roots: dict[Node, Node] = {}
        self._last: dict[Node, int] = {}

    def run(self) -> Schedule:
        """The whole schedule."""
        nodes = self.graph.nodes
        for i, node in enumerate(nodes):
            for source in node.sources:
                self._last[self._root(source)] = i
        for node in self.graph.outputs.values():
            self._last[self._root(node)] = len(nodes)
        for i, node in enumerate(nodes):
            emit = getattr(self, f"_{node.op}", None)
            if emit is None:
                raise UnsupportedError(f"op {node.op} has no kernel in {self.target.device_class}")
            emit(node, i)
            for source in {self._root(s) for s in node.sources}:
                dead = self._last.get(source) == i and source in self.place
                if dead and self.place[source] != self.place.get(self._root(node)):
                    self.arena.release(self.place[source])
        if self.out.launches:
            self._set_barrier()
        for name, node in self.graph.outputs.items():
            assert isinstance(node.type, TensorType) and isinstance(node.type.shape[-1], int)
            offset = self.place[self._root(node)][0]
            self.out.outputs[name] = Output(offset, row_bytes(node), node.type.shape[-1])
        self.out.arena_bytes = self.arena.top
        return self.out

    # -- memory and order ------------------------------------------------------------
    def _root(self, node: Node) -> Node:
        """The value whose memory this one is."""
        while node.op in _VIEWS:
            node = node.inputs[0]  # type: ignore[assignment]
        return node

    def _buffer(self, node: Node) -> Arg:
        return Arg(ArgKind.BUFFER, self.place[self._root(node)][0])

    def _region(self, node: Node) -> Region:
        start, stop = self.place[self._root(node)]
        return ("arena", start, stop)

    def _rows_of(self, node: Node) -> str:
        found = node.type
        assert isinstance(found, TensorType | QuantType | RoutingType)
        letter = found.rows if isinstance(found, RoutingType) else found.shape[0]
        assert isinstance(letter, str)
        return letter

    def _count(self, node: Node) -> Arg:
        return Arg(ArgKind.COUNT, self._rows_of(node))

    def _allocate(self, node: Node) -> None:
        rows = self.limits[self._rows_of(node)]
        if isinstance(node.type, QuantType):
            blocks = row_bytes(node) // 4 // node.type.block
            nbytes = rows * blocks * act_stride(node.type.block)
        elif isinstance(node.type, RoutingType):
            nbytes = routing_size(rows * node.type.used)
        else:
            nbytes = rows * row_bytes(node)
        self.place[node] = self.arena.take(nbytes)

    def _set_barrier(self) -> None:
        last = self.out.launches[-1]
        self.out.launches[-1] = Launch(last.kernel, last.args, True, last.node)
        self._reads, self._writes = [], []
        self.arena.barrier()

    @staticmethod
    def _overlap(some: list[Region], others: list[Region]) -> bool:
        return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)

    def _order_reads(self, reads: list[Region]) -> None:
        """Put a barrier before the next launch if it reads what is being written."""
        if self._overlap(reads, self._writes):
            self._set_barrier()

    def _launch(
        self,
        kernel: str,
        args: Sequence[Arg],
        node: Node,
        reads: list[Region],
        writes: list[Region],
    ) -> None:
        if self._overlap(reads, self._writes) or self._overlap(writes, self._reads + self._writes):
            self._set_barrier()
        self.out.launches.append(Launch(kernel, tuple(args), False, node.name))
        self._reads += reads
        self._writes += writes

    def _need(self, name: str, make: Callable[[], Sequence[Function]]) -> str:
        self.out.kernels.setdefault(name, make)
        return name

    def _simple(
        self, node: Node, index: int, kernel: str, args: Callable[[], Sequence[Arg]]
    ) -> None:
        """A launch that reads its f32 inputs and writes one new value."""
        inputs = [s for s in node.sources if self._root(s) in self.place]
        reads = [self._region(s) for s in inputs]
        self._order_reads(reads)
        self._allocate(node)
        self._launch(kernel, args(), node, reads, [self._region(node)])

    # -- weights -----------------------------------------------------------------------
    def _key(self, node: Node) -> tuple[str, str, tuple[int, int]]:
        """Key, tensor and row range of a weight node."""
        name, shape = node.get("name", str), node.attrs["shape"]
        assert isinstance(shape, tuple) and isinstance(shape[0], int)
        rows: Any = node.attrs["rows"] or (0, shape[0])
        suffix = "" if node.attrs["rows"] is None else f"[{rows[0]}:{rows[0] + rows[1]}]"
        return name + suffix, name, rows

    def _vector(self, node: Node | None) -> Arg:
        if node is None:
            return _int(0)
        key, tensor, rows = self._key(node)
        self.out.vectors.setdefault(key, VectorWeight(key, tensor, rows))
        return Arg(ArgKind.VECTOR, key)

    def _matrix(self, node: Node) -> Arg:
        key, tensor, rows = self._key(node)
        if key not in self.out.packed:
            fmt = weight_format(node)
            assert isinstance(node.type, WeightType)
            columns = node.type.shape[1]
            target = self.target
            kernel = self._need(f"repack_{fmt.name.lower()}", lambda: repack(fmt, target))
            size = packed_size(fmt, rows[1], columns)
            self.out.packed[key] = PackedWeight(key, tensor, fmt.name, rows, columns, size, kernel)
        return Arg(ArgKind.PACKED, key)

    # -- ops -----------------------------------------------------------------------------
    def _tokens(self, node: Node, index: int) -> None:
        """Token ids are in the step block."""

    _weight = _tokens
    _split_heads = _merge_heads = _tokens

    def _embed(self, node: Node, index: int) -> None:
        table = node.arg("W")
        fmt = weight_format(table)
        assert isinstance(table.type, WeightType)
        columns = table.type.shape[1]
        kernel = self._need(
            f"embed_{fmt.name.lower()}", lambda: [row_kernels.embed(self.target, fmt)]
        )
        row = columns // fmt.values * fmt.nbytes
        raw = Arg(ArgKind.RAW, table.get("name", str))
        _dense(node, "the embedding")
        self._simple(
            node,
            index,
            kernel,
            lambda: [raw, _int(row), self._buffer(node), _int(columns), _STEP],
        )

    def _map(self, node: Node, index: int, constant: float = 0.0, inverse: float = 0.0) -> None:
        op = node.op
        kernel = self._need(f"map_{op}", lambda: [row_kernels.elementwise(self.target, op)])
        values = [s for s in node.sources if self._root(s) in self.place]
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                self._buffer(values[0]),
                self._buffer(values[-1]),
                self._buffer(node),
                _int(row_bytes(node)),
                _float(constant),
                _float(inverse),
                self._count(node),
            ],
        )

    _add = _mul = _silu = _gelu_tanh = _map

    def _scale(self, node: Node, index: int) -> None:
        self._map(node, index, node.get("value", float))

    def _softcap(self, node: Node, index: int) -> None:
        cap = node.get("cap", float)
        self._map(node, index, cap, 1 / cap)

    def _rms_norm(self, node: Node, index: int) -> None:
        self._norm(node, index, None)

    def _norm_quantize(self, node: Node, index: int) -> None:
        self._norm(node, index, node.get("block", int))

    def _norm(self, node: Node, index: int, block: int | None) -> None:
        x, w = node.arg("x"), node.maybe("w")
        assert isinstance(x.type, TensorType)
        weighted, target = w is not None, self.target
        heads = x.type.shape[1] if len(x.type.shape) == 3 else None
        assert heads is None or isinstance(heads, int)
        options = [] if heads is None else [_int(heads)]
        kernel = self._need(
            row_kernels.norm_name(weighted=weighted, block=block, heads=bool(options)),
            lambda: [row_kernels.norm(target, weighted=weighted, block=block, heads=bool(options))],
        )
        width = _dense(x, "a norm's input")
        weights = self._vector(w)
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                self._buffer(x),
                weights,
                self._buffer(node),
                _int(width),
                _float(1 / (width // 4)),
                _float(node.get("eps", float)),
                self._count(node),
                *options,
            ],
        )

    def _quantize(self, node: Node, index: int) -> None:
        block = node.get("block", int)
        kernel = self._need(f"quantize_{block}", lambda: [row_kernels.quantize(self.target, block)])
        x = node.arg("x")
        width = _dense(x, "a product's input")
        self._simple(
            node,
            index,
            kernel,
            lambda: [self._buffer(x), self._buffer(node), _int(width), self._count(node)],
        )

    def _glu(self, node: Node, index: int, block: int | None = None) -> None:
        act = node.get("act", str)
        name = f"glu_{act}" + (f"_quantize_{block}" if block else "")
        kernel = self._need(name, lambda: [row_kernels.glu(self.target, act, block)])
        gate, up = node.arg("gate"), node.arg("up")
        width = _dense(gate, "a gate")
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                self._buffer(gate),
                self._buffer(up),
                self._buffer(node),
                _int(width),
                self._count(node),
            ],
        )

    def _glu_quantize(self, node: Node, index: int) -> None:
        self._glu(node, index, node.get("block", int))

    def _take_outputs(self, node: Node, index: int) -> None:
        kernel = self._need("take_outputs", lambda: [row_kernels.take_outputs(self.target)])
        x = node.arg("x")
        width = _dense(x, "the outputs")
        self._simple(
            node,
            index,
            kernel,
            lambda: [self._buffer(x), self._buffer(node), _int(width), _STEP],
        )

    def _matmul(self, node: Node, index: int) -> None:
        x, weight = node.arg("x"), node.arg("W")
        bias, residual = node.maybe("bias"), node.maybe("residual")
        fmt, target = weight_format(weight), self.target
        epilogue = Epilogue(bias is not None, residual is not None)
        assert isinstance(weight.type, WeightType)
        rows, columns = weight.type.shape
        if isinstance(fmt, BlockFormat):
            kernel = self._need(
                f"matmul_{fmt.name.lower()}{epilogue.suffix}",
                lambda: matmul(fmt, target, epilogue),
            )
            inner = columns // fmt.block
        else:
            _dense(x, "a product's input")
            assert isinstance(fmt, FloatFormat)
            kernel = self._need(
                f"matmul_{fmt.name.lower()}{epilogue.suffix}",
                lambda: matmul_float(fmt, target, epilogue),
            )
            inner = columns
        groups = -(-rows // ROWS)
        matrix, bias_arg = self._matrix(weight), self._vector(bias)
        reads = [self._region(x)]
        self._order_reads(reads)
        if residual is None:
            self._allocate(node)
        else:
            self._take_over(node, residual, index, [x])
        self._launch(
            kernel,
            [
                matrix,
                self._buffer(x),
                self._buffer(node),
                bias_arg,
                _int(inner),
                _int(groups),
                self._count(node),
                Arg(ArgKind.CHUNK, groups),
                _int(row_bytes(node)),
            ],
            node,
            reads,
            [self._region(node)],
        )

    def _is_free(self, source: Node, index: int, others: Sequence[Node]) -> bool:
        """Whether the launch of node `index` may write over `source`: nobody reads it later,
        nor does the launch itself as one of its other inputs."""
        root = self._root(source)
        return self._last[root] == index and root not in [self._root(o) for o in others]

    def _take_over(self, node: Node, source: Node, index: int, others: Sequence[Node]) -> None:
        """Let `node` live where `source` does, or in a copy if `source` is still needed."""
        if self._is_free(source, index, others):
            self.place[node] = self.place[self._root(source)]
        else:
            self.place[node] = self._copy(node, source)

    def _copy(self, node: Node, source: Node) -> tuple[int, int]:
        """Copy `source` for the use of `node`; where the copy lies."""
        kernel = self._need("map_copy", lambda: [row_kernels.elementwise(self.target, "copy")])
        reads = [self._region(source)]
        self._order_reads(reads)
        span = self.arena.take(self.limits[self._rows_of(source)] * row_bytes(source))
        buffer, copy = self._buffer(source), Arg(ArgKind.BUFFER, span[0])
        zero = _float(0.0)
        args = [buffer, buffer, copy, _int(row_bytes(source)), zero, zero, self._count(source)]
        self._launch(kernel, args, node, reads, [("arena", *span)])
        return span

    # -- experts ---------------------------------------------------------------------------
    def _route(self, node: Node, index: int) -> None:
        logits, found, target = node.arg("logits"), node.type, self.target
        assert isinstance(found, RoutingType)
        experts, bias = found.experts, node.maybe("select_bias")
        if experts > MAX_EXPERTS:
            raise UnsupportedError(
                f"%{node.name} chooses among {experts} experts; the CPU kernels take at most "
                f"{MAX_EXPERTS}"
            )
        norm, kind = node.get("norm_weights", bool), node.get("router", str)
        scale = node.get("weight_scale", float)
        shape = RouteShape(found.used, experts, norm, kind, bias is not None, scale != 1)
        kernel = self._need(shape.name, lambda: [route(target, shape)])
        options = [self._vector(bias)] if shape.biased else []
        options += [_float(scale)] if shape.scaled else []
        stride = _int(row_bytes(logits))
        self._simple(
            node,
            index,
            kernel,
            lambda: [self._buffer(logits), self._buffer(node), stride, self._count(node), *options],
        )

    def _expert_rows(self, node: Node, index: int) -> None:
        x, target = node.arg("x"), self.target
        block = x.type.block if isinstance(x.type, QuantType) else None
        kernel = self._need(
            "expert_rows" + (f"_{block}" if block else ""), lambda: [expert_rows(target, block)]
        )
        blocks = _dense(x, "rows of experts") // 4 // (block or ROWS)
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                self._buffer(x),
                self._buffer(node),
                self._buffer(node.arg("routing")),
                _int(blocks),
                self._count(x),
            ],
        )

    def _expert_matmul(self, node: Node, index: int) -> None:
        x, weight, routing = node.arg("x"), node.arg("W"), node.arg("routing")
        fmt, target = weight_format(weight), self.target
        assert isinstance(weight.type, WeightType) and isinstance(routing.type, RoutingType)
        rows, columns = weight.type.shape[1:]
        used = routing.type.used
        kernel = self._need(f"expert_matmul_{fmt.name.lower()}", lambda: expert_matmul(fmt, target))
        act_row, inner = _dense(x, "a product's input"), columns
        if isinstance(fmt, BlockFormat):
            inner = columns // fmt.block
            act_row = inner * act_stride(fmt.block)
        matrix, groups = self._expert_matrices(weight), rows // ROWS
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                matrix,
                self._buffer(x),
                self._buffer(node),
                self._buffer(routing),
                _int(inner),
                _int(groups),
                Arg(ArgKind.CHUNK, groups * used),
                _int(packed_size(fmt, rows, columns)),
                _int(act_row),
                _int(4 * rows),
            ],
        )

    def _expert_matrices(self, node: Node) -> Arg:
        """The experts' matrices, packed one after the other as if they were one."""
        key, tensor, (start, experts) = self._key(node)
        assert isinstance(node.type, WeightType)
        rows, columns = node.type.shape[1:]
        if rows % ROWS:
            raise UnsupportedError(
                f"tensor {tensor} has {rows} outputs an expert; the CPU kernels need a multiple "
                f"of {ROWS}"
            )
        if key not in self.out.packed:
            fmt, target = weight_format(node), self.target
            kernel = self._need(f"repack_{fmt.name.lower()}", lambda: repack(fmt, target))
            size, span = packed_size(fmt, experts * rows, columns), (start * rows, experts * rows)
            self.out.packed[key] = PackedWeight(key, tensor, fmt.name, span, columns, size, kernel)
        return Arg(ArgKind.PACKED, key)

    def _expert_glu(self, node: Node, index: int) -> None:
        act, block, target = node.get("act", str), node.optional("block", int), self.target
        kernel = self._need(
            f"expert_glu_{act}" + (f"_quantize_{block}" if block else ""),
            lambda: [expert_glu(target, act, block)],
        )
        inputs = [node.arg(name) for name in ("gate", "up")]
        width = _int(_dense(inputs[0], "a gate"))
        self._simple(
            node,
            index,
            kernel,
            lambda: [
                *(self._buffer(i) for i in inputs),
                self._buffer(node),
                self._buffer(node.arg("routing")),
                width,
            ],
        )

    def _expert_sum(self, node: Node, index: int) -> None:
        y, routing, residual = node.arg("y"), node.arg("routing"), node.maybe("residual")
        joined, target = residual is not None, self.target
        assert isinstance(routing.type, RoutingType)
        kernel = self._need(
            "expert_sum" + ("_add" if joined else ""),
            lambda: [expert_sum(target, residual=joined)],
        )
        width = _dense(y, "a sum of experts")
        reads = [self._region(y), self._region(routing)]
        self._order_reads(reads)
        if residual is None:
            self._allocate(node)
        else:
            self._take_over(node, residual, index, [y])
        args = [self._buffer(y), self._buffer(routing), self._buffer(node)]
        args += [_int(width // 32), _int(routing.type.used), self._count(node)]
        self._launch(kernel, args, node, reads, [self._region(node)])

    # -- attention -------------------------------------------------------------------------
    def _cache(self, name: str) -> CacheLayout:
        """The layout of a cache, declared on first use."""
        if name not in self.out.caches:
            spec = self.graph.meta.caches[name]
            if spec.kind != "attention" or spec.k != spec.v:
                raise UnsupportedError(
                    f"cache {name}: keys {spec.k} wide and values {spec.v} wide have no kernel "
                    f"in {self.target.device_class}"
                )
            shape = HeadShape(spec.k, 1, self._kv_bytes)
            self.out.caches[name] = CacheLayout(
                spec.heads, spec.k, spec.heads * shape.page_bytes, spec.window
            )
        return self.out.caches[name]

    @property
    def _kv_bytes(self) -> int:
        return 2 if self.kv_type == "f16" else 4

    def _head_shape(self, q: Node, cache: CacheLayout, softcap: bool = False) -> HeadShape:
        assert isinstance(q.type, TensorType)
        heads, width = q.type.shape[1:]
        assert isinstance(heads, int) and isinstance(width, int)
        if width % ROWS:
            raise UnsupportedError(
                f"%{q.name}: heads of {width} channels; the CPU kernels need a multiple of {ROWS}"
            )
        return HeadShape(width, heads // cache.heads, self._kv_bytes, softcap)

    def _rope_write(self, node: Node, index: int) -> None:
        q, k, v = (node.arg(n) for n in "qkv")
        name = node.get("cache", str)
        cache = self._cache(name)
        shape = self._head_shape(q, cache)
        last = node.get("norm_last", bool)
        turn = Rotation(node.get("kind", str), node.get("rot", int), last)
        q_norm, k_norm = node.maybe("q_norm"), node.maybe("k_norm")
        normed, target = q_norm is not None, self.target
        kernel = self._need(
            rope_write_name(shape, turn, normed=normed),
            lambda: [rope_write(target, shape, turn, normed=normed)],
        )
        cos, sin = self._table(node)
        reads = [self._region(s) for s in (q, k, v)]
        self._order_reads(reads)
        self._take_over(node, q, index, [k, v])
        # Keys are turned where they lie.
        owned = self._is_free(k, index, [q, v])
        turned = self.place[self._root(k)] if owned else self._copy(node, k)
        pages: Region = (f"cache {name}", 0, 1)
        self._launch(
            kernel,
            [
                self._buffer(node),
                Arg(ArgKind.BUFFER, turned[0]),
                self._buffer(v),
                cos,
                sin,
                Arg(ArgKind.CACHE_K, name),
                Arg(ArgKind.CACHE_V, name),
                _int(cache.page_bytes),
                self._vector(q_norm),
                self._vector(k_norm),
                _float(node.get("eps", float)),
                _int(shape.shared * cache.heads),
                _int(cache.heads),
                _STEP,
            ],
            node,
            reads,
            [self._region(node), ("arena", *turned), pages],
        )
        if not owned:
            self.arena.release(turned)

    def _table(self, node: Node) -> tuple[Arg, Arg]:
        """The rope table of a node, shared by all that ask for the same angles."""
        if node.get("kind", str) == "none":
            return _int(0), _int(0)
        names = ("rot", "base", "scaling", "factor", "n_ctx_orig", "attn_factor")
        factors = node.maybe("factors")
        table = RopeTable(
            tuple((n, node.attrs[n]) for n in names),
            None if factors is None else factors.get("name", str),
        )
        if table not in self.out.tables:
            self.out.tables.append(table)
        number = self.out.tables.index(table)
        return Arg(ArgKind.COS, number), Arg(ArgKind.SIN, number)

    def _attend(self, node: Node, index: int) -> None:
        q = node.arg("q")
        name = node.get("cache", str)
        cache, cap = self._cache(name), node.optional("softcap", float)
        shape, target = self._head_shape(q, cache, cap is not None), self.target
        for kernel in ("attend", "attend_merge"):
            self._need(f"{kernel}_{shape.suffix}", lambda: attention(target, shape))
        self.out.state_bytes = max(self.out.state_bytes, shape.state_bytes)
        reads = [self._region(q), (f"cache {name}", 0, 1)]
        self._order_reads(reads)
        self._allocate(node)
        args = [
            self._buffer(q),
            Arg(ArgKind.CACHE_K, name),
            Arg(ArgKind.CACHE_V, name),
            self._buffer(node),
            Arg(ArgKind.SCRATCH),
            _int(cache.page_bytes),
            _int(cache.heads),
            _int(node.optional("window", int) or 0),
            _float(node.get("scale", float)),
            _float(cap or 0.0),
            _float(1 / cap if cap else 0.0),
            _STEP,
        ]
        scratch: Region = ("scratch", 0, 1)
        writes = [self._region(node), scratch]
        self._launch(f"attend_{shape.suffix}", args, node, reads, writes)
        self._launch(f"attend_merge_{shape.suffix}", args, node, [scratch], [self._region(node)])
