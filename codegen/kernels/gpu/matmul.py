"""Product of a block-quantized matrix (section 4 of the arithmetic contract).

`y[t, n]` for all rows `t` of a step and outputs `n`, from weights as GGUF stores them and
activations as `quantize_rows` leaves them. A workgroup is 8 outputs times the 4 chains of
the contract: each thread walks every fourth block of one output's weights. A thread may
do several rows of the step, decoding the weights once: that changes nothing in a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kinetic.codegen.kernels.builder import F32, I32, U32, Builder, Kernel, Type, Value, Variable
from kinetic.codegen.kernels.gpu.block_reader import RUN_WORDS, BlockReader, word_type
from kinetic.codegen.kernels.gpu.fold import fold
from kinetic.ir.quant.base import RUN, BlockFormat

CHAINS = 4
OUTPUTS = 8
"""Outputs of a workgroup."""
WORKGROUP = CHAINS * OUTPUTS


@cache
def matmul(
    fmt: BlockFormat, tile: int = 1, *, bias: bool = False, residual: bool = False
) -> Kernel:
    """The kernel for a format that takes `tile` rows of the step at a time.

    With `bias` that is added after the sum, then with `residual` the residual stream.

    Up to 8 rows fit the registers of every format; 16 spill in formats of 256-value blocks.

    *Shapes*: `w` blocks [N, blocks]; `x_codes` i8 [T, K]; `x_scales` f32 [T, blocks];
    `x_sums` i32 [T, K/16]; `y` f32 [T, N];
    `bias` f32 [N]; `residual` f32 [T, N]. *Grid*: (ceil(N / 8), ceil(T / tile), 1).
    """

    def body(k: Builder) -> None:
        w = k.buffer("w", word_type(fmt))
        x = Activations(k, fmt)
        y = k.buffer("y", F32)
        added = Added(k, bias, residual)
        rows = k.param("rows", U32)
        outputs = k.param("outputs", U32)
        blocks = k.param("blocks", U32)
        partial = k.shared(F32, WORKGROUP * tile)

        lane = k.thread()
        chain = lane % CHAINS
        output = k.group(0) * OUTPUTS + lane // CHAINS
        first_row = k.group(1) * tile
        # Threads past the edge repeat the last output or row, and do not store.
        safe_output = k.minimum(output, outputs - 1)
        safe_rows = [k.minimum(first_row + t, rows - 1) for t in range(tile)]

        sums = [k.variable(k.const(F32, 0.0)) for _ in range(tile)]
        with k.loop(chain, blocks, CHAINS) as b:
            block = BlockReader(k, w, fmt, safe_output * blocks + b)
            add_block(k, fmt, block, x, [row * blocks + b for row in safe_rows], sums)

        for t in range(tile):
            partial[lane + t * WORKGROUP] = sums[t].value
        k.barrier()
        firsts = [(lane - chain) + t * WORKGROUP for t in range(tile)]
        fold(k, partial, firsts, chain, CHAINS, lambda a, b: a + b)
        with k.if_(chain.equals(0) & (output < outputs)):
            for t in range(tile):
                row = first_row + t
                with k.if_(row < rows):
                    place = row * outputs + output
                    y[place] = added.to(partial[firsts[t]], output, place)

    suffix = ("_bias" if bias else "") + ("_residual" if residual else "")
    return Kernel(f"matmul_{fmt.name.lower()}_{tile}{suffix}", WORKGROUP, body)


@cache
def matmul_float(name: str, *, bias: bool = False, residual: bool = False) -> Kernel:
    """The kernel for F32, F16 or BF16 weights (section 5 of the contract).

    *Shapes*: `w` [N, K] in that type; `x` f32 [T, K]; the others as in `matmul`.
    *Grid*: (ceil(N / 8), T, 1).
    """

    def body(k: Builder) -> None:
        w = k.buffer("w", F32 if name == "F32" else Type.U16)
        x, y = k.buffer("x", F32), k.buffer("y", F32)
        added = Added(k, bias, residual)
        outputs, inner = k.param("outputs", U32), k.param("inner", U32)
        partial = k.shared(F32, WORKGROUP)

        lane, row = k.thread(), k.group(1)
        chain = lane % CHAINS
        output = k.group(0) * OUTPUTS + lane // CHAINS
        start = k.minimum(output, outputs - 1) * inner
        total = k.variable(k.const(F32, 0.0))
        with k.loop(chain, inner, CHAINS) as i:
            weight = w[start + i]
            if name == "F16":
                weight = k.half_to_float(weight)
            elif name == "BF16":
                weight = (weight << 16).as_type(F32)
            total.value = total.value + weight * x[row * inner + i]
        partial[lane] = total.value
        k.barrier()
        fold(k, partial, [lane - chain], chain, CHAINS, lambda a, b: a + b)
        with k.if_(chain.equals(0) & (output < outputs)):
            place = row * outputs + output
            y[place] = added.to(partial[lane], output, place)

    suffix = ("_bias" if bias else "") + ("_residual" if residual else "")
    return Kernel(f"matmul_{name.lower()}{suffix}", WORKGROUP, body)


class Added:
    """What joins a product after its sum: a bias, then the residual stream."""

    def __init__(self, k: Builder, bias: bool, residual: bool) -> None:
        self._bias = k.buffer("bias", F32) if bias else None
        self._residual = k.buffer("residual", F32) if residual else None

    def to(self, total: Value, output: Value, place: Value) -> Value:
        """The sum with both."""
        if self._bias is not None:
            total = total + self._bias[output]
        return total if self._residual is None else self._residual[place] + total


class Activations:
    """The quantized rows of a step."""

    def __init__(self, k: Builder, fmt: BlockFormat) -> None:
        self.codes = k.buffer("x_codes", U32)
        self.scales = k.buffer("x_scales", F32)
        self.sums = k.buffer("x_sums", I32)
        self._runs = fmt.values // RUN

    def run_words(self, block: Value, run: int) -> list[Value]:
        """The 16 codes of a run of a block, as four words."""
        first = block * (self._runs * RUN_WORDS) + run * RUN_WORDS
        return [self.codes[first + i] for i in range(RUN_WORDS)]

    def run_sum(self, block: Value, run: int) -> Value:
        """Their sum."""
        return self.sums[block * self._runs + run]


def add_block(
    k: Builder,
    fmt: BlockFormat,
    block: BlockReader,
    x: Activations,
    x_blocks: Sequence[Value],
    sums: Sequence[Variable],
) -> None:
    """Add one block of weights times one block of each row to that row's chain."""
    isums, msums = integer_sums(k, fmt, block, x, x_blocks)
    d = block.f16(fmt.d)
    dmin = None if fmt.dmin is None else block.f16(fmt.dmin)
    for t, x_block in enumerate(x_blocks):
        d_x = x.scales[x_block]
        total = sums[t].value + (d * d_x) * isums[t].to_float()
        if dmin is not None:
            term = (dmin * d_x) * msums[t].to_float()
            total = total - term if fmt.min_sign < 0 else total + term
        sums[t].value = total


def integer_sums(
    k: Builder,
    fmt: BlockFormat,
    block: BlockReader,
    x: Activations,
    x_blocks: Sequence[Value],
) -> tuple[list[Value], list[Value]]:
    """`isum` and `msum` of the contract for every row: exact, so in whatever order."""
    nothing = k.const(I32, 0)
    isums, msums = [nothing] * len(x_blocks), [nothing] * len(x_blocks)
    group_runs = fmt.group_values // RUN
    for group in range(fmt.groups):
        runs = range(group * group_runs, (group + 1) * group_runs)
        scale = fmt.scale(block, group) if fmt.scale else None
        minimum = fmt.minimum(block, group) if fmt.minimum else None
        codes = {run: block.codes(run) for run in runs}
        for t, x_block in enumerate(x_blocks):
            dot = x_sum = nothing
            for run in runs:
                for code, word in zip(codes[run], x.run_words(x_block, run), strict=True):
                    dot = k.dot4(code, word, dot)
                if block.zero or fmt.dmin is not None:
                    x_sum = x_sum + x.run_sum(x_block, run)
            dot = dot - x_sum * block.zero if block.zero else dot
            isums[t] = isums[t] + (dot * scale if scale is not None else dot)
            if fmt.dmin is not None:
                msums[t] = msums[t] + (x_sum * minimum if minimum is not None else x_sum)
    return isums, msums
