"""The arithmetic contract as scalar loops, one number at a time.

Slow and obvious: what the vectorised reference is tested against.
"""

from __future__ import annotations

import numpy as np

from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.spec import Weight
from kinetic.ir.quant import decode
from kinetic.ir.quant.base import BlockFormat

f = np.float32


def chains(terms: list[np.float32], p: int) -> np.float32:
    """Section 2."""
    acc = [f(0)] * p
    for i, term in enumerate(terms):
        acc[i % p] = acc[i % p] + term
    while len(acc) > 1:
        half = len(acc) // 2
        acc = [acc[i] + acc[i + half] for i in range(half)]
    return acc[0]


def quantize_block(x: np.ndarray) -> tuple[np.float32, list[int]]:
    """Section 3, one block."""
    bits = max(int(b) & 0x7FFFFFFF for b in x.view(np.uint32))
    amax = np.uint32(bits).view(np.float32)
    if bits >= 0x7F800000:
        return f(np.nan), [0] * len(x)
    if amax < f(2.0**-100):
        return f(0), [0] * len(x)
    d = amax * f(1 / 127)
    r = ar.recip(np.asarray(d))[()]
    magic = f(12582912.0)
    return d, [int(min(f(127), max(f(-127), (v * r + magic) - magic))) for v in x]


def block_row(x: np.ndarray, W: Weight, n: int) -> np.float32:
    """Section 4: one output of one row."""
    fmt = W.format
    assert isinstance(fmt, BlockFormat)
    raw = decode.as_blocks(fmt, W.raw[n : n + 1])[0]
    quants = decode.quants(fmt, raw).ravel().tolist()
    scales, minima = (read(fmt, raw).ravel().tolist() for read in (decode.scales, decode.minima))
    d, dmin = decode.d_of_updates(fmt, raw).ravel(), decode.dmin(fmt, raw)
    acc = [f(0)] * 4
    for b in range(len(x) // fmt.block):
        d_x, q_x = quantize_block(x[b * fmt.block : (b + 1) * fmt.block])
        at = range(b * fmt.block, (b + 1) * fmt.block)
        c = b % 4
        for u in range(0, fmt.block, fmt.update_values):
            isum = sum(
                scales[i // fmt.group_values] * quants[i] * q_x[i % fmt.block]
                for i in at[u : u + fmt.update_values]
            )
            assert abs(isum) < 2**31
            acc[c] = acc[c] + (d[at[u] // fmt.update_values] * d_x) * f(isum)
        if fmt.min_sign:
            msum = sum(minima[i // fmt.group_values] * q_x[i % fmt.block] for i in at)
            assert abs(msum) < 2**31
            term = (dmin[b] * d_x) * f(msum)
            acc[c] = acc[c] + term if fmt.min_sign > 0 else acc[c] - term
    return (acc[0] + acc[2]) + (acc[1] + acc[3])


def attend_head(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    position: int,
    scale: float,
    window: int | None,
    cap: float | None,
) -> np.ndarray:
    """Section 7: one row and head over `keys [n, Dh]`, `values [n, Dv]`."""

    def exp(x: np.float32) -> np.float32:
        return ar.exp(np.asarray(x))[()]

    visible = [p for p in range(position + 1) if window is None or position - p < window]
    merged = None
    for segment in range(0, position + 1, 512):
        m, total, acc = f(-1e30), f(0), np.zeros(values.shape[1], np.float32)
        seen = False
        for tile in range(segment, segment + 512, 64):
            shown = [p for p in visible if tile <= p < tile + 64]
            if not shown:
                continue
            seen = True
            s = {p: chains([a * b for a, b in zip(q, keys[p], strict=True)], 4) for p in shown}
            s = {p: v * f(scale) for p, v in s.items()}
            if cap is not None:
                s = {p: ar.softcap(np.asarray(v), cap)[()] for p, v in s.items()}
            top = m
            for p in shown:
                top = s[p] if not top > s[p] else top
            a = exp(m - top)
            e = {p: exp(s[p] - top) for p in shown}
            total = total * a + chains([e.get(p, f(0)) for p in range(tile, tile + 64)], 8)
            acc = acc * a
            for p in shown:
                acc = acc + e[p] * values[p]
            m = top
        if not seen:
            continue
        if merged is None:
            merged = (m, total, acc)
        else:
            big = merged[0] if merged[0] > m else m
            x, y = exp(merged[0] - big), exp(m - big)
            merged = (big, merged[1] * x + total * y, merged[2] * x + acc * y)
    assert merged is not None
    return merged[2] * ar.recip(np.asarray(merged[1]))[()]
