"""Scheduling for GPUs: the lowered graph as dispatches, with barriers and a memory plan.

Every op is one or more dispatches of its own kernels; what has none is refused by name.
Values are dense rows in one arena. A dispatch waits for those before it exactly when it
touches memory that one since the last barrier wrote, or writes what one read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from kinetic.codegen.kernels.builder import GpuCode, Kernel
from kinetic.codegen.kernels.gpu import matmul as products
from kinetic.codegen.kernels.gpu import rows as row_kernels
from kinetic.codegen.kernels.gpu.attention import Heads, attention_merge, attention_segments
from kinetic.codegen.kernels.gpu.quantize import quantize_rows
from kinetic.codegen.passes.arena import Arena
from kinetic.errors import UnsupportedError
from kinetic.ir.gpu_program import Bound, Extent, FileRows, GpuLaunch, Shader, Space
from kinetic.ir.graph import Graph, Node
from kinetic.ir.program import CacheLayout, Output, RopeTable, VectorWeight
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.types import QuantType, TensorType, WeightType

ALIGN = 256
"""No device asks for more of a buffer's offset."""
TILE = 4
"""Rows that a product takes at a time in steps of several."""
NO_WINDOW = 0xFFFFFFFF
ONE = Extent("1")
Param = int | float | Extent
_VIEWS = ("split_heads", "merge_heads")
_ROPE_TABLE = ("rot", "base", "scaling", "factor", "n_ctx_orig", "attn_factor")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class GpuScheduler:
    """One walk over the lowered graph; the results are its public attributes."""

    def __init__(
        self,
        graph: Graph,
        device_class: str,
        emit: Callable[[Kernel], GpuCode],
        max_rows: int,
        max_outputs: int,
    ):
        self.graph, self.device_class = graph, device_class
        self.limits = {"T": max_rows, "R": max_outputs}
        self.launches: list[GpuLaunch] = []
        self.shaders: dict[str, Shader] = {}
        self.weights: dict[str, FileRows] = {}
        self.vectors: dict[str, VectorWeight] = {}
        self.caches: dict[str, CacheLayout] = {}
        self.tables: list[RopeTable] = []
        self.outputs: dict[str, Output] = {}
        self.embeds: dict[str, int] = {}
        self.scratch: dict[str, int] = {}
        self.arena = Arena()
        self._emit = emit
        self._names: dict[Kernel, str] = {}
        self._place: dict[Node, Bound] = {}
        self._reads: list[Bound] = []
        self._writes: list[Bound] = []

    def run(self) -> GpuScheduler:
        """Schedule every node.

        *Raises* `UnsupportedError`, naming the op, where the class lacks a kernel.
        """
        nodes = self.graph.nodes
        last = {self.root(s): i for i, node in enumerate(nodes) for s in node.sources}
        last |= {self.root(node): len(nodes) for node in self.graph.outputs.values()}
        for node in nodes:
            if node.op not in EMITTERS:
                raise self.refusal(f"op {node.op}")
        for i, node in enumerate(nodes):
            EMITTERS[node.op](self, node)
            for source in {self.root(s) for s in node.sources}:
                place = self._place.get(source)
                if last.get(source) == i and place is not None and place.space is Space.ARENA:
                    self.arena.release((place.offset, place.offset + _aligned(place.nbytes)))
        for name, node in self.graph.outputs.items():
            width = self.width(node)
            self.outputs[name] = Output(self.place(node).offset, 4 * width, width)
        return self

    def refusal(self, what: str) -> UnsupportedError:
        """The one sentence for what this class cannot do."""
        return UnsupportedError(
            f"--device {self.device_class} has no kernel for {what}, which this "
            f"{self.graph.meta.arch} model needs; use --device cpu"
        )

    # -- values ----------------------------------------------------------------------
    def root(self, node: Node) -> Node:
        """The value whose memory this one is."""
        while node.op in _VIEWS:
            node = node.arg("x")
        return node

    def place(self, node: Node) -> Bound:
        """Where a value lies."""
        return self._place[self.root(node)]

    def width(self, node: Node) -> int:
        """Values of a row."""
        assert isinstance(node.type, TensorType | QuantType)
        width = 1
        for extent in node.type.shape[1:]:
            assert isinstance(extent, int)
            width *= extent
        return width

    def count(self, node: Node) -> str:
        """The letter of a value's rows."""
        assert isinstance(node.type, TensorType | QuantType)
        letter = node.type.shape[0]
        assert isinstance(letter, str)
        return letter

    def heads(self, node: Node) -> tuple[int, int]:
        """Heads of a row and their width; a plain row is one head."""
        assert isinstance(node.type, TensorType)
        shape = node.type.shape[1:]
        heads, width = shape if len(shape) == 2 else (1, shape[0])
        assert isinstance(heads, int) and isinstance(width, int)
        return heads, width

    def take(self, nbytes: int) -> Bound:
        """Memory in the arena."""
        start, _ = self.arena.take(_aligned(nbytes))
        return Bound(Space.ARENA, "", start, nbytes)

    def result(self, node: Node) -> Bound:
        """Memory for the f32 value that a node makes."""
        self._place[node] = self.take(4 * self.limits[self.count(node)] * self.width(node))
        return self._place[node]

    def quantized(self, node: Node) -> tuple[Bound, Bound, Bound]:
        """Codes, scales and sums of a quantized value, one after the other."""
        assert isinstance(node.type, QuantType)
        values = self.limits[self.count(node)] * self.width(node)
        sizes = (values, 4 * values // node.type.block, values // 4)
        if node not in self._place:
            self._place[node] = self.take(sum(_aligned(size) for size in sizes))
        start, parts = self._place[node].offset, []
        for size in sizes:
            parts.append(Bound(Space.ARENA, "", start, size))
            start += _aligned(size)
        return parts[0], parts[1], parts[2]

    # -- weights -----------------------------------------------------------------------
    def _rows(self, node: Node) -> tuple[str, str, tuple[int, int]]:
        name, shape, rows = node.get("name", str), node.attrs["shape"], node.attrs["rows"]
        if node.attrs["part"] is not None:
            raise self.refusal(f"parts of the matrices of {name}")
        assert isinstance(shape, tuple) and isinstance(shape[0], int)
        if rows is None:
            return name, name, (0, shape[0])
        assert isinstance(rows, tuple) and isinstance(rows[0], int) and isinstance(rows[1], int)
        return f"{name}[{rows[0]}:{rows[0] + rows[1]}]", name, (rows[0], rows[1])

    def vector(self, node: Node) -> Bound:
        """A vector, or small matrix, widened to f32."""
        key, tensor, rows = self._rows(node)
        assert isinstance(node.type, WeightType)
        count = 1
        for extent in node.type.shape:
            count *= extent
        self.vectors.setdefault(key, VectorWeight(key, tensor, rows))
        return Bound(Space.VECTOR, key, 0, 4 * count)

    def matrix(self, node: Node) -> Bound:
        """A matrix in the file's own bytes."""
        key, tensor, rows = self._rows(node)
        assert isinstance(node.type, WeightType)
        fmt = FORMATS[node.type.format_name]
        columns = node.type.shape[1]
        values = fmt.values if isinstance(fmt, BlockFormat) else 1
        nbytes = rows[1] * (columns // values) * fmt.nbytes
        self.weights.setdefault(key, FileRows(tensor, rows, nbytes))
        return Bound(Space.WEIGHT, key, 0, nbytes)

    # -- dispatches ----------------------------------------------------------------------
    def shader(self, kernel: Kernel) -> str:
        """The name of a kernel's code; equal names of unlike kernels get a number."""
        if kernel not in self._names:
            name, number = kernel.name, 1
            while name in self.shaders:
                number += 1
                name = f"{kernel.name}.{number}"
            code = self._emit(kernel)
            self.shaders[name] = Shader(name, len(code.buffers), len(code.params), code.code)
            self._names[kernel] = name
        return self._names[kernel]

    def order_reads(self, *reads: Bound) -> None:
        """Before memory is taken: what is being written and read next needs a barrier, after
        which more memory is free."""
        if _overlap(reads, self._writes):
            self._barrier()

    def _barrier(self) -> None:
        self._reads, self._writes = [], []
        self.arena.barrier()

    def launch(
        self,
        node: Node,
        kernel: Kernel,
        buffers: Sequence[tuple[str, Bound]],
        params: Sequence[Param],
        grid: tuple[Extent, Extent, Extent],
        wide: tuple[Kernel, tuple[Extent, Extent, Extent]] | None = None,
    ) -> None:
        """Add a dispatch; each buffer says with "r" or "w" what is done to it."""
        reads = [bound for mode, bound in buffers if mode == "r"]
        writes = [bound for mode, bound in buffers if mode == "w"]
        if _overlap(reads, self._writes) or _overlap(writes, self._reads + self._writes):
            self._barrier()
        barrier = bool(self.launches) and not self._reads and not self._writes
        self._reads += reads
        self._writes += writes
        self.launches.append(
            GpuLaunch(
                self.shader(kernel),
                tuple(bound for _, bound in buffers),
                tuple(_word(p) for p in params),
                grid,
                barrier,
                node.name,
                None if wide is None else self.shader(wide[0]),
                None if wide is None else wide[1],
            )
        )

    def by_value(self, node: Node, kernel: Kernel, sources: Sequence[Node]) -> None:
        """A dispatch that makes each value of a node from those in the same place."""
        reads = [self.place(s) for s in sources]
        self.order_reads(*reads)
        buffers = [*(("r", bound) for bound in reads), ("w", self.result(node))]
        count, width = self.count(node), self.width(node)
        grid = (Extent(count, width, row_kernels.WORKGROUP), ONE, ONE)
        self.launch(node, kernel, buffers, [Extent(count, width)], grid)


def _overlap(some: Sequence[Bound], others: Sequence[Bound]) -> bool:
    return any(
        (a.space, a.key) == (b.space, b.key)
        and a.offset < b.offset + b.nbytes
        and b.offset < a.offset + a.nbytes
        for a in some
        for b in others
    )


def _word(param: Param) -> int | Extent:
    """A number as the 32 bits its shader reads."""
    if isinstance(param, float):
        return int(struct.unpack("<I", struct.pack("<f", param))[0])
    return param


# -- what each op dispatches -----------------------------------------------------------


def _nothing(s: GpuScheduler, node: Node) -> None:
    """Weights are in place, tokens come looked up, views have their source's memory."""


def _embed(s: GpuScheduler, node: Node) -> None:
    """The device looks the rows up as it fills the step: no table is uploaded for it."""
    table, width = node.arg("W").get("name", str), s.width(node)
    s.embeds[table] = width
    s._place[node] = Bound(Space.STEP, f"embed {table}", 0, 4 * s.limits["T"] * width)


def _map(s: GpuScheduler, node: Node) -> None:
    s.by_value(node, row_kernels.unary(node.op), [node.arg("x")])


def _pair(s: GpuScheduler, node: Node) -> None:
    a, b = node.sources[:2] if len(node.sources) > 1 else node.sources * 2
    s.by_value(node, row_kernels.binary(node.op), [a, b])


def _glu(s: GpuScheduler, node: Node) -> None:
    act = node.get("act", str)
    if act not in row_kernels.ACTS:
        raise s.refusal(f"a {act} gate")
    s.by_value(node, row_kernels.binary(act), [node.arg("gate"), node.arg("up")])


def _scale(s: GpuScheduler, node: Node) -> None:
    s.by_value(node, row_kernels.scale(node.get("value", float)), [node.arg("x")])


def _softcap(s: GpuScheduler, node: Node) -> None:
    s.by_value(node, row_kernels.softcap(node.get("cap", float)), [node.arg("x")])


def _rms_norm(s: GpuScheduler, node: Node) -> None:
    x, w = node.arg("x"), node.maybe("w")
    heads, width = s.heads(x)
    each = 1
    if w is not None and isinstance(w.type, WeightType) and len(w.type.shape) == 2:
        each = w.type.shape[0]
    s.order_reads(s.place(x))
    weight = [] if w is None else [("r", s.vector(w))]
    buffers = [("r", s.place(x)), *weight, ("w", s.result(node))]
    params: list[Param] = [width, 1 / width, node.get("eps", float)]
    grid = (Extent(s.count(node), heads), ONE, ONE)
    s.launch(node, row_kernels.rms_norm(w is not None, each), buffers, params, grid)


def _quantize(s: GpuScheduler, node: Node) -> None:
    x, block = node.arg("x"), node.get("block", int)
    s.order_reads(s.place(x))
    buffers = [("r", s.place(x)), *(("w", part) for part in s.quantized(node))]
    count, width = s.count(node), s.width(node)
    grid = (Extent(count, width, 256), ONE, ONE)
    s.launch(node, quantize_rows(block), buffers, [Extent(count, width // 4)], grid)


def _matmul(s: GpuScheduler, node: Node) -> None:
    x, weight = node.arg("x"), node.arg("W")
    bias, residual = node.maybe("bias"), node.maybe("residual")
    assert isinstance(weight.type, WeightType)
    outputs, columns = weight.type.shape
    fmt, count = FORMATS[weight.type.format_name], s.count(node)
    block = isinstance(fmt, BlockFormat)
    inputs = s.quantized(x) if block else (s.place(x),)
    added = [] if bias is None else [s.vector(bias)]
    added += [] if residual is None else [s.place(residual)]
    s.order_reads(*inputs, *added)
    buffers = [("r", b) for b in (s.matrix(weight), *inputs)]
    buffers += [("w", s.result(node)), *(("r", b) for b in added)]
    groups = Extent("1", outputs, products.OUTPUTS)
    if isinstance(fmt, BlockFormat):
        one, many = (
            products.matmul(fmt, t, bias=bias is not None, residual=residual is not None)
            for t in (1, TILE)
        )
        params: list[Param] = [Extent(count), outputs, columns // fmt.values]
        tiles = (many, (groups, Extent(count, 1, TILE), ONE))
        s.launch(node, one, buffers, params, (groups, Extent(count), ONE), tiles)
        return
    kernel = products.matmul_float(fmt.name, bias=bias is not None, residual=residual is not None)
    s.launch(node, kernel, buffers, [outputs, columns], (groups, Extent(count), ONE))


def _rope(s: GpuScheduler, node: Node) -> None:
    x, kind, rot = node.arg("x"), node.get("kind", str), node.get("rot", int)
    if kind not in ("norm", "neox"):
        raise s.refusal(f"a rope of kind {kind}")
    heads, width = s.heads(x)
    factors = node.maybe("factors")
    table = RopeTable(
        tuple((n, node.attrs[n]) for n in _ROPE_TABLE),
        None if factors is None else factors.get("name", str),
    )
    if table not in s.tables:
        s.tables.append(table)
    number, nbytes = s.tables.index(table), 2 * s.limits["T"] * rot
    s.order_reads(s.place(x))
    buffers = [("r", s.place(x)), ("w", s.result(node))]
    buffers += [("r", Bound(Space.STEP, f"{n} {number}", 0, nbytes)) for n in ("cos", "sin")]
    grid = (Extent("1", heads * width, row_kernels.WORKGROUP), Extent("T"), ONE)
    s.launch(node, row_kernels.rope(kind, rot, heads, width), buffers, [], grid)


def _step_words(s: GpuScheduler, name: str) -> tuple[str, Bound]:
    return "r", Bound(Space.STEP, name, 0, 4 * s.limits["T"])


def _attention(s: GpuScheduler, node: Node) -> None:
    """Write keys and values into their pages, then attend."""
    k, v, name = node.arg("k"), node.arg("v"), node.get("cache", str)
    spec = s.graph.meta.caches[name]
    if spec.kind != "attention" or spec.k != spec.v:
        raise s.refusal(f"keys {spec.k} wide beside values {spec.v} wide")
    page = 2 * spec.heads * spec.k * row_kernels.PAGE
    s.caches.setdefault(name, CacheLayout(spec.heads, spec.k, page, spec.window))
    s.order_reads(s.place(k), s.place(v))
    buffers = [("r", s.place(k)), ("r", s.place(v)), _step_words(s, "slots")]
    buffers += [("w", bound) for bound in _pages(name)]
    grid = (Extent("1", spec.heads * spec.k, row_kernels.WORKGROUP), Extent("T"), ONE)
    s.launch(node, row_kernels.write_pages(spec.heads, spec.k), buffers, [], grid)
    _attend(s, node)


def _pages(name: str) -> tuple[Bound, Bound]:
    return Bound(Space.KEYS, name, 0, 1), Bound(Space.VALUES, name, 0, 1)


def _attend(s: GpuScheduler, node: Node) -> None:
    if node.maybe("sinks") is not None:
        raise s.refusal("attention sinks")
    q, name = node.arg("q"), node.get("cache", str)
    n_heads, width = s.heads(q)
    heads = Heads(
        n_heads,
        s.caches[name].heads,
        width,
        node.get("scale", float),
        node.optional("softcap", float),
    )
    window = node.optional("window", int) or NO_WINDOW
    parts = []
    for part, floats in (("m", 1), ("total", 1), ("acc", width)):
        nbytes = 4 * s.limits["T"] * n_heads * floats
        s.scratch[part] = max(s.scratch.get(part, 0), nbytes)
        parts.append(Bound(Space.SCRATCH, part, 0, nbytes))
    keys, values = _pages(name)
    s.order_reads(s.place(q), keys, values)
    lengths = _step_words(s, "lengths")
    s.launch(
        node,
        attention_segments(heads),
        [
            ("r", s.place(q)),
            ("r", keys),
            ("r", values),
            _step_words(s, "tables"),
            lengths,
            *(("w", part) for part in parts),
        ],
        [Extent("W"), window, Extent("S")],
        (Extent("S"), Extent("1", n_heads), Extent("T")),
    )
    s.order_reads(*parts)
    s.launch(
        node,
        attention_merge(heads),
        [*(("r", part) for part in parts), lengths, ("w", s.result(node))],
        [window, Extent("S")],
        (Extent("1", n_heads), Extent("T"), ONE),
    )


def _temper(s: GpuScheduler, node: Node) -> None:
    x, width = node.arg("x"), s.width(node)
    s.order_reads(s.place(x))
    buffers = [("r", s.place(x)), _step_words(s, "lengths"), ("w", s.result(node))]
    grid = (Extent("1", width, row_kernels.WORKGROUP), Extent("T"), ONE)
    kernel = row_kernels.temper(node.get("scale", float), node.get("every", int))
    s.launch(node, kernel, buffers, [width], grid)


def _take_outputs(s: GpuScheduler, node: Node) -> None:
    x = node.arg("x")
    width = s.width(x)
    s.order_reads(s.place(x))
    wanted = ("r", Bound(Space.STEP, "wanted", 0, 4 * s.limits["R"]))
    buffers = [("r", s.place(x)), wanted, ("w", s.result(node))]
    grid = (Extent("1", width, row_kernels.WORKGROUP), Extent("R"), ONE)
    s.launch(node, row_kernels.take_rows(), buffers, [width], grid)


EMITTERS: dict[str, Callable[[GpuScheduler, Node], None]] = {
    **dict.fromkeys(("tokens", "weight", *_VIEWS), _nothing),
    **dict.fromkeys(row_kernels.ACTS, _map),
    **dict.fromkeys(("add", "mul"), _pair),
    "embed": _embed,
    "scale": _scale,
    "softcap": _softcap,
    "rms_norm": _rms_norm,
    "quantize": _quantize,
    "matmul": _matmul,
    "glu": _glu,
    "rope": _rope,
    "attention": _attention,
    "attention_again": _attend,
    "temper": _temper,
    "take_outputs": _take_outputs,
}
"""The ops that GPU classes run."""
