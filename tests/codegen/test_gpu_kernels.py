"""GPU kernels give the words of docs/arithmetic.md, as SPIR-V and as PTX."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import gpu_reference as reference
from support.gpu_arguments import Runner
from support.gpu_inputs import FLAVOURS, activations, weights
from support.gpu_kernels import BLOCK_FORMATS
from support.gpu_launch import RUNNERS, Cache, attend, find_runner, product, quantize

from kinetic.codegen.kernels.gpu.attention import Heads
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat

Floats = NDArray[np.float32]


@pytest.fixture(params=RUNNERS)
def gpu(request: pytest.FixtureRequest) -> Runner:
    return find_runner(request.param)


# -- section 3 --------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("values", [32, 256])
def test_quantized_rows_are_the_references(gpu: Runner, values: int, flavour: str) -> None:
    rng = np.random.default_rng(FLAVOURS.index(flavour))
    x = activations(rng, 5, 3 * values, flavour)
    got = quantize(gpu, x, values)
    codes, scales = reference.quantize(x, values)
    assert (got.codes == codes).all()
    assert reference.same_words(got.scales, scales)
    assert (got.sums == reference.run_sums(codes)).all()


@pytest.mark.parametrize("values", [32, 256])
def test_a_block_is_zeros_just_below_its_least_scale(gpu: Runner, values: int) -> None:
    limit = np.float32(2.0**-100)
    x = np.zeros((2, values), np.float32)
    x[0, 7], x[1, 9] = np.nextafter(limit, np.float32(0)), -limit
    got = quantize(gpu, x, values)
    assert not got.codes[0].any() and got.scales[0, 0] == 0
    assert got.codes[1, 9] == -127 and got.scales[1, 0] > 0


def test_halves_round_to_even(gpu: Runner) -> None:
    # With 127 in the block the scale is 1 and its inverse too: codes are the values' rounding.
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    expected, scales = reference.quantize(x, 32)
    got = quantize(gpu, x, 32)
    assert scales[0, 0] == 1 and (got.codes == expected).all()
    assert got.codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


# -- section 4 --------------------------------------------------------------------


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_product_is_the_references(gpu: Runner, fmt: BlockFormat, flavour: str) -> None:
    rng = np.random.default_rng(10 + FLAVOURS.index(flavour))
    raw = weights(rng, fmt, 11, 7, flavour)
    x = activations(rng, 3, 7 * fmt.values, flavour)
    assert reference.same_words(product(gpu, fmt, raw, x), reference.matmul(fmt, raw, x))


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_product_of_many_rows(gpu: Runner, name: str, rows: int) -> None:
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    rng = np.random.default_rng(rows)
    raw = weights(rng, fmt, 24, 5, "plain")
    x = activations(rng, rows, 5 * fmt.values, "plain")
    expected = reference.matmul(fmt, raw, x)
    for tile in (1, 4):
        assert reference.same_words(product(gpu, fmt, raw, x, tile), expected)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["Q4_K", "Q8_0", "Q5_0"]),
    outputs=st.integers(1, 20),
    blocks=st.integers(1, 10),
    rows=st.integers(1, 9),
    tile=st.sampled_from([1, 4]),
    flavour=st.sampled_from(FLAVOURS),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.parametrize("runner", RUNNERS)
def test_product_of_odd_sizes(
    runner: str, name: str, outputs: int, blocks: int, rows: int, tile: int, flavour: str, seed: int
) -> None:
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    rng = np.random.default_rng(seed)
    raw = weights(rng, fmt, outputs, blocks, flavour)
    x = activations(rng, rows, blocks * fmt.values, flavour)
    got = product(find_runner(runner), fmt, raw, x, tile)
    assert reference.same_words(got, reference.matmul(fmt, raw, x))


def test_zero_rows_give_plus_zero(gpu: Runner) -> None:
    fmt = FORMATS["Q8_0"]
    assert isinstance(fmt, BlockFormat)
    raw = weights(np.random.default_rng(0), fmt, 9, 4, "plain")
    y = product(gpu, fmt, raw, np.zeros((2, 128), np.float32))
    assert not y.view(np.uint32).any()


# -- section 7 --------------------------------------------------------------------

HEADS = {
    "grouped": Heads(4, 2, 64, 0.125),
    "softcap, narrow": Heads(2, 1, 40, 0.2, softcap=30.0),
    "wide": Heads(2, 2, 128, 0.09),
}


def filled_cache(
    rng: np.random.Generator, heads: Heads, lengths: list[int], garbage: bool = True
) -> Cache:
    """Pages in random order; slots that no row may see hold NaN, to be noticed if read."""
    tiles = max(-(-n // 64) for n in lengths)
    pages = len(lengths) * tiles
    shape = (pages, heads.n_kv_heads, 64, heads.head_dim)
    cache = Cache(
        rng.standard_normal(shape).astype(np.float16),
        rng.standard_normal(shape).astype(np.float16),
        rng.permutation(pages).reshape(len(lengths), tiles).astype(np.uint32),
        np.array(lengths, np.uint32),
    )
    for row, length in enumerate(lengths):
        for position in range(length, tiles * 64) if garbage else ():
            page = cache.table[row, position // 64]
            cache.k_pages[page, :, position % 64] = np.nan
            cache.v_pages[page, :, position % 64] = np.nan
    return cache


def expected_attention(heads: Heads, cache: Cache, q: Floats, window: int | None) -> Floats:
    rows = [
        reference.attention(heads, q[row], *cache.path(row), int(cache.lengths[row]), window)
        for row in range(len(q))
    ]
    return np.stack(rows)


@pytest.mark.parametrize("window", [None, 100, 512], ids=lambda w: f"window-{w}")
@pytest.mark.parametrize("kind", HEADS)
def test_attention_is_the_references(gpu: Runner, kind: str, window: int | None) -> None:
    heads = HEADS[kind]
    rng = np.random.default_rng(5)
    cache = filled_cache(rng, heads, [1, 63, 64, 65, 513, 700])
    q = 3 * rng.standard_normal((6, heads.n_heads, heads.head_dim)).astype(np.float32)
    got = attend(gpu, heads, cache, q, window)
    assert reference.same_words(got, expected_attention(heads, cache, q, window))


def test_a_row_is_the_same_alone_and_among_others(gpu: Runner) -> None:
    heads = HEADS["grouped"]
    rng = np.random.default_rng(6)
    cache = filled_cache(rng, heads, [600, 5, 130])
    q = rng.standard_normal((3, heads.n_heads, heads.head_dim)).astype(np.float32)
    together = attend(gpu, heads, cache, q, None)
    for row in range(3):
        one = slice(row, row + 1)
        alone = Cache(cache.k_pages, cache.v_pages, cache.table[one], cache.lengths[one])
        assert reference.same_words(attend(gpu, heads, alone, q[one], None), together[one])


@pytest.mark.parametrize("magnitude", [0.0, 1e-40, 1e4, 1e30])
def test_attention_of_extreme_scores(gpu: Runner, magnitude: float) -> None:
    heads = HEADS["grouped"]
    rng = np.random.default_rng(7)
    cache = filled_cache(rng, heads, [70, 520])
    q = rng.standard_normal((2, heads.n_heads, heads.head_dim)).astype(np.float32)
    q *= np.float32(magnitude)
    got = attend(gpu, heads, cache, q, None)
    assert reference.same_words(got, expected_attention(heads, cache, q, None))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_attention_with_a_broken_key_or_value(gpu: Runner, bad: float) -> None:
    heads = HEADS["grouped"]
    rng = np.random.default_rng(8)
    cache = filled_cache(rng, heads, [70, 80])
    cache.k_pages[cache.table[0, 0], 0, 3, 5] = bad
    cache.v_pages[cache.table[1, 0], 1, 9, 2] = bad
    q = rng.standard_normal((2, heads.n_heads, heads.head_dim)).astype(np.float32)
    got = attend(gpu, heads, cache, q, None)
    assert reference.same_words(got, expected_attention(heads, cache, q, None))
