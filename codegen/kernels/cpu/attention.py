"""Rotation, the cache write, and attention over pages (docs/arithmetic.md sections 6, 7).

A cache page holds 64 positions, which is the contract's tile. Per key/value head a page
keeps keys as groups of eight positions, `[position/8][channel][8]`, so that scores of
eight positions are one vector and need no horizontal sum; values as
`[position][channel]`. The query heads that share a key/value head are worked on
together, so keys and values are widened once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.rows import norm_factor, wide_lanes
from kinetic.codegen.kernels.cpu.simd import (
    F32,
    CpuFunction,
    Kernel,
    MathOn,
    fmax,
    lane_max,
    lane_tree,
    load_f16,
    to_f16,
    tree,
)
from kinetic.codegen.targets.llvm_ir import Function, Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import (
    PAGE,
    SEGMENT,
    STEP_LAST,
    STEP_PAGES,
    STEP_POSITIONS,
    STEP_ROWS,
    STEP_SLOTS,
)

TILES = SEGMENT // PAGE
LOWEST = -1e30
"""Where a running maximum starts."""


@dataclass(frozen=True)
class HeadShape:
    """What an attention kernel is specialised for.

    `width` is the head's channels, `shared` the query heads of a key/value head,
    `kv_bytes` 2 for an f16 cache and 4 for the f32 cache that tests use, `sinks` whether a
    head has a score without a value.
    """

    width: int
    shared: int
    kv_bytes: int
    softcap: bool = False
    sinks: bool = False
    texts: bool = False  # a row sees its whole text, or a window on both sides

    @property
    def suffix(self) -> str:
        """Part of the kernels' names."""
        text = "text_" if self.texts else ""
        more = ("_cap" if self.softcap else "") + ("_sinks" if self.sinks else "")
        return f"{text}d{self.width}_q{self.shared}_kv{8 * self.kv_bytes}{more}"

    @property
    def page_bytes(self) -> int:
        """Bytes of one key/value head's keys (or values) in a page."""
        return PAGE * self.width * self.kv_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the running (sums, maximum, total) of the shared query heads."""
        return self.shared * (self.width + 16) * 4


def _load_kv(k: CpuFunction, shape: HeadShape, pointer: Value, offset: Value | int) -> Value:
    return k.load(F32, pointer, offset) if shape.kv_bytes == 4 else load_f16(k, pointer, offset)


def _store_kv(k: CpuFunction, shape: HeadShape, value: Value, pointer: Value) -> None:
    k.store(value if shape.kv_bytes == 4 else to_f16(k, value), pointer)


# -- rotation and cache write ----------------------------------------------------------
@dataclass(frozen=True)
class Rotation:
    """How heads turn: pairing `kind` (`norm`, `neox`, `none`) over the first `rot` channels;
    with `norm_last` a head's norm comes after."""

    kind: str
    rot: int
    norm_last: bool = False

    @property
    def suffix(self) -> str:
        """Part of the kernels' names."""
        return self.kind if self.kind == "none" else f"{self.kind}{self.rot}"


def _rotate(k: CpuFunction, turn: Rotation, head: Value, cos: Value, sin: Value) -> None:
    """Turn one head in place; `cos` and `sin` are its position's `rot / 2` values."""
    pairs = turn.rot // 2
    lanes = next(n for n in (8, 4, 2, 1) if pairs % n == 0)
    type_ = vec(lanes, "float")
    for i in range(0, pairs, lanes):
        c, s = k.load(type_, cos, 4 * i), k.load(type_, sin, 4 * i)
        if turn.kind == "neox":
            a, b = k.load(type_, head, 4 * i), k.load(type_, head, 4 * (i + pairs))
            k.store(a * c - b * s, head, 4 * i)
            k.store(a * s + b * c, head, 4 * (i + pairs))
        else:
            both = k.load(vec(2 * lanes, "float"), head, 8 * i)
            a = k.shuffle(both, list(range(0, 2 * lanes, 2)))
            b = k.shuffle(both, list(range(1, 2 * lanes, 2)))
            mixed = [j // 2 + (lanes if j % 2 else 0) for j in range(2 * lanes)]
            k.store(k.shuffle(a * c - b * s, mixed, a * s + b * c), head, 8 * i)


def _normed(k: CpuFunction, width: int, head: Value, weights: Value, eps: Value) -> None:
    """RMS norm of one head in place."""
    inverse = k.const("float", 1 / width)
    factor = norm_factor(k, head, 4 * width, inverse, eps)
    with k.loop(0, 4 * width, 32) as i:
        y = (k.load(F32, head, i.index) * factor) * k.load(F32, weights, i.index)
        k.store(y, head, i.index)


def rope_write_name(shape: HeadShape, turn: Rotation, *, normed: bool) -> str:
    """The name of the `rope_write` kernel for a head shape and rotation."""
    norm = ("_normlast" if turn.norm_last else "_norm") if normed else ""
    return f"rope_write_{turn.suffix}_d{shape.width}_kv{8 * shape.kv_bytes}{norm}"


def rope_write(target: CpuTarget, shape: HeadShape, turn: Rotation, *, normed: bool) -> Kernel:
    """`rope_write_...`: norm and turn queries and keys, write keys and values to the cache.

    Arguments: q, k, v, cosines, sines, key pages, value pages, bytes of a page over all
    heads, q norm weights, k norm weights, f32 eps, query heads, key/value heads (0 where only
    queries turn), step.
    """
    k = Kernel(rope_write_name(shape, turn, normed=normed), target)
    q, key, value, cos, sin, keys, values = (k.argument("ptr") for _ in range(7))
    page_stride, q_norm, k_norm = (k.argument(t) for t in ("i64", "ptr", "ptr"))
    eps, heads, kv_heads, step = (k.argument(t) for t in ("float", "i64", "i64", "ptr"))
    rows = k.load("i64", step, STEP_ROWS, align=8)
    positions = k.load("ptr", step, STEP_POSITIONS, align=8)
    slots = k.load("ptr", step, STEP_SLOTS, align=8)
    head_bytes, es = 4 * shape.width, shape.kv_bytes
    units = heads + kv_heads * 2
    low, high = k.share(rows * units)
    with k.loop(low, high) as u:
        row, unit = u.index.udiv(units), u.index.urem(units)
        position = k.load("i32", positions, row * 4, align=4).cast("sext", "i64")
        slot = k.load("i64", slots, row * 8, align=8)
        page, at = slot >> 6, slot & (PAGE - 1)
        c, s = (k.gep(table, position * (2 * turn.rot)) for table in (cos, sin))

        def turned(head: Value, weights: Value, c: Value = c, s: Value = s) -> None:
            if normed and not turn.norm_last:
                _normed(k, shape.width, head, weights, eps)
            if turn.kind != "none":
                _rotate(k, turn, head, c, s)
            if normed and turn.norm_last:
                _normed(k, shape.width, head, weights, eps)

        is_query = unit.compare("slt", heads)
        is_value = unit.compare("sge", heads + kv_heads)
        with k.if_(is_query):
            turned(k.gep(q, (row * heads + unit) * head_bytes), q_norm)
        is_key = is_query.compare("eq", 0) & is_value.compare("eq", 0)
        with k.if_(is_key):
            h = unit - heads
            head = k.gep(key, (row * kv_heads + h) * head_bytes)
            turned(head, k_norm)
            base = k.gep(keys, page * page_stride + h * shape.page_bytes)
            base = k.gep(base, (at >> 3) * (8 * shape.width * es) + (at & 7) * es)
            with k.loop(0, shape.width) as d:
                x = k.load("float", head, d.index * 4)
                x = x if es == 4 else to_f16(k, k.splat(x, 8)).at(0)
                k.store(x, base, d.index * (8 * es))
        with k.if_(is_value):
            h = unit - heads - kv_heads
            head = k.gep(value, (row * kv_heads + h) * head_bytes)
            base = k.gep(values, page * page_stride + h * shape.page_bytes)
            base = k.gep(base, at * (shape.width * es))
            with k.loop(0, shape.width, 8) as d:
                x = k.load(F32, head, d.index * 4)
                _store_kv(k, shape, x, k.gep(base, d.index * es))
    k.ret()
    return k


# -- one segment ------------------------------------------------------------------------
_SEGMENT_ARGS = (
    ("ptr", "q"),
    ("ptr", "keys"),
    ("ptr", "values"),
    ("ptr", "pages"),
    ("i64", "page_stride"),
    ("i64", "low"),
    ("i64", "high"),
    ("i64", "segment"),
    ("float", "scale"),
    ("float", "cap"),
    ("float", "cap_inverse"),
    ("ptr", "state"),
)


class _Segment:
    """Emits `attend_segment_...`: the running softmax over one segment's tiles."""

    def __init__(self, target: CpuTarget, shape: HeadShape):
        self.k = CpuFunction(f"attend_segment_{shape.suffix}", _SEGMENT_ARGS, target)
        self.shape, self.arg = shape, self.k.arg
        self.scores = self.k.alloca(F32, shape.shared * PAGE // 8)
        # Four chains of each head in registers, leaving a few for keys and addresses.
        self.score_heads = min(shape.shared, (target.registers - 4) // 4)
        self.value_heads = min(shape.shared, target.registers // 2)
        vectors = shape.width // 8
        fits = (target.registers - 4) // self.value_heads
        self.value_vectors = next(n for n in (8, 4, 2, 1) if n <= fits and vectors % n == 0)

    def emit(self) -> CpuFunction:
        k, shape, arg = self.k, self.shape, self.arg
        for h in range(shape.shared):
            k.store(k.const("float", LOWEST), self.maximum(h))
            k.store(k.zero("float"), self.total(h))
        with k.loop(0, shape.shared * shape.width // 8) as i:
            k.store(k.zero(F32), arg["state"], i.index << 5)
        first, last = self.tile_range()
        with k.loop(first, last) as tile:
            self.tile(tile.index)
        return k.ret()

    def sums(self, head: int) -> Value:
        return self.k.gep(self.arg["state"], head * self.shape.width * 4)

    def maximum(self, head: int) -> Value:
        return self.k.gep(self.arg["state"], (self.shape.shared * self.shape.width + head) * 4)

    def total(self, head: int) -> Value:
        at = self.shape.shared * (self.shape.width + 1) + head
        return self.k.gep(self.arg["state"], at * 4)

    def tile_range(self) -> tuple[Value, Value]:
        """Tiles of the segment that hold a visible position."""
        k, arg = self.k, self.arg
        begin = arg["segment"] * TILES
        lowest = arg["low"] >> 6
        first = k.select(lowest.compare("sgt", begin), lowest, begin)
        beyond = (arg["high"] + (PAGE - 1)) >> 6
        return first, k.minimum(beyond, begin + TILES)

    def tile(self, tile: Value) -> None:
        k, shape, arg = self.k, self.shape, self.arg
        page = k.load("i32", arg["pages"], tile * 4, align=4).cast("sext", "i64")
        keys = k.gep(arg["keys"], page * arg["page_stride"])
        values = k.gep(arg["values"], page * arg["page_stride"])
        start = tile * PAGE
        below = arg["low"] - start
        first = k.select(below.compare("sgt", 0), below, k.zero("i64"))
        last = k.minimum(arg["high"] - start, PAGE)
        groups = (last + 7) >> 3
        for at in range(0, shape.shared, self.score_heads):
            heads = range(at, min(at + self.score_heads, shape.shared))
            self.score(keys, heads, groups, first, last)
        for head in range(shape.shared):
            self.exponentials(head, groups, first, last)
        for at in range(0, shape.shared, self.value_heads):
            heads = range(at, min(at + self.value_heads, shape.shared))
            self.accumulate(values, heads, first, last)

    def visible(self, group: Value, first: Value, last: Value, count: int = 8) -> Value:
        """Which of the positions from a group on the row sees."""
        k = self.k
        lanes = k.vector("i32", range(count)) + k.splat((group << 3).cast("trunc", "i32"), count)
        low, high = (k.splat(v.cast("trunc", "i32"), count) for v in (first, last))
        return lanes.compare("sge", low) & lanes.compare("slt", high)

    def score_at(self, head: int, group: Value) -> Value:
        return self.k.gep(self.scores, (group << 5) + head * PAGE * 4)

    def score(self, keys: Value, heads: range, groups: Value, first: Value, last: Value) -> None:
        """`s = (q . k) * scale` of eight positions at a time, four chains over channels."""
        k, shape, arg = self.k, self.shape, self.arg
        zeros = [k.zero(F32)] * (4 * len(heads))
        scale = k.splat(arg["scale"], 8)
        with k.loop(0, groups) as g:
            base = k.gep(keys, g.index * (8 * shape.width * shape.kv_bytes))
            with k.loop(0, shape.width, 4, carry=zeros) as d:
                chains = list(d.carried)
                for c in range(4):
                    at = (d.index + c) * (8 * shape.kv_bytes)
                    key = _load_kv(k, shape, base, at)
                    for j, h in enumerate(heads):
                        q = k.load_splat(
                            "float", 8, arg["q"], (d.index + (c + h * shape.width)) * 4
                        )
                        chains[4 * j + c] = chains[4 * j + c] + q * key
                d.next = chains
            seen = self.visible(g.index, first, last)
            for j, h in enumerate(heads):
                s = tree(d.results[4 * j : 4 * j + 4]) * scale
                if shape.softcap:
                    inner = s * k.splat(arg["cap_inverse"], 8)
                    s = k.splat(arg["cap"], 8) * kmath.tanh(MathOn(k), inner)
                s = k.select(seen, s, k.const(F32, LOWEST))
                k.store(s, self.score_at(h, g.index), align=32)

    def exponentials(self, head: int, groups: Value, first: Value, last: Value) -> None:
        """Replace scores by `exp(s - m')`; rescale what the head has summed so far."""
        k, b = self.k, MathOn(self.k)
        with k.loop(0, groups, carry=[k.const(F32, LOWEST)]) as g:
            s = k.load(F32, self.score_at(head, g.index), align=32)
            g.next = [fmax(k, g.carried[0], s)]
        old = k.load("float", self.maximum(head))
        new = fmax(k, old, lane_max(k, g.results[0]))
        k.store(new, self.maximum(head))
        m = k.splat(new, 8)
        # Wider than the machine's vectors, for side-by-side chains; groups past the last
        # are not visible, and add zeros.
        count = wide_lanes(k) // 8
        wide, lanes = MathOn(k, 8 * count), vec(8 * count, "float")
        shift = k.splat(new, 8 * count)
        with k.loop(0, groups, count, carry=[k.zero(F32)]) as g:
            address = self.score_at(head, g.index)
            e = kmath.exp_nonpositive(wide, k.load(lanes, address, align=32) - shift)
            e = k.select(self.visible(g.index, first, last, 8 * count), e, k.zero(lanes))
            k.store(e, address, align=32)
            total = g.carried[0]
            for i in range(count):
                total = total + k.shuffle(e, list(range(8 * i, 8 * i + 8)))
            g.next = [total]
        shrink = kmath.exp_nonpositive(b, k.splat(old, 8) - m)
        total = k.load("float", self.total(head)) * shrink.at(0) + lane_tree(k, g.results[0])
        k.store(total, self.total(head))
        with k.loop(0, self.shape.width, 8) as d:
            address = k.gep(self.sums(head), d.index << 2)
            k.store(k.load(F32, address) * shrink, address)

    def accumulate(self, values: Value, heads: range, first: Value, last: Value) -> None:
        """`acc = acc + e_p * v_p`, position by position, a few channels at a time."""
        k, shape, n = self.k, self.shape, self.value_vectors
        with k.loop(0, shape.width, 8 * n) as d:
            column = k.gep(values, d.index * shape.kv_bytes)
            homes = [k.gep(self.sums(h), (d.index << 2) + 32 * j) for h in heads for j in range(n)]
            with k.loop(first, last, carry=[k.load(F32, a) for a in homes]) as p:
                at = p.index * (shape.width * shape.kv_bytes)
                v = [_load_kv(k, shape, column, at + 8 * shape.kv_bytes * j) for j in range(n)]
                sums = []
                for i, h in enumerate(heads):
                    e = k.load_splat("float", 8, self.scores, (p.index << 2) + h * PAGE * 4)
                    sums += [p.carried[i * n + j] + e * v[j] for j in range(n)]
                p.next = sums
            for address, total in zip(homes, p.results, strict=True):
                k.store(total, address)


# -- merging, and the operations ---------------------------------------------------------
def _merge(target: CpuTarget, shape: HeadShape) -> CpuFunction:
    """`attend_join_...(state, other)`: the next segment joins the merged ones."""
    k = CpuFunction(f"attend_join_{shape.suffix}", (("ptr", "state"), ("ptr", "other")), target)
    b, width = MathOn(k), shape.width
    state, other = k.arg["state"], k.arg["other"]
    for h in range(shape.shared):
        at_m = (shape.shared * width + h) * 4
        at_l = (shape.shared * (width + 1) + h) * 4
        old, new = k.load("float", state, at_m), k.load("float", other, at_m)
        top = fmax(k, old, new)
        x = kmath.exp_nonpositive(b, k.splat(old - top, 8))
        y = kmath.exp_nonpositive(b, k.splat(new - top, 8))
        l_old, l_new = k.load("float", state, at_l), k.load("float", other, at_l)
        k.store(top, state, at_m)
        k.store(l_old * x.at(0) + l_new * y.at(0), state, at_l)
        with k.loop(0, width, 8) as d:
            at = (d.index + h * width) << 2
            k.store(k.load(F32, state, at) * x + k.load(F32, other, at) * y, state, at)
    k.ret()
    return k


def _finish(
    k: CpuFunction, shape: HeadShape, state: Value, out: Value, sinks: Value | None
) -> None:
    """`out = sums * recip(total)` for the shared query heads, whose sinks come in last."""
    b = MathOn(k)
    for h in range(shape.shared):
        total = k.load("float", state, (shape.shared * (shape.width + 1) + h) * 4)
        shrink = None
        if sinks is not None:
            top = k.load("float", state, (shape.shared * shape.width + h) * 4)
            sink = k.load("float", sinks, 4 * h)
            new = fmax(k, top, sink)
            shrink = kmath.exp_nonpositive(b, k.splat(top - new, 8))
            total = total * shrink.at(0) + kmath.exp_nonpositive(b, k.splat(sink - new, 8)).at(0)
        inverse = kmath.recip(b, k.splat(total, 8))
        with k.loop(0, shape.width, 8) as d:
            at = (d.index + h * shape.width) << 2
            sums = k.load(F32, state, at)
            k.store((sums if shrink is None else sums * shrink) * inverse, out, at)


class _Attend:
    """What `attend` and `attend_join` read from their operation records."""

    def __init__(self, k: Kernel, shape: HeadShape):
        self.k, self.shape = k, shape
        self.q, self.keys, self.values, self.out, self.scratch = (
            k.argument("ptr") for _ in range(5)
        )
        self.page_stride, self.kv_heads, self.window = (k.argument() for _ in range(3))
        self.scale, self.cap, self.cap_inverse = (k.argument("float") for _ in range(3))
        step = k.argument("ptr")
        self.sinks = k.argument("ptr") if shape.sinks else None
        self.rows = k.load("i64", step, STEP_ROWS, align=8)
        self.positions = k.load("ptr", step, STEP_POSITIONS, align=8)
        # The last position that a row may see: its own, or its text's.
        self.last = self.positions
        if shape.texts:
            self.last = k.load("ptr", step, STEP_LAST, align=8)
        self.pages = k.load("ptr", step, STEP_PAGES, align=8)
        self.units = self.rows * self.kv_heads
        self.segments = self._split()

    def _split(self) -> Value:
        """Segments of the longest row when they are worth sharing out, else 1.

        With fewer (row, head) pairs than two a thread, threads take segments instead.
        """
        k = self.k
        with k.loop(0, self.rows, carry=[k.zero("i64")]) as t:
            high = k.load("i32", self.last, t.index * 4, align=4).cast("sext", "i64")
            longest = t.carried[0]
            t.next = [k.select(high.compare("sgt", longest), high, longest)]
        count = (t.results[0] + SEGMENT).udiv(SEGMENT)
        scarce = self.units.compare("slt", k.nth * 2)
        return k.select(scarce, count, k.const("i64", 1))

    def span(self, row: Value) -> tuple[Value, Value]:
        """Visible positions [low, high) of a row."""
        k = self.k
        high = k.load("i32", self.last, row * 4, align=4).cast("sext", "i64") + 1
        low = high - self.window
        if self.shape.texts:
            own = k.load("i32", self.positions, row * 4, align=4).cast("sext", "i64")
            half = self.window >> 1
            low, beyond = own - half, k.minimum(high, own + half + 1)
            high = k.select(self.window.compare("sgt", 0), beyond, high)
        windowed = self.window.compare("sgt", 0) & low.compare("sgt", 0)
        return k.select(windowed, low, k.zero("i64")), high

    def heads(self, base: Value, row: Value, head: Value) -> Value:
        """The shared query heads of (row, key/value head) in q or out."""
        width = self.shape.shared * self.shape.width * 4
        return self.k.gep(base, (row * self.kv_heads + head) * width)

    def run_segment(self, row: Value, head: Value, segment: Value, state: Value) -> None:
        """Call `attend_segment` for one segment."""
        k, shape = self.k, self.shape
        low, high = self.span(row)
        at = head * shape.page_bytes
        k.call_local(
            f"attend_segment_{shape.suffix}",
            "void",
            self.heads(self.q, row, head),
            k.gep(self.keys, at),
            k.gep(self.values, at),
            k.load("ptr", self.pages, row * 8, align=8),
            self.page_stride,
            low,
            high,
            segment,
            self.scale,
            self.cap,
            self.cap_inverse,
            state,
        )

    def join(self, state: Value, other: Value) -> None:
        """Call `attend_join`."""
        self.k.call_local(f"attend_join_{self.shape.suffix}", "void", state, other)

    def finish(self, state: Value, row: Value, head: Value) -> None:
        """Write the heads of (row, key/value head) from their merged state."""
        sinks = None
        if self.sinks is not None:
            sinks = self.k.gep(self.sinks, head * (4 * self.shape.shared))
        _finish(self.k, self.shape, state, self.heads(self.out, row, head), sinks)

    def state_of(self, unit: Value, segment: Value) -> Value:
        """Scratch of one (row, head) pair's segment."""
        return self.k.gep(self.scratch, (unit * self.segments + segment) * self.shape.state_bytes)

    def segment_range(self, row: Value) -> tuple[Value, Value]:
        """Segments of a row that hold a visible position."""
        low, high = self.span(row)
        return low.udiv(SEGMENT), (high + (SEGMENT - 1)).udiv(SEGMENT)


def _attend(target: CpuTarget, shape: HeadShape) -> Kernel:
    k = Kernel(f"attend_{shape.suffix}", target)
    a = _Attend(k, shape)
    state, other = (k.alloca("i8", shape.state_bytes) for _ in range(2))

    def work(item: Value) -> None:
        unit, part = item.udiv(a.segments), item.urem(a.segments)
        head, row = unit.udiv(a.rows), unit.urem(a.rows)
        first, last = a.segment_range(row)
        shared = a.segments.compare("sgt", 1)
        whole, piece, done = (k.new_label(p) for p in ("whole", "piece", "done"))
        k.line(f"br i1 {shared.ref}, label %{piece}, label %{whole}")
        k.label(piece)
        wanted = part.compare("sge", first) & part.compare("slt", last)
        with k.if_(wanted):
            a.run_segment(row, head, part, a.state_of(unit, part))
        k.branch(done)
        k.label(whole)
        a.run_segment(row, head, first, state)
        with k.loop(first + 1, last) as s:
            a.run_segment(row, head, s.index, other)
            a.join(state, other)
        a.finish(state, row, head)
        k.branch(done)
        k.label(done)

    k.take(a.units * a.segments, work)
    k.ret()
    return k


def _attend_merge(target: CpuTarget, shape: HeadShape) -> Kernel:
    k = Kernel(f"attend_merge_{shape.suffix}", target)
    a = _Attend(k, shape)

    def work(unit: Value) -> None:
        head, row = unit.udiv(a.rows), unit.urem(a.rows)
        first, last = a.segment_range(row)
        state = a.state_of(unit, first)
        with k.loop(first + 1, last) as s:
            a.join(state, a.state_of(unit, s.index))
        a.finish(state, row, head)

    with k.if_(a.segments.compare("sgt", 1)):
        k.take(a.units, work)
    k.ret()
    return k


def attention(target: CpuTarget, shape: HeadShape) -> list[Function]:
    """The operations `attend_...` and `attend_merge_...` and what they call.

    Both take: q, key pages, value pages, out, scratch, bytes of a page over all heads,
    key/value heads, window (0: none), f32 scale, f32 softcap, f32 its reciprocal, step, and
    where the shape has them the sinks. With few rows a long path is shared out by segments,
    whose states meet in `attend_merge`; else one thread walks a path and merges as it goes.
    Same words.
    """
    return [
        _Segment(target, shape).emit(),
        _merge(target, shape),
        _attend(target, shape),
        _attend_merge(target, shape),
    ]
