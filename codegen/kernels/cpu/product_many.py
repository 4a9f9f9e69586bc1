"""The loop nest of a quantized product for the rows of prompts: tokens inside.

A block is unpacked once and meets every token of a tile, the tile's accumulators staying in
the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable

from kinetic.codegen.kernels.cpu.dot import unpack32
from kinetic.codegen.kernels.cpu.product import CHAINS, NEST_ARGS, Epilogue, Nest
from kinetic.codegen.kernels.cpu.simd import LANES, CpuFunction, RowGroups, tree
from kinetic.codegen.targets.llvm_ir import Function, Value, vec
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.quant.base import BlockFormat

PANEL = 16
"""Row groups that stay in the second-level cache while token tiles pass by."""
ABREAST512 = 4
"""Rows of activations that 512-bit tiles take side by side."""


def token_tile(fmt: BlockFormat) -> int:
    """Tokens whose accumulators share the first-level cache with the activations."""
    return 64 if fmt.block == 32 else 32


def many_rows(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue) -> Function:
    k = CpuFunction(f"many_{fmt.name.lower()}{epilogue.suffix}", NEST_ARGS, target)
    n = Nest(k, fmt, epilogue)
    tile = _Tile(n, *tile_shape(target))
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


def tile_shape(target: CpuTarget) -> tuple[int, int]:
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

    def __init__(self, n: Nest, vectors: int, span: int):
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
