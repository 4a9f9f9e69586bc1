"""One block of a quantized product: `out[t, n] = sum_k W[n, k] x[t, k]`.

The arithmetic of a block of weights with rows of activations (docs/arithmetic.md section 4),
from a format's declaration. The loop nests around it are in `product_few.py`, for the rows of
decoding, and `product_many.py`, for prompts; batch size chooses only the nest.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinetic.codegen.kernels.cpu.dot import (
    PairScales,
    Scale,
    dot_run,
    dot_tile,
    load_pair,
    returns_centred,
)
from kinetic.codegen.kernels.cpu.layout import GROUPS32, Packed
from kinetic.codegen.kernels.cpu.simd import (
    LANES,
    CpuFunction,
    RowGroups,
    multiply_add16,
    widen_bf16,
    widen_f16,
)
from kinetic.codegen.targets.llvm_ir import Value, lanes_of, vec
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

NEST_ARGS = (
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
"""Arguments of every loop nest; it makes row groups `first` to `last` of the outputs."""


@dataclass(frozen=True)
class Epilogue:
    """What happens to a finished sum: `+ bias`, then `+ what the output held`."""

    bias: bool = False
    residual: bool = False

    @property
    def suffix(self) -> str:
        """Part of the kernel's name."""
        return ("_bias" if self.bias else "") + ("_add" if self.residual else "")


class Nest:
    """What the loop nests share: arguments, block arithmetic, the epilogue."""

    def __init__(self, k: CpuFunction, fmt: BlockFormat, epilogue: Epilogue):
        self.k = k
        self.fmt, self.packed, self.epilogue = fmt, Packed(fmt), epilogue
        arg = self.k.arg
        self.weights, self.acts, self.out, self.bias = (arg[a] for _, a in NEST_ARGS[:4])
        self.blocks, self.first, self.last = arg["blocks"], arg["first"], arg["last"]
        self.rows, self.stride = arg["rows"], arg["stride"]
        self.act_stride = act_stride(fmt.block)
        self.group_stride = self.blocks * self.packed.nbytes

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
