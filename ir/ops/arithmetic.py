"""`docs/arithmetic.md` as numpy: every rounding and every order of summation, by section.

Each function gives the words that every device class must give. Integers are summed in
binary64 matrix products, which is exact: the sums stay far below 2^53. Everything else is
binary32, one rounding an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from kinetic.ir import math as ir_math
from kinetic.ir.math_numpy import NUMPY
from kinetic.ir.ops.spec import F32, Array, Quantized, Routing, RuleError, Weight
from kinetic.ir.quant import decode
from kinetic.ir.quant.base import BlockFormat, FloatFormat

Flags = npt.NDArray[np.bool_]

TILE = 64
"""Positions of an attention tile."""
SEGMENT = 512
"""Positions of an attention segment."""
MASKED = np.float32(-1e30)
"""The running maximum before any score."""
AMAX_FLOOR = np.float32(2.0**-100)
"""A block whose largest magnitude is below this is all zeros."""
EXPERT_SUM_FLOOR = np.float32(2.0**-14)
"""Expert weights are divided by no less than this."""
_MAGIC = np.float32(12582912.0)
_NAN = np.float32(np.nan)


# ---- 1. operations -----------------------------------------------------------------------


def maximum(a: F32, b: F32) -> F32:
    """`select(a > b, a, b)`."""
    return np.where(a > b, a, b)


def exp(x: F32) -> F32:
    """The project's own `exp`."""
    return np.asarray(ir_math.exp(NUMPY, x), np.float32)


def recip(x: F32) -> F32:
    """The project's own `1 / x`."""
    return np.asarray(ir_math.recip(NUMPY, x), np.float32)


def rsqrt(x: F32) -> F32:
    """The project's own `1 / sqrt(x)`."""
    return np.asarray(ir_math.rsqrt(NUMPY, x), np.float32)


# ---- 2. chains and trees -----------------------------------------------------------------


def tree(chains: F32) -> F32:
    """The first axis added pairwise in halves until one is left."""
    while len(chains) > 1:
        half = len(chains) // 2
        chains = chains[:half] + chains[half:]
    return chains[0]


def chain_sum(terms: F32, chains: int) -> F32:
    """The last axis summed in that many chains, then in a tree."""
    acc = np.zeros((chains, *terms.shape[:-1]), np.float32)
    for start in range(0, terms.shape[-1], chains):
        part = np.moveaxis(terms[..., start : start + chains], -1, 0)
        acc[: len(part)] = acc[: len(part)] + part
    return tree(acc)


def dot_chains(a: F32, b: F32) -> F32:
    """`sum over k of a[..., k] * b[..., k]` in 4 chains, the leading axes broadcast."""
    acc = np.zeros((4, *np.broadcast_shapes(a.shape[:-1], b.shape[:-1])), np.float32)
    for k in range(a.shape[-1]):
        acc[k % 4] = acc[k % 4] + a[..., k] * b[..., k]
    return tree(acc)


# ---- 3. activations of a quantized product -----------------------------------------------


def quantize(x: F32, block: int) -> Quantized:
    """Rows `[T, K]` as int8 with one scale for each `block` values."""
    parts = x.reshape(len(x), -1, block)
    bits = (parts.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=-1)
    amax = bits.view(np.float32)
    broken = bits >= 0x7F800000
    zero = amax < AMAX_FLOOR
    with np.errstate(all="ignore"):
        d = amax * np.float32(1 / 127)
        scaled = parts * recip(d)[..., None]
        q = np.minimum(127, np.maximum(-127, (scaled + _MAGIC) - _MAGIC))
    q = np.where((broken | zero)[..., None], np.float32(0), q)
    d = np.where(broken, _NAN, np.where(zero, np.float32(0), d))
    return Quantized(block, q.astype(np.int8).reshape(x.shape), d)


# ---- 4. and 5. products ------------------------------------------------------------------


def product(x: F32 | Quantized, W: Weight) -> F32:
    """`[T, N]`: quantized rows by a block format, or f32 rows by a float format."""
    return block_product(x, W) if isinstance(x, Quantized) else float_product(x, floats(W))


def linear(x: F32, W: Weight, bias: Weight | None = None) -> F32:
    """The product in the form that the weight's format asks for, then the bias."""
    fmt = W.format
    y = product(x if isinstance(fmt, FloatFormat) else quantize(x, fmt.block), W)
    return y if bias is None else y + floats(bias)


def block_product(x: Quantized, W: Weight) -> F32:
    """Int8 rows by a block format: exact sums inside a block, 4 chains over the blocks."""
    fmt = W.format
    assert isinstance(fmt, BlockFormat) and fmt.block == x.block
    codes, minima, d, dmin = _block_parts(fmt, W)
    rows, blocks = len(x.q), x.q.shape[1] // x.block
    xq = x.q.reshape(rows, blocks, x.block).astype(np.float64)
    groups = xq.reshape(rows, blocks, -1, min(fmt.group_values, x.block)).sum(axis=-1)
    width = fmt.update_values
    acc = np.zeros((4, rows, len(codes)), np.float32)
    with np.errstate(all="ignore"):
        for b in range(blocks):
            dx, chain = x.d[:, b, None], b % 4
            for u in range(fmt.updates):
                part = slice(width * u, width * (u + 1))
                isum = xq[:, b, part] @ codes[:, b, part].astype(np.float64).T
                acc[chain] = acc[chain] + (d[:, b, u] * dx) * isum.astype(np.float32)
            if dmin is not None and minima is not None:
                msum = (groups[:, b] @ minima[:, b].astype(np.float64).T).astype(np.float32)
                term = (dmin[:, b] * dx) * msum
                acc[chain] = acc[chain] + term if fmt.min_sign > 0 else acc[chain] - term
        return tree(acc)


def float_product(x: F32, w: F32) -> F32:
    """F32 rows by widened weights, in 4 chains over `k`."""
    with np.errstate(all="ignore"):
        return dot_chains(x[:, None, :], w[None, :, :])


# ---- weights -----------------------------------------------------------------------------


def _blocks(W: Weight) -> Array:
    """The weight's bytes as uint8 `[rows, blocks, bytes of a block]`."""
    return decode.as_blocks(W.format, W.raw)


def _block_parts(fmt: BlockFormat, W: Weight) -> tuple[Array, Array | None, F32, F32 | None]:
    """`s_j (q - z)` per value, `m_j` per group, `d` per update and `dmin` per block; kept once
    decoded. A block is one of the activations'."""
    if "parts" not in W.memo:
        raw = _blocks(W)
        signed = decode.quants(fmt, raw).reshape(*raw.shape[:2], fmt.groups, -1)
        codes = (signed * decode.scales(fmt, raw)[..., None]).astype(np.int16)
        minima, dmin = None, None
        if fmt.min_sign:
            minima, dmin = decode.minima(fmt, raw), decode.dmin(fmt, raw)
        codes = codes.reshape(len(raw), -1, fmt.block)
        d = decode.d_of_updates(fmt, raw).reshape(*codes.shape[:2], fmt.updates)
        W.memo["parts"] = (codes, minima, d, dmin)
    parts: tuple[Array, Array | None, F32, F32 | None] = W.memo["parts"]
    return parts


def floats(W: Weight) -> F32:
    """A weight of a float format, widened; a vector or a matrix by its shape."""
    if not isinstance(W.format, FloatFormat):
        raise RuleError("weight", "plain floats", W.format.name)
    if "floats" not in W.memo:
        W.memo["floats"] = decode.dequantize(W.format, _blocks(W)).reshape(W.shape)
    found: F32 = W.memo["floats"]
    return found


def dequantized_rows(W: Weight, ids: npt.NDArray[np.int32]) -> F32:
    """Those rows of a matrix by the format's own float expression."""
    return decode.dequantize(W.format, decode.as_blocks(W.format, W.raw[ids]))


def row_range(W: Weight, start: int, count: int) -> Weight:
    """A range of the first axis, as a weight of its own (of a vector: of its elements)."""
    key = f"rows {start} {count}"
    if key not in W.memo:
        if len(W.shape) == 1:
            size = W.format.nbytes // W.format.values
            raw = W.raw[:, start * size : (start + count) * size]
        else:
            inner = prod(W.shape[1:-1])
            raw = W.raw[start * inner : (start + count) * inner]
        W.memo[key] = Weight(W.format, (count, *W.shape[1:]), raw)
    found: Weight = W.memo[key]
    return found


def part_of_each(W: Weight, start: int, count: int) -> Weight:
    """A range of the second axis, of every matrix of `W [E, N, K]`."""
    key = f"part {start} {count}"
    if key not in W.memo:
        matrices = W.raw.reshape(*W.shape[:2], -1)[:, start : start + count]
        raw = np.ascontiguousarray(matrices).reshape(W.shape[0] * count, -1)
        W.memo[key] = Weight(W.format, (W.shape[0], count, *W.shape[2:]), raw)
    found: Weight = W.memo[key]
    return found


# ---- 6. row ops --------------------------------------------------------------------------


def rms_norm(x: F32, w: F32 | None, eps: float) -> F32:
    """Over the last axis; the sum of squares in 32 chains."""
    with np.errstate(all="ignore"):
        mean = chain_sum(x * x, 32) * np.float32(1 / x.shape[-1])
        y = x * rsqrt(mean + np.float32(eps))[..., None]
        return y if w is None else y * w


def rope(x: F32, cos: F32, sin: F32, kind: str) -> F32:
    """Turns the pairs of `x [T, H, Dh]` by `cos`, `sin [T, rot / 2]`."""
    half = cos.shape[1]
    out = x.copy()
    at = np.arange(half)
    first, second = (2 * at, 2 * at + 1) if kind == "norm" else (at, at + half)
    a, b, c, s = x[..., first], x[..., second], cos[:, None], sin[:, None]
    with np.errstate(all="ignore"):
        out[..., first] = a * c - b * s
        out[..., second] = a * s + b * c
    return out


def temper(x: F32, contexts: npt.NDArray[np.int32], scale: float) -> F32:
    """Rows `[T, H, Dh]` grown by the contexts behind them."""
    with np.errstate(all="ignore"):
        n, by = contexts.astype(np.float32)[:, None, None], np.full((1, 1, 1), scale, np.float32)
        return np.asarray(ir_math.temper(NUMPY, x, n, by), np.float32)


def silu(x: F32) -> F32:
    """`x * sigmoid(x)`."""
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.silu(NUMPY, x), np.float32)


def gelu_tanh(x: F32) -> F32:
    """GELU in its tanh form, by the project's own maths."""
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.gelu_tanh(NUMPY, x), np.float32)


def sigmoid(x: F32) -> F32:
    """The project's own `1 / (1 + exp(-x))`."""
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.sigmoid(NUMPY, x), np.float32)


ACTIVATIONS: dict[str, Callable[[F32], F32]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "sigmoid": sigmoid,
}
"""What a gate may go through, by the name that ops use."""


GATES = (*ACTIVATIONS, "swiglu_oai")
"""What `glu` knows: an activation of the gate times the other half, and one form of its own."""


def glu(gate: F32, up: F32, act: str) -> F32:
    """`act(gate) * up`, or the form of that name."""
    with np.errstate(all="ignore"):
        if act == "swiglu_oai":
            return np.asarray(ir_math.swiglu_oai(NUMPY, gate, up), np.float32)
        return ACTIVATIONS[act](gate) * up


def softcap(x: F32, cap: float) -> F32:
    """`fl(c) * tanh(x * fl(1 / c))`."""
    with np.errstate(all="ignore"):
        return np.asarray(ir_math.softcap(NUMPY, x, cap, 1 / cap), np.float32)


# ---- 7. attention ------------------------------------------------------------------------


def attend(
    q: F32,
    positions: npt.NDArray[np.int32],
    keys: F32,
    values: F32,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    sinks: F32 | None = None,
) -> F32:
    """Rows of one sequence over its keys and values, tile by tile.

    *Shapes*: `q [T, H, Dh]`, `positions [T]`, `keys [n, Hkv, Dh]`, `values [n, Hkv, Dv]`,
    `sinks [H]`.
    """
    merged: _State | None = None
    total = int(positions.max()) + 1
    with np.errstate(all="ignore"):
        for segment in range(0, total, SEGMENT):
            state = _State.fresh(len(q), q.shape[1], values.shape[2])
            for tile in range(segment, min(segment + SEGMENT, total), TILE):
                at = tile + np.arange(TILE)
                behind = positions[:, None] - at
                visible: Flags = behind >= 0
                if window is not None:
                    visible = visible & (behind < window)
                live: Flags = np.asarray(visible.any(axis=1))
                if live.any():
                    k, v = (_tile(part, tile, q.shape[1]) for part in (keys, values))
                    s = dot_chains(q[live][:, :, None], k) * np.float32(scale)
                    s = s if cap is None else softcap(s, cap)
                    state.walk(live, s, visible[live][:, None], v)
            merged = state if merged is None else merged.merge(state)
        assert merged is not None
        if sinks is not None:
            merged.sink(sinks)
        return merged.acc * recip(merged.total)[..., None]


def _tile(part: F32, start: int, heads: int) -> F32:
    """One tile `[H, TILE, width]` for the query heads; zeros past the end."""
    found = np.zeros((TILE, *part.shape[1:]), np.float32)
    rows = part[start : start + TILE]
    found[: len(rows)] = rows
    return np.repeat(found.transpose(1, 0, 2), heads // part.shape[1], axis=0)


class _State:
    """Running maximum, sum and weighted values `[T, H]`, `[T, H]`, `[T, H, Dv]`."""

    def __init__(self, top: F32, total: F32, acc: F32, seen: Flags) -> None:
        self.top, self.total, self.acc, self.seen = top, total, acc, seen

    @staticmethod
    def fresh(rows: int, heads: int, width: int) -> _State:
        """The state before any tile."""
        return _State(
            np.full((rows, heads), MASKED, np.float32),
            np.zeros((rows, heads), np.float32),
            np.zeros((rows, heads, width), np.float32),
            np.zeros(rows, np.bool_),
        )

    def walk(self, live: Flags, s: F32, visible: Array, v: F32) -> None:
        """Take in one tile for the rows in `live`: scores `[live, H, TILE]`."""
        top = maximum(self.top[live], np.where(visible, s, -np.inf).max(axis=-1))
        a = exp(self.top[live] - top)
        e = np.where(visible, exp(s - top[..., None]), np.float32(0))
        acc = self.acc[live] * a[..., None]
        for p in range(TILE):
            acc = np.where(visible[..., p, None], acc + e[..., p, None] * v[:, p], acc)
        self.total[live] = self.total[live] * a + chain_sum(e, 8)
        self.top[live], self.acc[live] = top, acc
        self.seen |= live

    def sink(self, sinks: F32) -> None:
        """Take in a score of each head that has no value."""
        top = maximum(self.top, np.broadcast_to(sinks, self.top.shape))
        x = exp(self.top - top)
        self.total = self.total * x + exp(sinks - top)
        self.top, self.acc = top, self.acc * x[..., None]

    def merge(self, later: _State) -> _State:
        """Both segments; a row that saw only one of them keeps that one as it is."""
        top = maximum(self.top, later.top)
        x, y = exp(self.top - top), exp(later.top - top)
        total = self.total * x + later.total * y
        acc = self.acc * x[..., None] + later.acc * y[..., None]
        both = (self.seen & later.seen)[:, None]
        mine = self.seen[:, None]
        return _State(
            np.where(both, top, np.where(mine, self.top, later.top)),
            np.where(both, total, np.where(mine, self.total, later.total)),
            np.where(both[..., None], acc, np.where(mine[..., None], self.acc, later.acc)),
            self.seen | later.seen,
        )


# ---- 8. experts --------------------------------------------------------------------------


@dataclass(frozen=True)
class Router:
    """How experts are chosen and weighted: the attributes of `route`."""

    n_used: int
    norm_weights: bool = True
    kind: str = "softmax"
    weight_scale: float = 1.0


def softmax(logits: F32) -> F32:
    """Over the last axis, in index order."""
    top: F32 = logits[:, 0]
    for e in range(1, logits.shape[1]):
        top = maximum(top, logits[:, e])
    share = exp(logits - top[:, None])
    return share * recip(chain_sum(share, 1))[:, None]


ROUTERS: dict[str, Callable[[F32], F32]] = {"softmax": softmax, "sigmoid": sigmoid}
"""What makes shares of a router's logits, by the name that ops use."""


def route(
    logits: F32, how: Router, select_bias: F32 | None = None, expert_scale: F32 | None = None
) -> Routing:
    """The `n_used` largest logits, ties to the lower index, with their shares, which
    `norm_weights` makes sum to 1; with a `select_bias` the largest shares plus bias. An
    `expert_scale` multiplies the share of each expert in the end."""
    with np.errstate(all="ignore"):
        share = ROUTERS[how.kind](logits)
        rank = logits if select_bias is None else share + select_bias
        best = np.argsort(-rank, axis=1, kind="stable")[:, : how.n_used]
        chosen = np.sort(best, axis=1)
        share = np.take_along_axis(share, chosen, axis=1)
        if how.norm_weights:
            kept = chain_sum(share, 1)
            share = share * recip(maximum(kept, np.full_like(kept, EXPERT_SUM_FLOOR)))[:, None]
        if how.weight_scale != 1:
            share = share * np.float32(how.weight_scale)
        if expert_scale is not None:
            share = share * expert_scale[chosen]
        return Routing(chosen, share)


def expert_product(
    x: F32 | Quantized, routing: Routing, W: Weight, bias: Weight | None = None
) -> F32:
    """`[T, used, N]`: each of the rows `[T, used, K]` by the matrix of its expert, then its
    bias."""
    out = np.empty((*routing.experts.shape, W.shape[1]), np.float32)
    for e in np.unique(routing.experts).tolist():
        mine = routing.experts == e
        part = Quantized(x.block, x.q[mine], x.d[mine]) if isinstance(x, Quantized) else x[mine]
        out[mine] = product(part, _expert(W, e))
    return out if bias is None else out + floats(bias)[routing.experts]


def expert_sum(y: F32, routing: Routing) -> F32:
    """The rows `[T, used, N]` times their shares, added in ascending expert index."""
    with np.errstate(all="ignore"):
        weighted = y * routing.share[..., None]
        total: F32 = weighted[:, 0]
        for j in range(1, y.shape[1]):
            total = total + weighted[:, j]
        return total


@dataclass(frozen=True)
class ExpertWeights:
    """The weights of a mixture: those of its router, then `[E, F, D]`, `[E, F, D]`, `[E, D, F]`
    with the biases `[E, F]`, `[E, F]`, `[E, D]` that they may have."""

    gate_inp: Weight
    gate: Weight
    up: Weight
    down: Weight
    select_bias: Weight | None = None
    router_bias: Weight | None = None
    gate_bias: Weight | None = None
    up_bias: Weight | None = None
    down_bias: Weight | None = None
    expert_scale: Weight | None = None


def experts(x: F32, w: ExpertWeights, act: str, how: Router, router_x: F32 | None = None) -> F32:
    """The gated feed-forwards of each row's chosen experts, summed in index order; the router
    may read rows of its own."""

    def maybe(vector: Weight | None) -> F32 | None:
        return None if vector is None else floats(vector)

    scores = linear(x if router_x is None else router_x, w.gate_inp, w.router_bias)
    routing = route(scores, how, maybe(w.select_bias), maybe(w.expert_scale))
    out = np.zeros((len(x), w.down.shape[1]), np.float32)
    started = np.zeros(len(x), np.bool_)

    def product_of(e: int, rows: F32, matrix: Weight, bias: Weight | None) -> F32:
        y = linear(rows, _expert(matrix, e))
        return y if bias is None else y + floats(bias)[e]

    with np.errstate(all="ignore"):
        for e in np.unique(routing.experts).tolist():
            here = routing.experts == e
            mine: Flags = here.any(axis=1)
            gate = product_of(e, x[mine], w.gate, w.gate_bias)
            h = glu(gate, product_of(e, x[mine], w.up, w.up_bias), act)
            y = product_of(e, h, w.down, w.down_bias) * routing.share[here][:, None]
            out[mine] = np.where(started[mine, None], out[mine] + y, y)
            started |= mine
        return out


def _expert(W: Weight, index: int) -> Weight:
    """The matrix of one expert."""
    key = f"expert {index}"
    if key not in W.memo:
        part = row_range(W, index, 1)
        W.memo[key] = Weight(W.format, W.shape[1:], part.raw)
    found: Weight = W.memo[key]
    return found
