"""Experts: routing rows, laying the rows of an expert together, products, weighted sums.

A *pair* is a row and one of its experts; pairs are numbered row by row, a row's experts
ascending. Pairs of one expert lie at neighbouring *places*, rows ascending; an expert that
has any is a *group*. Values of chosen experts lie by place, so a group's rows are a matrix
of their own, which the loop nests of an ordinary product take: a group's weights are
unpacked once for all its rows, and experts without rows are not touched. Quantized rows
are block-major within their group.

Which rows share a group follows from the rows of the step, but it decides only where a row
lies, never how it is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kinetic.ir.math as kmath
from kinetic.codegen.kernels.cpu.matmul import product_functions
from kinetic.codegen.kernels.cpu.matmul_float import float_product_functions
from kinetic.codegen.kernels.cpu.product import Epilogue
from kinetic.codegen.kernels.cpu.rows import gated, quantize_block
from kinetic.codegen.kernels.cpu.simd import F32, I32, Kernel, MathOn, lane_max
from kinetic.codegen.targets.llvm_ir import Function, Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import OP_COUNTER, ROWS, act_stride
from kinetic.ir.quant.base import BlockFormat, FloatFormat, Format

# -- a routing in memory: a header and one record a pair, i32 fields unless said ---------------
# Record `i` holds what is known of pair `i`, of place `i` and of group `i`, so that no
# offset depends on how many there are.
GROUPS = 0
"""i64: groups, the experts that have rows."""
PAIRS = 8
"""i64: pairs, rows times experts used."""
RECORDS = 64
RECORD = 40
PAIR_EXPERT, PAIR_SHARE, PAIR_PLACE = 0, 4, 8
"""A pair's expert, its weight (f32), and the place of its values."""
PLACE_ROW, PLACE_FIRST, PLACE_COUNT = 12, 16, 20
"""A place's row, and the first place and the number of places of its group."""
GROUP_EXPERT, GROUP_FIRST, GROUP_COUNT = 24, 28, 32
"""A group's expert, its first place and its number of places."""

MAX_EXPERTS = 1024
"""The router keeps a few words an expert on the stack."""

EXPERT_SUM_FLOOR = 2.0**-14
"""The shares of the chosen are divided by no less than this."""

NO_EPILOGUE = Epilogue()

_TAKEN = -(1 << 31)
_NAN_KEY = _TAKEN + 1
"""Keys of logits are above these; a NaN is chosen when nothing else is left."""
_SUM_PART = 8
"""Vectors of a row that a thread sums at once."""


def routing_size(pairs: int) -> int:
    """Bytes of a routing of so many pairs."""
    return RECORDS + RECORD * pairs


def _record(k: Kernel, routing: Value, index: Value) -> Value:
    return k.gep(routing, index * RECORD + RECORDS)


def _field(k: Kernel, record: Value, offset: int) -> Value:
    return k.load("i32", record, offset, align=4).cast("zext", "i64")


def _put(k: Kernel, value: Value, record: Value, offset: int) -> None:
    k.store(value.cast("trunc", "i32"), record, offset, align=4)


# -- routing -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RouteShape:
    """What a `route` kernel is specialised for: `n_used` of `experts`, and how they are chosen
    and weighted, as the op's attributes say."""

    n_used: int
    experts: int
    norm: bool = True
    kind: str = "softmax"
    biased: bool = False
    scaled: bool = False
    own_scales: bool = False

    @property
    def name(self) -> str:
        """`route_2of8[_sigmoid][_bias][_norm][_scale][_scales]`."""
        parts = {"sigmoid": self.kind == "sigmoid", "bias": self.biased}
        parts |= {"norm": self.norm, "scale": self.scaled, "scales": self.own_scales}
        used = "".join(f"_{part}" for part, there in parts.items() if there)
        return f"route_{self.n_used}of{self.experts}{used}"


def route(target: CpuTarget, shape: RouteShape) -> Kernel:
    """`route_...`: shares of all experts, the best of each row, groups.

    Arguments: logits, routing, bytes of a row, address of the row count; where the shape has
    them, the bias of the choice, the f32 scale of the weights and each expert's own.
    """
    k, (n_used, experts) = Kernel(shape.name, target), (shape.n_used, shape.experts)
    logits, routing, stride = k.argument("ptr"), k.argument("ptr"), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    bias = k.argument("ptr") if shape.biased else None
    scale = k.argument("float") if shape.scaled else None
    own = k.argument("ptr") if shape.own_scales else None
    vectors = -(-experts // 8)
    keys, share = k.alloca(I32, vectors), k.alloca(F32, vectors)
    tables = [k.alloca("i32", experts) for _ in range(3)]

    def row(t: Value) -> None:
        scores = k.gep(logits, t * stride)
        if shape.kind == "sigmoid":
            _sigmoid(k, scores, vectors, share)
        else:
            _softmax(k, scores, experts, share)
        _rank(k, scores, experts, keys, None if bias is None else (share, bias))
        with k.loop(0, n_used):
            _take_best(k, keys, vectors)
        records = k.gep(routing, t * (n_used * RECORD))
        _write_pairs(k, records, shape, keys, share, scale, own)

    _draw_then_last(k, rows, row, lambda: _group(k, routing, rows, n_used, experts, tables))
    k.ret()
    return k


def _draw_then_last(
    k: Kernel, count: Value, body: Callable[[Value], None], last: Callable[[], None]
) -> None:
    """Threads draw items; the one that finds them all done goes on alone.

    A thread's draw past the end comes after its work, so whoever makes the last such draw
    sees everybody's.
    """
    counter = k.load("ptr", k.arg["op"], OP_COUNTER, align=8)
    again, work, drawn = (k.new_label(p) for p in ("draw", "work", "drawn"))
    k.branch(again)
    k.label(again)
    item = k.emit(f"atomicrmw add ptr {counter.ref}, i64 1 acq_rel", "i64")
    more = item.compare("slt", count)
    k.line(f"br i1 {more.ref}, label %{work}, label %{drawn}")
    k.label(work)
    body(item)
    k.branch(again)
    k.label(drawn)
    with k.if_(item.compare("eq", count + k.nth - 1)):
        last()


def _sigmoid(k: Kernel, row: Value, vectors: int, share: Value) -> None:
    """The sigmoid of each expert's logit."""
    with k.loop(0, vectors) as v:
        at = v.index << 5
        k.store(kmath.sigmoid(MathOn(k), k.load(F32, row, at)), share, at, align=32)


def _rank(
    k: Kernel, row: Value, experts: int, keys: Value, biased: tuple[Value, Value] | None
) -> None:
    """Integer keys in the order of the logits, or of the (shares, bias) added."""
    b, lanes = MathOn(k), k.vector("i32", range(8))
    with k.loop(0, -(-experts // 8)) as v:
        at = v.index << 5
        if biased is None:
            score = k.load(F32, row, at)
        else:
            score = k.load(F32, biased[0], at, align=32) + k.load(F32, biased[1], at)
        bits = b.bits(score)
        key = k.select(bits.compare("slt", 0), bits ^ 0x7FFFFFFF, bits)
        key = k.select(score.compare("oeq", 0.0), k.zero(I32), key)
        key = k.select(score.compare("uno", score), k.const(I32, _NAN_KEY), key)
        index = k.splat((v.index << 3).cast("trunc", "i32"), 8) + lanes
        key = k.select(index.compare("slt", experts), key, k.const(I32, _TAKEN))
        k.store(key, keys, at, align=32)


def _softmax(k: Kernel, row: Value, experts: int, share: Value) -> None:
    """Shares of all experts."""
    b, vectors = MathOn(k), -(-experts // 8)
    with k.loop(1, experts, carry=[k.load("float", row)]) as e:
        top, logit = e.carried[0], k.load("float", row, e.index << 2)
        e.next = [k.select(top.compare("ogt", logit), top, logit)]
    largest = k.splat(e.results[0], 8)
    with k.loop(0, vectors) as v:
        at = v.index << 5
        k.store(kmath.exp(b, k.load(F32, row, at) - largest), share, at, align=32)
    with k.loop(0, experts, carry=[k.const("float", 0.0)]) as e:
        e.next = [e.carried[0] + k.load("float", share, e.index << 2)]
    inverse = kmath.recip(b, k.splat(e.results[0], 8))
    with k.loop(0, vectors) as v:
        at = v.index << 5
        k.store(k.load(F32, share, at, align=32) * inverse, share, at, align=32)


def _take_best(k: Kernel, keys: Value, vectors: int) -> None:
    """Mark the largest key, of equal ones the first, as taken."""
    none, lanes = k.const(I32, _TAKEN), k.vector("i32", range(0, -8, -1))
    with k.loop(0, vectors, carry=[none, none]) as v:
        best, negated = v.carried
        key = k.load(I32, keys, v.index << 5, align=32)
        index = lanes - k.splat((v.index << 3).cast("trunc", "i32"), 8)
        better = key.compare("sgt", best)
        v.next = [k.select(better, key, best), k.select(better, index, negated)]
    best, negated = v.results
    ties = best.compare("eq", k.splat(lane_max(k, best), 8))
    found = lane_max(k, k.select(ties, negated, none))
    index = (k.const("i32", 0) - found).cast("zext", "i64")
    k.store(k.const("i32", _TAKEN), keys, index << 2, align=4)


def _write_pairs(
    k: Kernel,
    records: Value,
    shape: RouteShape,
    keys: Value,
    share: Value,
    scale: Value | None,
    own: Value | None,
) -> None:
    """The taken experts and their shares, ascending, as the row's pairs."""
    nothing = [k.const("i64", 0), k.const("float", 0.0)]
    with k.loop(0, shape.experts, carry=nothing) as e:
        pair, kept = e.carried
        taken = k.load("i32", keys, e.index << 2, align=4).compare("eq", _TAKEN)
        weight = k.load("float", share, e.index << 2, align=4)
        with k.if_(taken):
            record = _record(k, records, pair)
            _put(k, e.index, record, PAIR_EXPERT)
            k.store(weight, record, PAIR_SHARE, align=4)
        e.next = [pair + taken.cast("zext", "i64"), k.select(taken, kept + weight, kept)]
    factors = []
    if shape.norm:
        kept, floor = e.results[1], k.const("float", EXPERT_SUM_FLOOR)
        bounded = k.select(kept.compare("ogt", floor), kept, floor)
        factors.append(kmath.recip(MathOn(k), k.splat(bounded, 8)).at(0))
    if scale is not None:
        factors.append(scale)
    if not factors and own is None:
        return
    with k.loop(0, shape.n_used) as j:
        record = _record(k, records, j.index)
        weight = k.load("float", record, PAIR_SHARE, align=4)
        for factor in factors:
            weight = weight * factor
        if own is not None:
            weight = weight * k.load("float", own, _field(k, record, PAIR_EXPERT) << 2)
        k.store(weight, record, PAIR_SHARE, align=4)


def _group(
    k: Kernel, routing: Value, rows: Value, n_used: int, experts: int, tables: list[Value]
) -> None:
    """Give every pair its place: a counting sort of the pairs by expert."""
    counts, firsts, nexts = tables
    pairs = rows * n_used
    with k.loop(0, experts) as e:
        k.store(k.const("i32", 0), counts, e.index << 2, align=4)
    with k.loop(0, pairs) as i:
        at = k.gep(counts, _field(k, _record(k, routing, i.index), PAIR_EXPERT) << 2)
        k.store(k.load("i32", at, align=4) + 1, at, align=4)
    with k.loop(0, experts, carry=[k.const("i64", 0), k.const("i64", 0)]) as e:
        group, first = e.carried
        count = _field(k, k.gep(counts, e.index << 2), 0)
        for table in (firsts, nexts):
            _put(k, first, k.gep(table, e.index << 2), 0)
        used = count.compare("ne", 0)
        with k.if_(used):
            record = _record(k, routing, group)
            _put(k, e.index, record, GROUP_EXPERT)
            _put(k, first, record, GROUP_FIRST)
            _put(k, count, record, GROUP_COUNT)
        e.next = [group + used.cast("zext", "i64"), first + count]
    k.store(e.results[0], routing, GROUPS, align=8)
    k.store(pairs, routing, PAIRS, align=8)
    with k.loop(0, pairs) as i:
        pair = _record(k, routing, i.index)
        expert = _field(k, pair, PAIR_EXPERT) << 2
        place = _field(k, k.gep(nexts, expert), 0)
        _put(k, place + 1, k.gep(nexts, expert), 0)
        _put(k, place, pair, PAIR_PLACE)
        record = _record(k, routing, place)
        _put(k, i.index.udiv(n_used), record, PLACE_ROW)
        _put(k, _field(k, k.gep(firsts, expert), 0), record, PLACE_FIRST)
        _put(k, _field(k, k.gep(counts, expert), 0), record, PLACE_COUNT)


# -- rows by place ---------------------------------------------------------------------------


class _Grouped:
    """Addresses of the quantized blocks of one place: block-major within its group."""

    def __init__(
        self, k: Kernel, base: Value, record: Value, place: Value, blocks: Value, block: int
    ):
        self.k, self.stride = k, act_stride(block)
        first = _field(k, record, PLACE_FIRST)
        self.count = _field(k, record, PLACE_COUNT)
        self.base = k.gep(base, (first * blocks + (place - first)) * self.stride)

    def block(self, index: Value) -> Value:
        """Address of one block."""
        return self.k.gep(self.base, index * self.count * self.stride)


def expert_rows(target: CpuTarget, block: int | None) -> Kernel:
    """`expert_rows` or `expert_rows_B`: each row, plain or quantized, to its places.

    Arguments: x, out, routing, blocks of a row (of plain rows: vectors), address of the
    row count.
    """
    k = Kernel("expert_rows" + (f"_{block}" if block else ""), target)
    x, out, routing, blocks = (k.argument(t) for t in ("ptr", "ptr", "ptr", "i64"))
    rows = k.load("i64", k.argument("ptr"), align=8)
    low, high = k.share(k.load("i64", routing, PAIRS, align=8))
    with k.loop(low, high) as place:
        record = _record(k, routing, place.index)
        row = _field(k, record, PLACE_ROW)
        if block is None:
            source, to = (k.gep(p, i * blocks * 32) for p, i in ((x, row), (out, place.index)))
            with k.loop(0, blocks) as v:
                k.store(k.load(F32, source, v.index << 5), to, v.index << 5)
        else:
            placed = _Grouped(k, out, record, place.index, blocks, block)
            with k.loop(0, blocks) as b:
                _copy_block(
                    k,
                    k.gep(x, (b.index * rows + row) * placed.stride),
                    placed.block(b.index),
                    placed.stride,
                )
    k.ret()
    return k


def _copy_block(k: Kernel, source: Value, to: Value, nbytes: int) -> None:
    wide = vec(32, "i8")
    for at in range(0, nbytes - 31, 32):
        k.store(k.load(wide, source, at), to, at)
    for at in range(nbytes // 32 * 32, nbytes, 8):
        k.store(k.load("i64", source, at), to, at)


def expert_glu(target: CpuTarget, act: str, block: int | None) -> Kernel:
    """`expert_glu_<act>[_quantize_B]`: `act(gate) * up` by place.

    Arguments: gate, up, out, routing, bytes of a row.
    """
    k = Kernel(f"expert_glu_{act}" + (f"_quantize_{block}" if block else ""), target)
    gate, up, out, routing, width = (k.argument(t) for t in ("ptr", "ptr", "ptr", "ptr", "i64"))
    pairs = k.load("i64", routing, PAIRS, align=8)
    if block is None:
        low, high = k.share((pairs * width).udiv(32))
        with k.loop(low, high) as v:
            at = v.index << 5
            k.store(gated(k, act, gate, up, at, 8), out, at)
        k.ret()
        return k
    blocks = width.udiv(4 * block)
    low, high = k.share(pairs * blocks)
    with k.loop(low, high) as unit:
        place, index = unit.index.udiv(blocks), unit.index.urem(blocks)
        placed = _Grouped(k, out, _record(k, routing, place), place, blocks, block)
        g, u = k.gep(gate, place * width), k.gep(up, place * width)
        quantize_block(
            k,
            block,
            lambda at, lanes: gated(k, act, g, u, at, lanes),
            index * (4 * block),
            placed.block(index),
        )
    k.ret()
    return k


# -- products --------------------------------------------------------------------------------


def expert_matmul(
    fmt: Format, target: CpuTarget, epilogue: Epilogue = NO_EPILOGUE
) -> list[Function]:
    """The plan operation `expert_matmul_<format>` and the loop nests of the plain product.

    Arguments: weights, activations, out, routing, blocks (or columns) of a row, row groups
    of an expert, groups a chunk, bytes of an expert, bytes of a row of activations, bytes
    of a row of `out`, and with a bias its rows, one an expert.
    """
    if isinstance(fmt, BlockFormat):
        product = product_functions(fmt, target, epilogue)
    else:
        assert isinstance(fmt, FloatFormat)
        product = float_product_functions(fmt, target, epilogue)
    name = fmt.name.lower() + epilogue.suffix
    k = Kernel(f"expert_matmul_{name}", target)
    weights, acts, out, routing = (k.argument("ptr") for _ in range(4))
    inner, groups, chunk, expert_bytes, act_row, stride = (k.argument() for _ in range(6))
    biases = k.argument("ptr") if epilogue.bias else None
    chunks = (groups + chunk - 1).udiv(chunk)

    def work(item: Value) -> None:
        record = _record(k, routing, item.udiv(chunks))
        place, count = _field(k, record, GROUP_FIRST), _field(k, record, GROUP_COUNT)
        expert = _field(k, record, GROUP_EXPERT)
        matrix = k.gep(weights, expert * expert_bytes)
        bias = k.zero("ptr") if biases is None else k.gep(biases, expert * stride)
        rows, to = k.gep(acts, place * act_row), k.gep(out, place * stride)
        first = item.urem(chunks) * chunk
        last = k.minimum(first + chunk, groups)
        args = (matrix, rows, to, bias, inner, first, last, count, stride)
        k.call_local(f"product_{name}", "void", *args)

    k.take(k.load("i64", routing, GROUPS, align=8) * chunks, work)
    k.ret()
    return [*product, k]


def expert_groups(outputs: int) -> int:
    """Row groups of one expert's matrix, which holds whole ones."""
    return outputs // ROWS


# -- the sum ---------------------------------------------------------------------------------


def expert_sum(target: CpuTarget, *, residual: bool) -> Kernel:
    """`expert_sum[_add]`: a row's pairs times their shares, in order; then `+ residual`.

    Arguments: y, routing, out (with a residual: what it holds), vectors of a row, experts
    used, address of the row count.
    """
    k = Kernel("expert_sum" + ("_add" if residual else ""), target)
    y, routing, out = (k.argument("ptr") for _ in range(3))
    vectors, used = k.argument(), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    width = vectors << 5
    parts = (vectors + (_SUM_PART - 1)).udiv(_SUM_PART)
    low, high = k.share(rows * parts)
    with k.loop(low, high) as unit:
        row, part = unit.index.udiv(parts), unit.index.urem(parts) * _SUM_PART
        pair = row * used
        address = k.gep(out, row * width)

        def term(index: Value, at: Value) -> Value:
            record = _record(k, routing, index)
            value = k.load(F32, y, _field(k, record, PAIR_PLACE) * width + at)
            return value * k.load_splat("float", 8, record, PAIR_SHARE)

        with k.loop(part, k.minimum(part + _SUM_PART, vectors)) as v:
            at = v.index << 5
            with k.loop(1, used, carry=[term(pair, at)]) as j:
                j.next = [j.carried[0] + term(pair + j.index, at)]
            total = j.results[0]
            if residual:
                total = k.load(F32, address, at) + total
            k.store(total, address, at)
    k.ret()
    return k
