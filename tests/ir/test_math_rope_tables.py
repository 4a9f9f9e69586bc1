"""Rope tables against numpy's binary64 functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinetic.errors import UnsupportedError
from kinetic.ir import rope_tables
from kinetic.ir.rope_tables import RopeScaling, rope_table


def close(got: np.ndarray, want: np.ndarray) -> bool:
    """Within one unit in the last place of binary32, or 1e-10 beside a zero."""
    want32 = want.astype(np.float32)
    return bool(np.all(np.abs(got - want) <= np.spacing(np.abs(want32)) + 1e-10))


@pytest.mark.parametrize(("rot", "base"), [(128, 1e6), (64, 1e4), (96, 1e11), (2, 5e5), (80, 1.5)])
def test_plain_tables(rot: int, base: float) -> None:
    positions = np.concatenate([np.arange(4096), np.arange(4096, 1_000_000, 9973)])
    angle = positions[:, None] * base ** (-2 * np.arange(rot // 2) / rot)
    cos, sin = rope_table(positions, rot, base)
    assert cos.dtype == sin.dtype == np.float32 and cos.shape == (len(positions), rot // 2)
    assert close(cos, np.cos(angle)) and close(sin, np.sin(angle))


def test_factors_divide_and_linear_scaling_stretches() -> None:
    positions, factors = np.arange(500), np.float32([1, 1, 2, 8, 1e30, 3.7, 1, 1])
    freqs = 10000.0 ** (-2 * np.arange(8) / 16) / factors / 4
    scaling = RopeScaling("linear", factor=4.0)
    cos, sin = rope_table(positions, 16, 1e4, scaling=scaling, freq_factors=factors)
    assert close(cos, np.cos(positions[:, None] * freqs))
    assert close(sin, np.sin(positions[:, None] * freqs))


@pytest.mark.parametrize("orig_ctx", [32, 4096, 131072])
def test_yarn(orig_ctx: int) -> None:
    rot, base, factor, attn = 64, 1e4, 4.0, 0.9

    def corrected(beta: float) -> float:
        return rot * math.log(orig_ctx / (beta * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(corrected(32)))
    high = min(rot - 1, math.ceil(corrected(1)))
    keep = 1 - np.clip((np.arange(rot // 2) - low) / max(0.001, high - low), 0, 1)
    own = base ** (-2 * np.arange(rot // 2) / rot)
    freqs = own / factor * (1 - keep) + own * keep
    size = (1 + 0.1 * math.log(factor)) * attn
    positions = np.arange(0, 20000, 7)
    scaling = RopeScaling("yarn", factor, orig_ctx, attn)
    cos, sin = rope_table(positions, rot, base, scaling=scaling)
    assert close(cos, np.cos(positions[:, None] * freqs) * size)
    assert close(sin, np.sin(positions[:, None] * freqs) * size)


def test_a_position_does_not_depend_on_its_neighbours() -> None:
    whole, _ = rope_table(np.arange(3000), 128, 1e6)
    alone, _ = rope_table(np.array([2777]), 128, 1e6)
    assert np.array_equal(whole[2777], alone[0])
    assert rope_table(np.array([], np.int64), 128, 1e6)[0].shape == (0, 64)


def test_own_functions() -> None:
    for x in (1.0, 2.0, 0.5, 1e4, 1e6, 1e11, 3.7, 1e-3):
        assert abs(rope_tables.ln(x) - math.log(x)) <= 2e-16 * max(1.0, abs(math.log(x)))
    for x in (-25.0, -1.0, 0.0, 0.3, 20.0):
        assert abs(rope_tables.exp(x) / math.exp(x) - 1) < 5e-16
    x = np.linspace(-1e6, 1e6, 200_001)
    cos, sin = rope_tables.cos_sin(x)
    assert np.abs(cos - np.cos(x)).max() < 5e-16 and np.abs(sin - np.sin(x)).max() < 5e-16


def test_nonsense_is_refused() -> None:
    for make in (
        lambda: RopeScaling("ntk"),  # type: ignore[arg-type]
        lambda: RopeScaling("linear", factor=0.0),
        lambda: RopeScaling("yarn", factor=2.0),
        lambda: rope_table(np.arange(4), 8, -1.0),
        lambda: rope_table(np.arange(4), 8, math.nan),
        lambda: rope_table(np.array([1 << 40]), 8, 1e4),
    ):
        with pytest.raises(UnsupportedError):
            make()
