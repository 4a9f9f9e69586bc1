"""Activations and weights for the GPU tests: ordinary ones and nasty ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.block_scales import put_d

from kinetic.ir.quant.base import BlockFormat

Floats = NDArray[np.float32]
FLAVOURS = ("plain", "wide", "tiny", "huge", "holes", "broken")


def activations(rng: np.random.Generator, rows: int, width: int, flavour: str) -> Floats:
    """Rows of a kind: ordinary, over many magnitudes, subnormal, near overflow, with zeros
    for whole blocks, with Inf and NaN."""
    x = rng.standard_normal((rows, width)).astype(np.float32)
    with np.errstate(over="ignore"):
        if flavour == "wide":
            x *= np.exp(20 * rng.standard_normal((rows, width))).astype(np.float32)
        if flavour == "tiny":
            x *= np.float32(2.0 ** rng.integers(-149, -95))
        if flavour == "huge":
            x *= np.float32(1e38)
    if flavour == "holes":
        x.reshape(-1, 32)[rng.random(x.size // 32) < 0.5] = 0.0
        x[0] = -0.0
    if flavour == "broken":
        bad = np.array([np.inf, -np.inf, np.nan, 3.4e38], np.float32)
        x.reshape(-1)[rng.integers(0, x.size, 3)] = rng.choice(bad, 3)
    return x


def weights(
    rng: np.random.Generator, fmt: BlockFormat, outputs: int, blocks: int, flavour: str
) -> NDArray[np.uint8]:
    """Random blocks, uint8 [N, blocks, nbytes], whose f16 scales are of a kind."""
    raw = rng.integers(0, 256, (outputs, blocks, fmt.nbytes)).astype(np.uint8)
    for offset in (fmt.d, fmt.dmin):
        if offset is None:
            continue
        scale = (rng.standard_normal((outputs, blocks)) * 0.01).astype(np.float16)
        bits = scale.view(np.uint16)
        if flavour == "tiny":
            bits[:] = rng.integers(0, 0x400, bits.shape) | 0x8000 * rng.integers(0, 2, bits.shape)
        if flavour == "huge":
            bits[:] = rng.integers(0x7800, 0x7C00, bits.shape)
        if flavour == "holes":
            scale[rng.random(scale.shape) < 0.5] = 0.0
        if flavour == "broken":
            scale.flat[rng.integers(scale.size)] = rng.choice([np.inf, np.nan])
        if offset == fmt.d:
            put_d(fmt, raw, scale.astype(np.float64) * fmt.d_factor)
        else:
            raw[..., offset : offset + 2] = scale[..., None].view(np.uint8)
    return raw
