"""Launches our GPU kernels with numpy arrays, on whichever runner a test asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from support.gpu_arguments import Runner
from support.ptx_interpreter import PtxRunner

from kinetic.codegen.kernels.gpu.attention import (
    TILE,
    Heads,
    attention_merge,
    attention_segments,
)
from kinetic.codegen.kernels.gpu.matmul import OUTPUTS, matmul
from kinetic.codegen.kernels.gpu.quantize import quantize_rows
from kinetic.ir.quant.base import RUN, BlockFormat

Floats = NDArray[np.float32]
RUNNERS = ("vulkan", "ptx")
NO_WINDOW = 2**32 - 1
UNWRITTEN = np.float32(-123.0)
"""What outputs hold before a launch."""


@cache
def find_runner(name: str) -> Runner:
    """A runner by name, made once.

    Skips the test where no Vulkan device is found, unless KINETIC_REQUIRE_VULKAN is set.
    """
    return PtxRunner() if name == "ptx" else _vulkan()


def _vulkan() -> Runner:
    try:
        from support.vulkan_runner import VulkanRunner

        return VulkanRunner()
    except Exception as problem:
        # The package raises whatever its loader met: OSError, or one class per Vulkan result.
        if os.environ.get("KINETIC_REQUIRE_VULKAN"):
            raise
        pytest.skip(f"no Vulkan device ({type(problem).__name__}: {problem})")


# -- quantized product ------------------------------------------------------------


@dataclass
class Quantized:
    """Activations as `quantize_rows` leaves them."""

    codes: NDArray[np.int8]
    scales: Floats
    sums: NDArray[np.int32]


def quantize(gpu: Runner, x: Floats, values: int) -> Quantized:
    """Rows of activations [T, K] in blocks of `values`."""
    rows, width = x.shape
    out = Quantized(
        np.zeros((rows, width), np.int8),
        np.full((rows, width // values), UNWRITTEN),
        np.zeros((rows, width // RUN), np.int32),
    )
    gpu.launch(
        quantize_rows(values),
        (-(-x.size // 256), 1, 1),
        {"x": x, "codes": out.codes, "scales": out.scales, "sums": out.sums},
        {"words": x.size // 4},
    )
    return out


def product(
    gpu: Runner, fmt: BlockFormat, weights: NDArray[np.uint8], x: Floats, tile: int = 1
) -> Floats:
    """`y` [T, N] from weights uint8 [N, blocks, nbytes] and activations [T, K]."""
    outputs, blocks, _ = weights.shape
    quantized = quantize(gpu, x, fmt.values)
    y = np.full((len(x), outputs), UNWRITTEN)
    gpu.launch(
        matmul(fmt, tile),
        (-(-outputs // OUTPUTS), -(-len(x) // tile), 1),
        {
            "w": weights,
            "x_codes": quantized.codes,
            "x_scales": quantized.scales,
            "x_sums": quantized.sums,
            "y": y,
        },
        {"rows": len(x), "outputs": outputs, "blocks": blocks},
    )
    return y


# -- attention --------------------------------------------------------------------


@dataclass
class Cache:
    """A paged cache and the rows that look into it."""

    k_pages: NDArray[np.float16]
    v_pages: NDArray[np.float16]
    table: NDArray[np.uint32]
    lengths: NDArray[np.uint32]

    def path(self, row: int) -> tuple[Floats, Floats]:
        """Keys and values of a row's path, [positions, Hkv, Dh], in order."""

        def in_order(pages: NDArray[np.float16]) -> Floats:
            tiles = pages[self.table[row]].transpose(0, 2, 1, 3)
            flat = tiles.reshape(-1, *tiles.shape[2:])
            return flat[: self.lengths[row]].astype(np.float32)

        return in_order(self.k_pages), in_order(self.v_pages)


def attend(gpu: Runner, heads: Heads, cache: Cache, q: Floats, window: int | None) -> Floats:
    """Output [T, H, Dh] of queries of the same shape."""
    rows = len(q)
    segments = cache.table.shape[1] * TILE // 512 + 1
    partial = {
        "segment_m": np.full((rows, heads.n_heads, segments), UNWRITTEN),
        "segment_total": np.full((rows, heads.n_heads, segments), UNWRITTEN),
        "segment_acc": np.full((rows, heads.n_heads, segments, heads.head_dim), UNWRITTEN),
    }
    params = {"window": NO_WINDOW if window is None else window, "segments": segments}
    gpu.launch(
        attention_segments(heads),
        (segments, heads.n_heads, rows),
        {
            "q": q,
            "k_pages": cache.k_pages,
            "v_pages": cache.v_pages,
            "table": cache.table,
            "lengths": cache.lengths,
            **partial,
        },
        {**params, "table_width": cache.table.shape[1]},
    )
    y = np.full_like(q, UNWRITTEN)
    gpu.launch(
        attention_merge(heads),
        (heads.n_heads, rows, 1),
        {**partial, "lengths": cache.lengths, "y": y},
        params,
    )
    return y
