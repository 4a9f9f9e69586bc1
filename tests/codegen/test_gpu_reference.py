"""Two readings of docs/arithmetic.md agree: the IR's numpy meaning, and the GPU tests' own."""

from __future__ import annotations

import numpy as np
import pytest
from support import gpu_reference
from support.gpu_inputs import FLAVOURS, activations, weights

from kinetic.codegen.kernels.gpu.attention import Heads
from kinetic.ir.ops import arithmetic
from kinetic.ir.ops.spec import Weight
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat

BLOCK_FORMATS = [fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda fmt: fmt.name)
def test_products(fmt: BlockFormat, flavour: str) -> None:
    rng = np.random.default_rng(1)
    raw = weights(rng, fmt, 5, 6, flavour)
    x = activations(rng, 3, 6 * fmt.values, flavour)
    weight = Weight(fmt, (5, 6 * fmt.values), raw.reshape(5, -1))
    assert gpu_reference.same_words(gpu_reference.matmul(fmt, raw, x), arithmetic.linear(x, weight))


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("cap", [None, 20.0])
def test_attention(window: int | None, cap: float | None) -> None:
    rng = np.random.default_rng(2)
    heads = Heads(4, 2, 40, 0.15, cap)
    keys, values = rng.standard_normal((2, 600, 2, 40)).astype(np.float32)
    lengths = [1, 64, 65, 513, 600]
    q = 3 * rng.standard_normal((len(lengths), 4, 40)).astype(np.float32)
    positions = np.array(lengths, np.int32) - 1
    theirs = arithmetic.attend(q, positions, keys, values, heads.scale, window, cap)
    for row, length in enumerate(lengths):
        ours = gpu_reference.attention(heads, q[row], keys, values, length, window)
        assert gpu_reference.same_words(ours, theirs[row])
