"""The quantized product `out[t, n] = sum_k W[n, k] x[t, k]` (docs/arithmetic.md section 4).

One generator makes both shapes of the loop nest from a format's declaration:

- `one`: a single row of activations. Walks a group of eight weight rows block by block;
  bound by the memory that the weights come from, so it asks for lines ahead.
- `many`: tokens inside. A block is unpacked once and meets every token of a tile, the
  tile's accumulators staying in the first-level cache.

Both do the same float updates in the same chains, so batch size chooses only the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinetic.codegen.kernels.cpu.dot import (
    PairScales,
    Scale,
    dot_run,
    dot_tile,
    load_pair,
    returns_centred,
    unpack32,
)
from kinetic.codegen.kernels.cpu.layout import GROUPS32, Packed
from kinetic.codegen.kernels.cpu.simd import (
    F32,
    I32,
    LANES,
    CpuFunction,
    Kernel,
    RowGroups,
    multiply_add16,
    tree,
    widen_bf16,
    widen_f16,
)
from kinetic.codegen.targets.llvm_ir import Function, Value, lanes_of, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.cpu_abi import (
    ACT32_SCALE,
    ACT32_SUM,
    ACT256_SCALE,
    ACT256_SUMS16,
    ACT256_SUMS32,
    act_stride,
)
from kinetic.ir.quant.base import BlockFormat

CHAINS = 4
"""P of a block-quantized product."""
PANEL = 16
"""Row groups that stay in the second-level cache while token tiles pass by."""
ONE_ROW_DRAW = 2
"""Times longer a thread's draw is when there is a single row."""
PREFETCH = 2048
"""Bytes the single-row loop asks ahead."""
ABREAST512 = 4
"""Rows of activations that 512-bit tiles take side by side."""


@dataclass(frozen=True)
class Epilogue:
    """What happens to a finished sum: `+ bias`, then `+ what the output held`."""

    bias: bool = False
    residual: bool = False

    @property
    def suffix(self) -> str:
        """Part of the kernel's name."""
        return ("_bias" if self.bias else "") + ("_add" if self.residual else "")


def token_tile(fmt: BlockFormat) -> int:
    """Tokens whose accumulators share the first-level cache with the activations."""
    return 64 if fmt.block == 32 else 32


class _Nest:
    """What both loop nests share: argument names, block arithmetic, the epilogue."""

    ARGS = (
        ("ptr", "weights"),
        ("ptr", "acts"),
        ("ptr", "out"),
        ("ptr", "bias"),
        ("i64", "blocks"),
        ("i64", "first"),
        ("i64", "last"),
        ("i64", "rows"),
        ("i64", "stride"),
    )

    def __init__(self, k: CpuFunction, fmt: BlockFormat, epilogue: Epilogue):
        self.k = k
        self.fmt, self.packed, self.epilogue = fmt, Packed(fmt), epilogue
        arg = self.k.arg
        self.weights, self.acts, self.out, self.bias = (arg[a] for _, a in self.ARGS[:4])
        self.blocks, self.first, self.last = arg["blocks"], arg["first"], arg["last"]
        self.rows, self.stride = arg["rows"], arg["stride"]
        self.act_stride = act_stride(fmt.block)
        self.group_stride = self.k.arg["blocks"] * self.packed.nbytes

    def blocks_at(self, bases: RowGroups, index: Value) -> RowGroups:
        """The `index`-th block of each row group."""
        return bases.move(index * self.packed.nbytes)

    def floats(self, block: RowGroups, offset: int, *, bf16: bool = False) -> Value:
        """A 16-bit float of each row, widened."""
        raw = block.load(vec(LANES, "i16"), offset)
        return (widen_bf16 if bf16 else widen_f16)(self.k, raw)

    def block_scales(self, block: RowGroups) -> list[Value]:
        """The rows' `d`, one for each update."""
        e8m0 = self.fmt.d_e8m0
        found = [self.floats(block, 16 * u, bf16=e8m0) for u in range(self.fmt.updates)]
        return found if self.fmt.d_factor == 1 else [d * self.fmt.d_factor for d in found]

    def update(self, acc: Value, scales: list[Value], act: Value, isums: list[Value]) -> Value:
        """`acc + (d * d_x) * float(isum)` for each of the block's updates."""
        at = ACT32_SCALE if self.fmt.block == 32 else ACT256_SCALE
        d_x = self.k.load_splat("float", lanes_of(acc.type), act, at)
        for d, isum in zip(scales, isums, strict=True):
            acc = acc + (d * d_x) * isum.cast("sitofp", acc.type)
        return acc

    def isums32(self, codes: list[list[Value]], acts: list[Value]) -> list[list[list[Value]]]:
        """`isum` of each update of a 32-value block, `[group][row]`.

        The codes are unsigned: `zero * sum(a)` comes off the sums, where they start.
        """
        k, fmt = self.k, self.fmt
        zero = 0 if returns_centred(k, fmt.dot_top) else fmt.dot_zero
        starts: list[list[Value] | None] = [None] * fmt.updates
        if zero:
            bytes_type = codes[0][0].type
            sums = [k.load_splat("i32", lanes_of(bytes_type) // 4, act, ACT32_SUM) for act in acts]
            starts = [[s * -zero for s in sums]]
            if fmt.updates == 2:
                low = [self.sum16(act, bytes_type) for act in acts]
                high = [s - x for s, x in zip(sums, low, strict=True)]
                starts = [[s * -zero for s in part] for part in (low, high)]
        unscaled: list[Scale] = [None] * len(codes)
        width = GROUPS32 // fmt.updates
        parts = [
            dot_tile(
                k,
                fmt.dot_top,
                [c[width * u : width * (u + 1)] for c in codes],
                acts,
                4 * width * u,
                unscaled,
                starts[u],
            )
            for u in range(fmt.updates)
        ]
        return [
            [[part[g][t] for part in parts] for t in range(len(acts))] for g in range(len(codes))
        ]

    def sum16(self, act: Value, bytes_type: str) -> Value:
        """Sum of a block's first sixteen activations, in every lane."""
        ones = self.k.const(bytes_type, 1)
        return dot_run(self.k, 1, [ones] * (GROUPS32 // 2), act, 0)

    def minimum32(self, acc: Value, block: RowGroups, act: Value) -> Value:
        """The update for the minimum of a 32-value block (Q4_1, Q5_1)."""
        if self.fmt.dmin is None:
            return acc
        d_x = block.splat("float", act, ACT32_SCALE)
        msum = block.splat("i32", act, ACT32_SUM).cast("sitofp", acc.type)
        return acc + (self.floats(block, self.packed.dmin) * d_x) * msum

    def pair_sum(self, block: RowGroups, base: int, act: Value, sums: int, signed: bool) -> Value:
        """Sum over groups of an integer per group times the group's activation sum."""
        k, total = self.k, None
        # One integer for the whole block: its sums of 32 are added.
        ones = k.const(vec(2 * block.lanes, "i16"), 1)
        for pair in range(max(self.fmt.groups, 8) // 2):
            scaled = self.fmt.groups > 1
            values = load_pair(block, base, pair, signed=signed).pair if scaled else ones
            both = block.splat("i32", act, sums + 4 * pair).cast("bitcast", values.type)
            part = multiply_add16(k, values, both)
            total = part if total is None else total + part
        assert total is not None
        return total

    def zero_point256(self, block: RowGroups, act: Value, isum: Value) -> Value:
        """Take `zero * sum_j s_j sum(a)` off a 256-value block's scaled dots."""
        zero = 0 if returns_centred(self.k, self.fmt.dot_top) else self.fmt.dot_zero
        if zero == 0:
            return isum
        sums = ACT256_SUMS16 if self.fmt.group_values == 16 else ACT256_SUMS32
        signed = self.fmt.scale_signed
        offset = self.pair_sum(block, self.packed.scales, act, sums, signed)
        return isum - offset * zero

    def minimum256(self, acc: Value, block: RowGroups, act: Value) -> Value:
        """The update for the minima of a 256-value block (Q4_K, Q5_K)."""
        if self.fmt.dmin is None:
            return acc
        sums = ACT256_SUMS16 if self.fmt.group_values == 16 else ACT256_SUMS32
        msum = self.pair_sum(block, self.packed.minima, act, sums, False).cast("sitofp", acc.type)
        term = self.floats(block, self.packed.dmin) * block.splat("float", act, ACT256_SCALE)
        return acc - term * msum

    def scaled_tile(
        self,
        codes: list[list[Value]],
        pairs: list[PairScales | None],
        acts: list[Value],
        at: Value,
        which: int,
    ) -> list[list[Value]]:
        """Scaled dots of 32 values, `[group][row]`: one scale group of 32 or two of 16."""
        k, fmt = self.k, self.fmt

        def scales(of: int) -> list[Scale]:
            return [(pair, of, fmt.scale_signed) if pair else None for pair in pairs]

        if fmt.group_values >= 32:
            return dot_tile(k, fmt.dot_top, codes, acts, at, scales(which))
        half = GROUPS32 // 2
        low = dot_tile(k, fmt.dot_top, [c[:half] for c in codes], acts, at, scales(0))
        high = dot_tile(k, fmt.dot_top, [c[half:] for c in codes], acts, at + 16, scales(1))
        return [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(low, high, strict=True)]

    def pair_of(self, block: RowGroups, part: Value, half: Value) -> PairScales | None:
        """The scales of the `part`-th 32 values, `half` numbering 64; none where it has none."""
        if not self.packed.has_scales:
            return None
        pair = half if self.fmt.group_values == 32 else part
        signed = self.fmt.scale_signed
        return load_pair(block, self.packed.scales, pair, signed=signed)

    def write(self, total: Value, row: Value, group: Value) -> None:
        """Apply the epilogue and store the outputs of one row, from row group `group` on."""
        k = self.k
        column = group * 32
        if self.epilogue.bias:
            total = total + k.load(total.type, self.bias, column)
        address = k.gep(self.out, row * self.stride + column)
        if self.epilogue.residual:
            total = k.load(total.type, address) + total
        k.store(total, address)


def _one(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> Function:
    k = CpuFunction(f"one_{fmt.name.lower()}{epilogue.suffix}", _Nest.ARGS, target)
    n = _Nest(k, fmt, epilogue)
    chains = k.alloca(F32, CHAINS)
    with k.loop(n.first, n.last) as group:
        base = k.gep(n.weights, group.index * n.group_stride)
        for c in range(CHAINS):
            k.store(k.zero(F32), chains, 32 * c, align=32)
        with k.loop(0, n.blocks) as b:
            place = k.gep(base, b.index * n.packed.nbytes)
            block = RowGroups(k, place)
            act = k.gep(n.acts, b.index * n.act_stride)
            for line in range(0, n.packed.nbytes, 64):
                k.prefetch(place, line + PREFETCH)
            chain = k.gep(chains, (b.index & (CHAINS - 1)) << 5)
            acc = k.load(F32, chain, align=32)
            if fmt.block == 32:
                isums = n.isums32([unpack32(k, n.packed, block, 0)], [act])[0][0]
                acc = n.update(acc, n.block_scales(block), act, isums)
                acc = n.minimum32(acc, block, act)
            else:
                isum = k.zero(I32)
                with k.loop(0, fmt.block // 64, carry=[isum]) as two:
                    total = two.carried[0]
                    for which in range(2):
                        part = two.index * 2 + which
                        total = total + _part256(n, block, act, part, which, two.index)
                    two.next = [total]
                isum = n.zero_point256(block, act, two.results[0])
                acc = n.update(acc, n.block_scales(block), act, [isum])
                acc = n.minimum256(acc, block, act)
            k.store(acc, chain, align=32)
        sums = [k.load(F32, chains, 32 * c, align=32) for c in range(CHAINS)]
        n.write(tree(sums), k.const("i64", 0), group.index)
    k.ret()
    return k


def _part256(n: _Nest, block: RowGroups, act: Value, part: Value, which: int, half: Value) -> Value:
    """Scaled dot of the `part`-th 32 values of a 256-value block."""
    scales = n.pair_of(block, part, half)
    codes = unpack32(n.k, n.packed, block, part)
    return n.scaled_tile([codes], [scales], [act], part * 32, which)[0][0]


def _many(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> Function:
    k = CpuFunction(f"many_{fmt.name.lower()}{epilogue.suffix}", _Nest.ARGS, target)
    n = _Nest(k, fmt, epilogue)
    tile = _Tile(n, *_tile_shape(target))
    with k.loop(n.first, n.last, PANEL) as panel, k.loop(0, n.rows, tile.tokens) as t0:
        end = k.minimum(panel.index + PANEL, n.last)
        count = k.minimum(n.rows - t0.index, tile.tokens)
        odd = (end - panel.index) & (tile.groups - 1)
        with k.loop(panel.index, end - odd, tile.groups) as g:
            tile.emit(g.index, t0.index, count)
        if tile.groups > 1:
            single = _Tile(n, 1, 1)
            with k.loop(end - odd, end) as g:
                single.emit(g.index, t0.index, count)
    k.ret()
    return k


def _tile_shape(target: CpuTarget) -> tuple[int, int]:
    """Vectors of a tile, and row groups of a vector.

    With 32 vector registers two vectors share every activation that is broadcast; with 16 one
    group's codes already fill half of them.
    """
    if target.vector_bits == 512:
        return 1, 2
    return (2 if target.registers >= 32 else 1), 1


class _Tile:
    """A tile of tokens against a few row groups: accumulators in the first-level cache.

    `vectors` vectors of `span` row groups each.
    """

    def __init__(self, n: _Nest, vectors: int, span: int):
        self.n, self.k = n, n.k
        self.vectors, self.span = vectors, span
        self.groups = vectors * span
        self.tokens = token_tile(n.fmt)
        self.f32, self.i32 = vec(LANES * span, "float"), vec(LANES * span, "i32")
        self.width = 32 * span
        self.lane = self.width * self.tokens
        self.abreast = (ABREAST512 if span > 1 else 4) if n.k.target.dot == "vnni" else 1
        self.chains = n.k.alloca(self.f32, CHAINS * vectors * self.tokens, align=64)
        self.isums = None
        if n.fmt.block == 256:
            self.isums = n.k.alloca(self.i32, vectors * self.tokens, align=64)

    def clear(self, place: Value, type_: str, count: int) -> None:
        """Zeros in `count` vectors."""
        with self.k.loop(0, count) as i:
            self.k.store(self.k.zero(type_), place, i.index * self.width, align=32)

    def emit(self, group: Value, token: Value, count: Value) -> None:
        """All blocks of the rows from `group` on, then the trees and the epilogue."""
        n, k, span = self.n, self.k, self.span
        bases = [
            RowGroups(
                k,
                *(k.gep(n.weights, (group + (span * v + i)) * n.group_stride) for i in range(span)),
            )
            for v in range(self.vectors)
        ]
        self.clear(self.chains, self.f32, CHAINS * self.vectors * self.tokens)
        first = k.gep(n.acts, token * n.act_stride)
        step = self.lane * self.vectors
        with k.loop(0, n.blocks) as b:
            blocks = [n.blocks_at(base, b.index) for base in bases]
            acts = k.gep(first, b.index * (n.rows * n.act_stride))
            chain = k.gep(self.chains, (b.index & (CHAINS - 1)) * step)
            (self.block32 if n.fmt.block == 32 else self.block256)(blocks, acts, chain, count)
        with k.loop(0, count) as t:
            for v in range(self.vectors):
                at = t.index * self.width + self.lane * v
                sums = [
                    k.load(self.f32, k.gep(self.chains, step * c), at, align=32)
                    for c in range(CHAINS)
                ]
                n.write(tree(sums), t.index + token, group + span * v)

    def slot(self, base: Value, token: Value, vector: int) -> Value:
        """Where a token's sums with a vector's rows lie."""
        return self.k.gep(base, token * self.width + self.lane * vector)

    def block32(self, blocks: list[RowGroups], acts: Value, chain: Value, count: Value) -> None:
        """One 32-value block of each row group against the tokens."""
        n, k = self.n, self.k
        codes = [unpack32(k, n.packed, block, 0) for block in blocks]
        scales = [n.block_scales(block) for block in blocks]

        def rows(tokens: list[Value]) -> None:
            acts_of = [k.gep(acts, t * n.act_stride) for t in tokens]
            # All dots before any store, so that the vectors share the broadcasts.
            isums = n.isums32(codes, acts_of)
            for v, block in enumerate(blocks):
                for t, act, isum in zip(tokens, acts_of, isums[v], strict=True):
                    slot = self.slot(chain, t, v)
                    acc = n.update(k.load(self.f32, slot, align=32), scales[v], act, isum)
                    k.store(n.minimum32(acc, block, act), slot, align=32)

        self.each_row(count, rows)

    def each_row(self, count: Value, body: Callable[[list[Value]], None]) -> None:
        """`body` over the tile's rows, a few abreast and then the rest one by one."""
        k, step = self.k, self.abreast
        whole = count - (count & (step - 1))
        if step > 1:
            with k.loop(0, whole, step) as t:
                body([t.index + i for i in range(step)])
        with k.loop(whole if step > 1 else 0, count) as t:
            body([t.index])

    def block256(self, blocks: list[RowGroups], acts: Value, chain: Value, count: Value) -> None:
        """One 256-value block of each row group against the tokens, 32 values at a time."""
        n, k, fmt = self.n, self.k, self.n.fmt
        assert self.isums is not None
        self.clear(self.isums, self.i32, self.vectors * self.tokens)
        with k.loop(0, fmt.block // 64) as two:
            for which in range(2):
                self.part256(blocks, acts, two.index * 2 + which, two.index, which, count)
        scales = [n.block_scales(block) for block in blocks]
        with k.loop(0, count) as t:
            act = k.gep(acts, t.index * n.act_stride)
            for v, block in enumerate(blocks):
                slot = self.slot(chain, t.index, v)
                isum = k.load(self.i32, self.slot(self.isums, t.index, v), align=32)
                isum = n.zero_point256(block, act, isum)
                acc = n.update(k.load(self.f32, slot, align=32), scales[v], act, [isum])
                k.store(n.minimum256(acc, block, act), slot, align=32)

    def part256(
        self,
        blocks: list[RowGroups],
        acts: Value,
        part: Value,
        half: Value,
        which: int,
        count: Value,
    ) -> None:
        """The `part`-th 32 values of the blocks, scaled, added to the tokens' sums."""
        n, k = self.n, self.k
        assert self.isums is not None
        isums = self.isums
        scales = [n.pair_of(block, part, half) for block in blocks]
        codes = [unpack32(k, n.packed, block, part) for block in blocks]

        def rows(tokens: list[Value]) -> None:
            acts_of = [k.gep(acts, t * n.act_stride) for t in tokens]
            dots = n.scaled_tile(codes, scales, acts_of, part * 32, which)
            for v, row in enumerate(dots):
                for t, dot in zip(tokens, row, strict=True):
                    slot = self.slot(isums, t, v)
                    k.store(k.load(self.i32, slot, align=32) + dot, slot, align=32)

        self.each_row(count, rows)


def split_rows(
    k: Kernel,
    one: str,
    many: str,
    call: Callable[[str, Value, Value, Value], None],
    groups: Value,
    rows: Value,
    chunk: Value,
) -> None:
    """Draw chunks of row groups and call the loop nest that fits the number of rows."""
    # A single row streams weights from memory, and a stream takes a while to get going:
    # longer draws than for many rows, where a draw's weights pass by the activations.
    chunk = k.select(rows.compare("eq", 1), chunk * ONE_ROW_DRAW, chunk)
    chunks = (groups + chunk - 1).udiv(chunk)

    def work(item: Value) -> None:
        first = item * chunk
        last = k.minimum(first + chunk, groups)
        single, several, done = (k.new_label(p) for p in ("one", "many", "done"))
        is_one = rows.compare("eq", 1)
        k.line(f"br i1 {is_one.ref}, label %{single}, label %{several}")
        k.label(single)
        call(one, first, last, rows)
        k.branch(done)
        k.label(several)
        call(many, first, last, rows)
        k.branch(done)
        k.label(done)

    with k.if_(rows.compare("sgt", 0)):
        k.take(chunks, work)


def matmul(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> list[Function]:
    """The plan operation `matmul_<format>` and the two loop nests it calls.

    Arguments: weights, activations, out, bias, blocks of a row, row groups, address of
    the row count, groups a chunk, bytes between rows of `out`.
    """
    one, many = _one(fmt, target, epilogue), _many(fmt, target, epilogue)
    k = Kernel(f"matmul_{fmt.name.lower()}{epilogue.suffix}", target)
    weights, acts, out, bias = (k.argument("ptr") for _ in range(4))
    blocks, groups = k.argument(), k.argument()
    rows = k.load("i64", k.argument("ptr"), align=8)
    chunk, stride = k.argument(), k.argument()

    def call(name: str, first: Value, last: Value, rows: Value) -> None:
        k.call_local(name, "void", weights, acts, out, bias, blocks, first, last, rows, stride)

    split_rows(k, one.name, many.name, call, groups, rows, chunk)
    k.ret()
    return [one, many, k]
