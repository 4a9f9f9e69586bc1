"""Quantized product and attention in numpy, straight from docs/arithmetic.md.

Written apart from `kinetic.ir.reference`, so that a sentence of the contract which two
readers take differently shows up as a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic.codegen.kernels.gpu.attention import Heads
from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY
from kinetic.ir.quant import decode
from kinetic.ir.quant.base import RUN, BlockFormat

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
F = np.float32


def same_words(a: Floats, b: Floats) -> bool:
    """Equal bits everywhere, any NaN being equal to any other."""
    words = a.view(np.uint32) == b.view(np.uint32)
    return bool((words | (np.isnan(a) & np.isnan(b))).all())


# -- section 2 --------------------------------------------------------------------


def chain_sum(terms: Floats, chains: int) -> Floats:
    """Sum over the last axis in strided chains, then the tree."""
    sums = np.zeros((*terms.shape[:-1], chains), F)
    with np.errstate(all="ignore"):
        for i in range(terms.shape[-1]):
            sums[..., i % chains] = sums[..., i % chains] + terms[..., i]
        while chains > 1:
            chains //= 2
            sums = sums[..., :chains] + sums[..., chains:]
    return sums[..., 0]


# -- sections 3 and 4 -------------------------------------------------------------


def quantize(x: Floats, values: int) -> tuple[NDArray[np.int8], Floats]:
    """Codes i8 [T, K] and scales f32 [T, K / values] of activations."""
    blocks = x.reshape(len(x), -1, values)
    amax_bits = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(-1)
    amax = amax_bits.view(F)
    with np.errstate(all="ignore"):
        d_x = np.where(amax < F(2.0**-100), F(0), amax * F(1 / 127))
        d_x = np.where(amax_bits >= 0x7F800000, F(np.nan), d_x)
        scaled = blocks * math.recip(NUMPY, d_x)[..., None]
        q = np.minimum(127, np.maximum(-127, (scaled + F(12582912.0)) - F(12582912.0)))
    usable = (amax >= F(2.0**-100)) & (amax_bits < 0x7F800000)
    codes = np.where(usable[..., None], q, F(0)).astype(np.int8)
    return codes.reshape(x.shape), d_x


def run_sums(codes: NDArray[np.int8]) -> Ints:
    """Sums of 16 codes, which the GPU kernels keep beside them."""
    return codes.reshape(len(codes), -1, RUN).sum(-1, dtype=np.int32)


def matmul(fmt: BlockFormat, raw: NDArray[np.uint8], x: Floats) -> Floats:
    """`y[t, n]` for weights as GGUF stores them, uint8 [N, blocks, nbytes]."""
    q_x, d_x = quantize(x, fmt.block)
    q_w = decode.quants(fmt, raw).reshape(len(raw), -1)
    s = decode.scales(fmt, raw).repeat(fmt.group_values, -1).reshape(q_w.shape)
    m = decode.minima(fmt, raw).repeat(fmt.group_values, -1).reshape(q_w.shape)
    y = np.zeros((len(x), len(raw)), F)
    for t in range(len(x)):
        q = q_x[t].astype(np.int32)
        isum = (s * q_w * q).reshape(len(raw), -1, fmt.update_values).sum(-1, dtype=np.int32)
        msum = (m * q).reshape(len(raw), -1, fmt.block).sum(-1, dtype=np.int32)
        y[t] = _block_chains(fmt, raw, d_x[t], isum, msum)
    return y


def _block_chains(
    fmt: BlockFormat, raw: NDArray[np.uint8], d_x: Floats, isum: Ints, msum: Ints
) -> Floats:
    """Chains over a row's blocks; a block adds one term for each update, or two."""
    d = decode.d_of_updates(fmt, raw).reshape(isum.shape)
    dmin = decode.dmin(fmt, raw)
    acc = np.zeros((len(raw), 4), F)
    with np.errstate(all="ignore"):
        for u in range(isum.shape[1]):
            b = u // fmt.updates
            c = b % 4
            acc[:, c] = acc[:, c] + (d[:, u] * d_x[b]) * isum[:, u].astype(F)
            if fmt.dmin is not None:
                term = (dmin[:, b] * d_x[b]) * msum[:, b].astype(F)
                acc[:, c] = acc[:, c] - term if fmt.min_sign < 0 else acc[:, c] + term
        halves = acc[:, :2] + acc[:, 2:]
        return halves[:, 0] + halves[:, 1]


# -- section 7 --------------------------------------------------------------------

TILE = 64
SEGMENT = 512


@dataclass
class Segment:
    """What one segment of one row and head comes to."""

    m: Floats
    total: Floats
    acc: Floats


def attention(
    heads: Heads, q: Floats, keys: Floats, values: Floats, length: int, window: int | None
) -> Floats:
    """One row: `q` [H, Dh] over its own path's `keys` and `values` [positions, Hkv, Dh]."""
    first = 0 if window is None else max(0, length - window)
    out = np.zeros((heads.n_heads, heads.head_dim), F)
    for h in range(heads.n_heads):
        kv = h // (heads.n_heads // heads.n_kv_heads)
        with np.errstate(all="ignore"):
            whole: Segment | None = None
            for start in range(first // SEGMENT * SEGMENT, length, SEGMENT):
                low, high = max(start, first), min(start + SEGMENT, length)
                part = _segment(heads, q[h], keys[:, kv], values[:, kv], low, high)
                whole = part if whole is None else _merge(whole, part)
            assert whole is not None, "a row sees itself"
            out[h] = whole.acc * math.recip(NUMPY, whole.total)
    return out


def _segment(heads: Heads, q: Floats, keys: Floats, values: Floats, low: int, high: int) -> Segment:
    m, total = F(-1e30), F(0)
    acc = np.zeros(heads.head_dim, F)
    for tile in range(low // TILE * TILE, high, TILE):
        seen = [p for p in range(tile, tile + TILE) if low <= p < high]
        s = chain_sum(q * keys[seen], 4) * F(heads.scale)
        if heads.softcap is not None:
            s = F(heads.softcap) * math.tanh(NUMPY, s * F(1 / heads.softcap))
        m_new = m
        for score in s:
            m_new = m_new if m_new > score else score
        a = math.exp(NUMPY, m - m_new)
        e = np.zeros(TILE, F)
        e[[p - tile for p in seen]] = math.exp(NUMPY, s - m_new)
        total = total * a + chain_sum(e, 8)
        acc = acc * a
        for p in seen:
            acc = acc + e[p - tile] * values[p]
        m = m_new
    return Segment(m, total, acc)


def _merge(whole: Segment, part: Segment) -> Segment:
    m = whole.m if whole.m > part.m else part.m
    x, y = math.exp(NUMPY, whole.m - m), math.exp(NUMPY, part.m - m)
    return Segment(m, whole.total * x + part.total * y, whole.acc * x + part.acc * y)
