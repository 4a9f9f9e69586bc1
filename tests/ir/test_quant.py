"""Declared formats: bytes in, ggml's own floats out, and errors that name the format."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.block_scales import put_d

from kinetic.errors import InternalError, UnsupportedError
from kinetic.ir.ggml_types import GGML_TYPES
from kinetic.ir.quant import FORMATS, by_ggml_id, decode, doc_table
from kinetic.ir.quant.base import RUN, BitMask, BlockFormat, FloatFormat, Plane

BLOCK_FORMATS = [f for f in FORMATS.values() if isinstance(f, BlockFormat)]
each_block_format = pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)


def same_words(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a.view(np.int32), b.view(np.int32)))


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("F32", "F16")])
def test_committed_blocks_dequantize_bit_for_bit(name: str, golden_dir: Path) -> None:
    golden = np.load(golden_dir / "quants" / "blocks.npz")
    raw, want = golden[f"q_{name}"], golden[f"dq_{name}"]
    assert len(raw) >= 4
    got = decode.dequantize(FORMATS[name], raw[:, None, :])
    assert same_words(got, want)


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("F32", "F16")])
def test_every_golden_block_dequantizes_bit_for_bit(name: str, shared_dir: Path) -> None:
    golden = np.load(shared_dir / "golden" / "quants" / f"{name.lower()}.npz")
    rows = [key for key in golden.files if key.startswith("q_")]
    assert len(rows) >= 11
    for key in rows:
        raw = decode.as_blocks(FORMATS[name], golden[key])
        assert same_words(decode.dequantize(FORMATS[name], raw), golden["d" + key]), key


def test_plain_floats() -> None:
    x = np.float32([[1.5, -0.0, np.inf, 2.0**-24, 65504.0]])
    for name, dtype in (("F32", np.float32), ("F16", np.float16)):
        raw = decode.as_blocks(FORMATS[name], x.astype(dtype).view(np.uint8))
        assert raw.shape == (1, 5, FORMATS[name].nbytes)
        assert same_words(decode.dequantize(FORMATS[name], raw), x)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_sizes_and_numbers_are_ggmls(fmt: BlockFormat | FloatFormat) -> None:
    ggml = GGML_TYPES[fmt.ggml_id]
    assert (ggml.name, ggml.values, ggml.nbytes) == (fmt.name, fmt.values, fmt.nbytes)
    assert by_ggml_id(fmt.ggml_id) is fmt


@each_block_format
def test_every_bit_of_a_block_is_read_once(fmt: BlockFormat) -> None:
    """Each plane bit belongs to one value; with the scales they fill the block."""
    if not all(isinstance(plane, Plane | BitMask) for plane in fmt.planes):
        pytest.skip(f"codes of {fmt.name} are not planes of bits")
    owner: dict[tuple[int, int], int] = {}
    for plane in fmt.planes:
        for i in range(fmt.values):
            if isinstance(plane, BitMask):
                offset, shift = plane.offset + i * plane.bits // 8, i * plane.bits % 8
            else:
                assert isinstance(plane, Plane)
                start, shift = plane.at(i // RUN)
                offset = start + i % RUN
            for bit in range(shift, shift + plane.bits):
                assert bit < 8 and owner.setdefault((offset, bit), i) == i
    assert len(owner) == fmt.values * fmt.bits
    used = {offset for offset, _ in owner} | {fmt.d}
    if not fmt.d_e8m0:
        used.add(fmt.d + 1)
    if fmt.dmin is not None:
        used |= {fmt.dmin, fmt.dmin + 1}
    scale_bytes = set(range(fmt.nbytes)) - used
    assert len(used) <= fmt.nbytes and bool(scale_bytes) == (fmt.scale is not None)


@each_block_format
def test_a_declaration_has_a_shape_that_kernels_know(fmt: BlockFormat) -> None:
    """Other shapes may compile, and compute nonsense; docs/add-a-quant.md lists what fits."""
    assert fmt.values in (32, 64, 128, 256)
    assert fmt.planes and 1 <= fmt.bits <= 8
    assert all(p.bits in (1, 2) for p in fmt.planes if isinstance(p, BitMask))
    assert fmt.codebook is None or len(fmt.codebook) <= min(16, 1 << fmt.bits)
    assert fmt.group is None or (fmt.group in (16, 32) and fmt.values == 256)
    assert (fmt.group is None) == (fmt.scale is None)
    assert fmt.update is None or (fmt.update == 16 and fmt.values < 256 and not fmt.min_sign)
    assert fmt.min_sign == 0 or fmt.min_sign == (-1 if fmt.values == 256 else 1)
    assert (fmt.min_sign != 0) == (fmt.dmin is not None)
    assert (fmt.min_sign < 0) == (fmt.minimum is not None)
    assert fmt.d_factor > 0 and np.frexp(fmt.d_factor)[0] == 0.5, "a power of two"


def test_the_docs_say_where_a_format_goes(golden_dir: Path) -> None:
    """Every file that the page names exists."""
    page = (golden_dir.parent / "docs" / "add-a-quant.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:ir|tests|golden|docs|scripts)/[^` ]+?\.[a-z]+)[`: ]", page)
    assert len(named) >= 8
    for name in named:
        assert (golden_dir.parent / name).is_file(), name


@each_block_format
@given(data=st.data())
def test_any_bytes_decode_within_their_ranges(fmt: BlockFormat, data: st.DataObject) -> None:
    """Damaged weights give odd numbers, never a crash or a code out of range."""
    raw = np.frombuffer(data.draw(st.binary(min_size=fmt.nbytes, max_size=fmt.nbytes)), np.uint8)
    blocks = raw[None, None, :]
    q = decode.codes(fmt, blocks)
    assert q.shape == (1, 1, fmt.values) and q.min() >= 0 and q.max() < 1 << fmt.bits
    s, m = decode.scales(fmt, blocks), decode.minima(fmt, blocks)
    assert s.shape == m.shape == (1, 1, fmt.groups) and m.min() >= 0
    assert s.min() >= (-128 if fmt.scale_signed else 0) and s.max() < 128
    assert decode.dequantize(fmt, blocks).shape == (1, fmt.values)


@each_block_format
def test_the_parts_make_the_whole(fmt: BlockFormat) -> None:
    """`d s (q - zero)` plus the minimum's term, in float64, is close to `dequantize`."""
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (3, 2, fmt.nbytes)).astype(np.uint8)
    put_d(fmt, raw, np.full(raw.shape[:-1], 0.37))
    if fmt.dmin is not None:
        raw[..., fmt.dmin : fmt.dmin + 2] = np.float16([0.37]).view(np.uint8)
    q = decode.quants(fmt, raw).astype(float)
    s, m = (f(fmt, raw).repeat(fmt.group_values, -1) for f in (decode.scales, decode.minima))
    count = fmt.values // (fmt.parts * fmt.updates)
    d, dmin = decode.d_of_updates(fmt, raw).repeat(count, -1), decode.dmin(fmt, raw)[..., None]
    want = d * s * q + fmt.min_sign * dmin * m
    got = decode.dequantize(fmt, raw).reshape(want.shape)
    assert np.allclose(got, want, rtol=1e-6, atol=1e-4)


def test_leading_shapes_and_strides_do_not_matter() -> None:
    fmt = FORMATS["Q4_K"]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (3, 2, 4, fmt.nbytes), dtype=np.uint8)
    whole = decode.dequantize(fmt, raw)
    assert whole.shape == (3, 2, 4 * 256)
    assert same_words(decode.dequantize(fmt, raw[::2, 1]), np.ascontiguousarray(whole[::2, 1]))


def test_the_scale_of_mxfp4_is_half_a_power_of_two() -> None:
    raw = np.zeros((1, 256, 17), np.uint8)
    raw[0, :, 0] = np.arange(256)
    want = 2.0 ** (np.arange(256) - 128.0)
    assert np.array_equal(decode.d(FORMATS["MXFP4"], raw)[0], want)  # type: ignore[arg-type]


def test_the_scales_of_nvfp4_are_those_of_e4m3() -> None:
    """1 sign bit that is not read, 4 of exponent around 7, 3 of mantissa; 0x7f means 0."""
    fmt = FORMATS["NVFP4"]
    assert isinstance(fmt, BlockFormat)
    raw = np.zeros((1, 64, fmt.nbytes), np.uint8)
    raw[0, :, :4] = np.arange(256).reshape(64, 4)
    e, m = np.arange(256) >> 3 & 15, np.arange(256) & 7
    want = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0)) / 2
    want[0x7F] = 0
    assert np.array_equal(decode.d_of_updates(fmt, raw).ravel(), want)


@each_block_format
def test_dot_operands_are_unsigned_bytes(fmt: BlockFormat) -> None:
    """Kernels multiply `quant + dot_zero`; by sign (eight bits) only around 128."""
    table = fmt.dot_table or range(1 << fmt.bits)
    assert min(table) >= 0 and max(table) <= fmt.dot_top <= 255
    quants = fmt.codebook or [code - fmt.zero for code in range(1 << fmt.bits)]
    assert [value - fmt.dot_zero for value in table] == list(quants)
    assert fmt.dot_zero == 128 or 254 * fmt.dot_top <= 32767


def test_unknown_formats_are_named() -> None:
    with pytest.raises(UnsupportedError, match="Q8_K"):
        by_ggml_id(15)
    with pytest.raises(UnsupportedError, match=r"Q8_1.*IQ1_S"):
        by_ggml_id(9)
    with pytest.raises(UnsupportedError, match=r"Q4_0_4_4.*old"):
        by_ggml_id(31)
    with pytest.raises(UnsupportedError, match="number 999 is unknown"):
        by_ggml_id(999)


def test_wrong_shapes_are_an_internal_error() -> None:
    with pytest.raises(InternalError, match="Q4_0 blocks"):
        decode.as_blocks(FORMATS["Q4_0"], np.zeros(19, np.uint8))
    with pytest.raises(InternalError, match="Q4_0 is read from"):
        decode.dequantize(FORMATS["Q4_0"], np.zeros((1, 20), np.uint8))


def test_the_docs_table_lists_every_format() -> None:
    table = doc_table()
    assert all(f"| {name} |" in table for name in FORMATS)
    assert "| Q6_K | 6.562 | 256 | 16 |  |" in table
