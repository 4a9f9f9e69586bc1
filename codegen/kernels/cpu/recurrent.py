"""Recurrent blocks: a state is carried through the rows of a step, one after the other.

A unit of work is some columns of one head's state (or some channels of a convolution) for
all rows of the step: it loads the columns into memory of its own, walks the rows and stores
them where a row says so. Units share nothing, so threads split them; prompts, single tokens,
several sequences and checkpoints within a step are all the same walk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.rows import ACTIVATIONS, NORM_CHAINS
from kinetic.codegen.kernels.cpu.simd import F32, Kernel, MathOn, lane_tree, tree
from kinetic.codegen.targets.llvm_ir import Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import (
    CONTINUE,
    FRESH,
    NOT_KEPT,
    STEP_ROWS,
    STEP_STATE_IN,
    STEP_STATE_OUT,
)

CHAINS = 4
"""Chains of a sum over the rows of a state."""


def unit_lanes(columns: int) -> int:
    """Columns of a unit: two vectors side by side hide each other's latency."""
    return 16 if columns % 16 == 0 else 8


@dataclass(frozen=True)
class _Carried:
    """A unit's part of a state: `count` rows of `lanes` columns in memory of its own, and in
    slot 0 at `home`, whose rows are `stride` bytes apart."""

    count: int
    lanes: int
    home: Value
    stride: Value
    slot_stride: Value
    own: Value

    def at(self, k: Kernel, row: Value | int) -> Value:
        """The address of a row of the unit's own copy."""
        return k.gep(self.own, row * (4 * self.lanes))


def _for_each(k: Kernel, count: int, body: Callable[[Value], None]) -> None:
    with k.loop(0, count) as i:
        body(i.index)


def _walk(k: Kernel, step: Value, state: _Carried, row: Callable[[Value], None]) -> None:
    """Run `row(t)` for every row of the step with the state before it in the unit's memory."""
    type_ = vec(state.lanes, "float")
    rows = k.load("i64", step, STEP_ROWS, align=8)
    sources = k.load("ptr", step, STEP_STATE_IN, align=8)
    targets = k.load("ptr", step, STEP_STATE_OUT, align=8)

    def slot(number: Value) -> Value:
        return k.gep(state.home, number.cast("sext", "i64") * state.slot_stride)

    with k.loop(0, rows) as t:
        source = k.load("i32", sources, t.index * 4, align=4)
        with k.if_(source.compare("ne", CONTINUE)):
            with k.if_(source.compare("eq", FRESH)):
                _for_each(k, state.count, lambda i: k.store(k.zero(type_), state.at(k, i)))
            with k.if_(source.compare("sge", 0)):
                begin = slot(source)
                _for_each(
                    k,
                    state.count,
                    lambda i: k.store(k.load(type_, begin, i * state.stride), state.at(k, i)),
                )
        row(t.index)
        target = k.load("i32", targets, t.index * 4, align=4)
        with k.if_(target.compare("ne", NOT_KEPT)):
            end = slot(target)
            _for_each(
                k,
                state.count,
                lambda i: k.store(k.load(type_, state.at(k, i)), end, i * state.stride),
            )


# -- the blocks ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvShape:
    """What a short convolution's code depends on."""

    taps: int
    lanes: int
    biased: bool
    act: str | None

    @property
    def name(self) -> str:
        """`short_conv_<taps>x<lanes>[_bias][_<act>]`."""
        end = ("_bias" if self.biased else "") + (f"_{self.act}" if self.act else "")
        return f"short_conv_{self.taps}x{self.lanes}{end}"


def short_conv(target: CpuTarget, shape: ConvShape) -> Kernel:
    """A causal convolution of each channel by itself.

    Arguments: x, weights by tap, bias, out, state, bytes of a slot, bytes of a row, step block.
    """
    k = Kernel(shape.name, target)
    x, w, bias, out, home = (k.argument("ptr") for _ in range(5))
    slot_stride, width, step = k.argument(), k.argument(), k.argument("ptr")
    type_, nbytes = vec(shape.lanes, "float"), 4 * shape.lanes
    own = k.alloca(type_, shape.taps - 1)
    low, high = k.share(width.udiv(nbytes))
    with k.loop(low, high) as unit:
        at = unit.index * nbytes
        taps = [k.load(type_, w, width * j + at) for j in range(shape.taps)]
        added = k.load(type_, bias, at) if shape.biased else None
        state = _Carried(shape.taps - 1, shape.lanes, k.gep(home, at), width, slot_stride, own)

        def row(t: Value) -> None:
            where = t * width + at
            seen = [k.load(type_, state.at(k, j)) for j in range(shape.taps - 1)]
            seen.append(k.load(type_, x, where))
            y = seen[0] * taps[0]
            for one, tap in zip(seen[1:], taps[1:], strict=True):
                y = y + one * tap
            if added is not None:
                y = y + added
            if shape.act:
                y = ACTIVATIONS[shape.act](MathOn(k, shape.lanes), y)
            k.store(y, out, where)
            for j, one in enumerate(seen[1:]):
                k.store(one, state.at(k, j))

        _walk(k, step, state, row)
    k.ret()
    return k


@dataclass(frozen=True)
class HeadState:
    """The rows of a head's state, and how many of its columns a unit takes."""

    rows: int
    lanes: int


def delta_rule_name(shape: HeadState) -> str:
    """`delta_rule_<rows>x<lanes>`."""
    return f"delta_rule_{shape.rows}x{shape.lanes}"


def delta_rule(target: CpuTarget, shape: HeadState) -> Kernel:
    """The gated delta rule.

    Arguments: q, k, v, beta, decay, out, state, bytes of a slot, bytes of a row of q, of v and
    of beta, heads, key heads, bytes of a head of v, f32 scale, step block.
    """
    k = Kernel(delta_rule_name(shape), target)
    q, keys, v, beta, decay, out, home = (k.argument("ptr") for _ in range(7))
    slot_stride, q_row, v_row, g_row = (k.argument() for _ in range(4))
    heads, key_heads, head = (k.argument() for _ in range(3))
    scale, step = k.argument("float"), k.argument("ptr")
    lanes, type_ = shape.lanes, vec(shape.lanes, "float")
    own = k.alloca(type_, shape.rows)
    chunks = head.udiv(4 * lanes)
    low, high = k.share(heads * chunks)
    with k.loop(low, high) as unit:
        h, at = unit.index.udiv(chunks), unit.index.urem(chunks) * (4 * lanes)
        key_at, value_at = h.urem(key_heads) * (4 * shape.rows), h * head + at
        begin = k.gep(home, h * head * shape.rows + at)
        state = _Carried(shape.rows, lanes, begin, head, slot_stride, own)

        def row(t: Value) -> None:
            key, query = (k.gep(p, t * q_row + key_at) for p in (keys, q))
            by = k.load_splat("float", lanes, decay, t * g_row + h * 4)
            zeros = [k.zero(type_)] * CHAINS
            with k.loop(0, shape.rows, CHAINS, carry=zeros) as i:
                for c in range(CHAINS):
                    kept = k.load(type_, state.at(k, i.index + c)) * by
                    one = k.load_splat("float", lanes, key, (i.index + c) * 4)
                    i.next.append(i.carried[c] + kept * one)
            known = tree(i.results)
            strength = k.load_splat("float", lanes, beta, t * g_row + h * 4)
            learn = (k.load(type_, v, t * v_row + value_at) - known) * strength
            with k.loop(0, shape.rows, CHAINS, carry=zeros) as i:
                for c in range(CHAINS):
                    place = state.at(k, i.index + c)
                    one = k.load_splat("float", lanes, key, (i.index + c) * 4)
                    kept = k.load(type_, place) * by + one * learn
                    k.store(kept, place)
                    asked = k.load_splat("float", lanes, query, (i.index + c) * 4)
                    i.next.append(i.carried[c] + kept * asked)
            k.store(tree(i.results) * k.splat(scale, lanes), out, t * v_row + value_at)

        _walk(k, step, state, row)
    k.ret()
    return k


def ssm_scan_name(shape: HeadState) -> str:
    """`ssm_scan_<rows>x<lanes>`."""
    return f"ssm_scan_{shape.rows}x{shape.lanes}"


def ssm_scan(target: CpuTarget, shape: HeadState) -> Kernel:
    """The scan of Mamba-2.

    Arguments: x, dt, decay, B, C, d, out, state, bytes of a slot, bytes of a row of x, of dt
    and of B, heads, heads of a group, bytes of a head of x, step block.
    """
    k = Kernel(ssm_scan_name(shape), target)
    x, dt, decay, into, out_of, skip, out, home = (k.argument("ptr") for _ in range(8))
    slot_stride, x_row, g_row, b_row = (k.argument() for _ in range(4))
    heads, group, head = (k.argument() for _ in range(3))
    step = k.argument("ptr")
    lanes, type_ = shape.lanes, vec(shape.lanes, "float")
    own = k.alloca(type_, shape.rows)
    chunks = head.udiv(4 * lanes)
    low, high = k.share(heads * chunks)
    with k.loop(low, high) as unit:
        h, at = unit.index.udiv(chunks), unit.index.urem(chunks) * (4 * lanes)
        group_at, value_at = h.udiv(group) * (4 * shape.rows), h * head + at
        begin = k.gep(home, h * head * shape.rows + at)
        state = _Carried(shape.rows, lanes, begin, head, slot_stride, own)
        skipped = k.load_splat("float", lanes, skip, h * 4)

        def row(t: Value) -> None:
            b, c_row = (k.gep(p, t * b_row + group_at) for p in (into, out_of))
            by = k.load_splat("float", lanes, decay, t * g_row + h * 4)
            value = k.load(type_, x, t * x_row + value_at)
            put = value * k.load_splat("float", lanes, dt, t * g_row + h * 4)
            with k.loop(0, shape.rows, CHAINS, carry=[k.zero(type_)] * CHAINS) as i:
                for c in range(CHAINS):
                    place = state.at(k, i.index + c)
                    one = k.load_splat("float", lanes, b, (i.index + c) * 4)
                    kept = k.load(type_, place) * by + one * put
                    k.store(kept, place)
                    asked = k.load_splat("float", lanes, c_row, (i.index + c) * 4)
                    i.next.append(i.carried[c] + kept * asked)
            k.store(tree(i.results) + value * skipped, out, t * x_row + value_at)

        _walk(k, step, state, row)
    k.ret()
    return k


# -- around them ---------------------------------------------------------------------------


def by_column(target: CpuTarget, op: str) -> Kernel:
    """`softplus` of `x + vector`, or `decay`: `exp(x * vector)`.

    Arguments: x, vector, out, bytes of a row, address of the row count.
    """
    k = Kernel(f"columns_{op}", target)
    x, vector, out, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share((rows * width).udiv(32))
    b = MathOn(k)
    with k.loop(low, high) as i:
        offset = i.index << 5
        value, column = k.load(F32, x, offset), k.load(F32, vector, offset.urem(width))
        y = kmath.softplus(b, value + column) if op == "softplus" else kmath.exp(b, value * column)
        k.store(y, out, offset)
    k.ret()
    return k


def every_head(target: CpuTarget) -> Kernel:
    """Copy some heads of each row.

    Arguments: x, out, bytes of a head, bytes from a taken head to the next, bytes to the first,
    bytes of a row of x, heads taken, address of the row count.
    """
    k = Kernel("every_head", target)
    x, out = k.argument("ptr"), k.argument("ptr")
    head, between, first, row, taken = (k.argument() for _ in range(5))
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share(rows * taken)
    with k.loop(low, high) as unit:
        t, h = unit.index.udiv(taken), unit.index.urem(taken)
        source = k.gep(x, t * row + first + h * between)
        place = k.gep(out, unit.index * head)
        with k.loop(0, head, 32) as i:
            k.store(k.load(F32, source, i.index), place, i.index)
    k.ret()
    return k


def gate_rows(target: CpuTarget) -> Kernel:
    """Scale each row of y by the sigmoid of `w . x`.

    Arguments: y, x, w, out, bytes of a row of y, bytes of a row of x, address of the row count.
    """
    k = Kernel("gate_rows", target)
    y, x, w, out = (k.argument("ptr") for _ in range(4))
    y_row, x_row = k.argument(), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    chains = k.alloca(F32, NORM_CHAINS // 8)
    low, high = k.share(rows)
    with k.loop(low, high) as t:
        for c in range(NORM_CHAINS // 8):
            k.store(k.zero(F32), chains, 32 * c, align=32)
        row = k.gep(x, t.index * x_row)
        with k.loop(0, x_row, 32) as i:
            chain = k.gep(chains, i.index & 96)
            term = k.load(F32, row, i.index) * k.load(F32, w, i.index)
            k.store(k.load(F32, chain, align=32) + term, chain, align=32)
        sums = tree([k.load(F32, chains, 32 * c, align=32) for c in range(NORM_CHAINS // 8)])
        gate = kmath.sigmoid(MathOn(k), k.splat(lane_tree(k, sums), 8))
        source, place = (k.gep(p, t.index * y_row) for p in (y, out))
        with k.loop(0, y_row, 32) as i:
            k.store(k.load(F32, source, i.index) * gate, place, i.index)
    k.ret()
    return k
