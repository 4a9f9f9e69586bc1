"""The loop nest of a quantized product for the rows of decoding: memory sets the pace.

It walks a group of eight weight rows block by block and asks for lines ahead. A block is
unpacked once for up to `FEW` rows of activations: answers that share a step, and guesses.
"""

from __future__ import annotations

from kinetic.codegen.kernels.cpu.dot import unpack32
from kinetic.codegen.kernels.cpu.product import CHAINS, NEST_ARGS, Epilogue, Nest
from kinetic.codegen.kernels.cpu.simd import F32, I32, CpuFunction, RowGroups, tree
from kinetic.codegen.targets.llvm_ir import Function, Value
from kinetic.codegen.targets.llvm_x86 import CpuTarget
from kinetic.ir.quant.base import BlockFormat

FEW = 4
"""Rows that a block meets at once."""
PREFETCH = 2048
"""Bytes asked ahead."""


def few_rows(fmt: BlockFormat, target: CpuTarget, epilogue: Epilogue, tokens: int) -> Function:
    """`one_<format>` for a single row, or `few_<format>` for `tokens` at a time."""
    name = "one" if tokens == 1 else "few"
    k = CpuFunction(f"{name}_{fmt.name.lower()}{epilogue.suffix}", NEST_ARGS, target)
    n = Nest(k, fmt, epilogue)
    chains = k.alloca(F32, CHAINS * tokens)
    with k.loop(n.first, n.last) as group:
        if tokens == 1:
            _group(n, group.index, chains, [k.const("i64", 0)])
        else:
            with k.loop(0, n.rows, tokens) as t:
                _group(n, group.index, chains, [t.index + i for i in range(tokens)])
    k.ret()
    return k


def _group(n: Nest, group: Value, chains: Value, tokens: list[Value]) -> None:
    """One row group against the tokens. Those beyond the last row are the last one again,
    computed and not written: fewer branches, and memory sets the pace anyway."""
    k, fmt, single = n.k, n.fmt, len(tokens) == 1
    base = k.gep(n.weights, group * n.group_stride)
    rows = tokens if single else [k.minimum(t, n.rows - 1) for t in tokens]
    first = [k.gep(n.acts, row * n.act_stride) for row in rows]
    for slot in range(CHAINS * len(tokens)):
        k.store(k.zero(F32), chains, 32 * slot, align=32)
    with k.loop(0, n.blocks) as b:
        place = k.gep(base, b.index * n.packed.nbytes)
        block = RowGroups(k, place)
        step = b.index * n.act_stride if single else b.index * (n.rows * n.act_stride)
        acts = [k.gep(start, step) for start in first]
        for line in range(0, n.packed.nbytes, 64):
            k.prefetch(place, line + PREFETCH)
        at = (b.index & (CHAINS - 1)) << 5
        slots = [k.gep(chains, at + 32 * CHAINS * t) for t in range(len(tokens))]
        if fmt.block == 32:
            isums = n.isums32([unpack32(k, n.packed, block, 0)], acts)[0]
        else:
            isums = [[total] for total in _isums256(n, block, acts)]
        scales = n.block_scales(block)
        for slot_of, act, isum in zip(slots, acts, isums, strict=True):
            acc = n.update(k.load(F32, slot_of, align=32), scales, act, isum)
            minimum = n.minimum32 if fmt.block == 32 else n.minimum256
            k.store(minimum(acc, block, act), slot_of, align=32)
    for t, token in enumerate(tokens):
        at_chain = 32 * CHAINS * t
        total = tree([k.load(F32, chains, at_chain + 32 * c, align=32) for c in range(CHAINS)])
        if single:
            n.write(total, token, group)
        else:
            with k.if_(token.compare("slt", n.rows)):
                n.write(total, token, group)


def _isums256(n: Nest, block: RowGroups, acts: list[Value]) -> list[Value]:
    """Scaled sums of a 256-value block with each row, the zero point taken off."""
    k = n.k
    with k.loop(0, n.fmt.block // 64, carry=[k.zero(I32)] * len(acts)) as two:
        totals = list(two.carried)
        for which in range(2):
            part = two.index * 2 + which
            scales = n.pair_of(block, part, two.index)
            codes = unpack32(k, n.packed, block, part)
            dots = n.scaled_tile([codes], [scales], acts, part * 32, which)[0]
            totals = [total + dot for total, dot in zip(totals, dots, strict=True)]
        two.next = totals
    return [n.zero_point256(block, act, isum) for act, isum in zip(acts, two.results, strict=True)]
