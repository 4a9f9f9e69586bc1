"""Reads blocks of any declared format with numpy: the meaning that kernels are tested against.

*Shapes:* raw bytes are `uint8[..., blocks, nbytes]`, whatever comes before; `as_blocks`
makes that of a row's bytes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import InternalError
from kinetic.ir import math
from kinetic.ir.math_numpy import NUMPY
from kinetic.ir.quant.base import (
    RUN,
    AnyPlane,
    BitMask,
    BlockFormat,
    Digits,
    Format,
    Grid,
    Mask8,
    Plane,
)

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


def as_blocks(fmt: Format, rows: Bytes) -> Bytes:
    """`uint8[..., row bytes]` as `uint8[..., blocks, nbytes]`, without a copy."""
    if rows.shape[-1] % fmt.nbytes:
        raise InternalError(
            f"A row of {rows.shape[-1]} bytes is no whole number of {fmt.name} blocks "
            f"({fmt.nbytes} bytes each)."
        )
    return rows.reshape(*rows.shape[:-1], -1, fmt.nbytes)


def codes(fmt: BlockFormat, raw: Bytes) -> Ints:
    """The unsigned codes (`flip` applied, `zero` not subtracted): `[..., blocks, values]`."""
    out = np.zeros((*_check(fmt, raw).shape[:-1], fmt.values), np.int32)
    for plane in fmt.planes:
        out |= _plane_bits(plane, fmt.values, raw).astype(np.int32) << np.int32(plane.place)
    return out ^ np.int32(fmt.flip)


def _plane_bits(plane: AnyPlane, values: int, raw: Bytes) -> NDArray[np.integer]:
    if isinstance(plane, Grid):
        table = np.frombuffer(plane.table, np.uint8).reshape(-1, plane.width)
        reader, count = _Blocks(raw), values // plane.width
        index = np.stack([plane.index(reader, j) for j in range(count)], axis=-1)
        return table[index].reshape(*raw.shape[:-1], values)
    if isinstance(plane, Mask8):
        reader = _Blocks(raw)
        masks = np.stack([plane.at(reader, j) for j in range(values // 8)], axis=-1)
        bits = (masks[..., None] >> np.arange(8, dtype=np.int32)) & 1
        return bits.reshape(*raw.shape[:-1], values)
    if isinstance(plane, Digits):
        offsets, factors = _digit_places(plane, values)
        return ((raw[..., offsets] * factors).astype(np.int32) * plane.radix) >> 8
    offsets, shifts = _places(plane, values)
    return (raw[..., offsets] >> shifts) & np.uint8((1 << plane.bits) - 1)


def quants(fmt: BlockFormat, raw: Bytes) -> Ints:
    """The integers that the codes stand for: `[..., blocks, values]`."""
    if fmt.codebook is not None:
        return np.array(fmt.codebook, np.int32)[codes(fmt, raw)]
    return codes(fmt, raw) - np.int32(fmt.zero)


def scales(fmt: BlockFormat, raw: Bytes) -> Ints:
    """The integer scales, 1 where the format has none: `[..., blocks, groups]`."""
    return _per_group(fmt, raw, fmt.scale)


def minima(fmt: BlockFormat, raw: Bytes) -> Ints:
    """The integer minima, 1 where the format has none: `[..., blocks, groups]`."""
    return _per_group(fmt, raw, fmt.minimum)


def d(fmt: BlockFormat, raw: Bytes) -> Floats:
    """The block's scale: `[..., blocks]`; of several, the first."""
    return d_of_updates(fmt, raw)[..., 0]


def d_of_updates(fmt: BlockFormat, raw: Bytes) -> Floats:
    """The scale of each update of a product: `[..., blocks, parts * updates]`."""
    count = fmt.parts * fmt.updates
    if fmt.d_e8m0:
        found = _half_power(_check(fmt, raw)[..., fmt.d].astype(np.int32))[..., None]
    elif fmt.d_bits is None:
        found = _f16_at(_check(fmt, raw), fmt.d)[..., None]
    else:
        reader = _Blocks(_check(fmt, raw))
        found = _f16(np.stack([fmt.d_bits(reader, j) for j in range(count)], axis=-1))
    if fmt.d_factor != 1:
        with np.errstate(invalid="ignore"):
            found = found * np.float32(fmt.d_factor)
    return np.broadcast_to(found, (*found.shape[:-1], count))


def dmin(fmt: BlockFormat, raw: Bytes) -> Floats:
    """The block's minimum or its scale, 0 where the format has none: `[..., blocks]`."""
    if fmt.dmin is None:
        return np.zeros(_check(fmt, raw).shape[:-1], np.float32)
    return _f16_at(_check(fmt, raw), fmt.dmin)


def dequantize(fmt: Format, raw: Bytes) -> Floats:
    """The weights as ggml computes them, each operation rounded: `[..., blocks * values]`."""
    if not isinstance(fmt, BlockFormat):
        return _floats(fmt, _check(fmt, raw))
    grouped = (*raw.shape[:-1], fmt.groups, fmt.group_values)
    q = quants(fmt, raw).astype(np.float32).reshape(grouped)
    s = scales(fmt, raw).astype(np.float32)[..., None]
    m = minima(fmt, raw).astype(np.float32)[..., None]
    if fmt.updates * fmt.parts > 1:  # no integer scales: `d` takes the place of a group's
        q = q.reshape(*raw.shape[:-1], fmt.updates * fmt.parts, fmt.update_values)
        scale = d_of_updates(fmt, raw)[..., None]
    else:
        scale = d(fmt, raw)[..., None, None]
    with np.errstate(all="ignore"):
        w = fmt.dequantize(scale, dmin(fmt, raw)[..., None, None], s, m, q)
    return np.asarray(w).reshape(*raw.shape[:-2], raw.shape[-2] * fmt.values)


class _Blocks:
    """`base.Reader` over numpy: a byte of every block at once."""

    def __init__(self, raw: Bytes) -> None:
        self.raw = raw

    def u8(self, offset: int) -> Ints:
        return self.raw[..., offset].astype(np.int32)

    def s8(self, offset: int) -> Ints:
        return self.raw[..., offset].view(np.int8).astype(np.int32)


def _check(fmt: Format, raw: Bytes) -> Bytes:
    if raw.ndim < 2 or raw.shape[-1] != fmt.nbytes or raw.dtype != np.uint8:
        raise InternalError(
            f"{fmt.name} is read from uint8[..., blocks, {fmt.nbytes}], "
            f"not from {raw.dtype}{list(raw.shape)}."
        )
    return raw


@lru_cache(maxsize=256)
def _places(plane: Plane | BitMask, values: int) -> tuple[NDArray[np.intp], Bytes]:
    """Byte offset and right shift of each value's bits in a block."""
    index = np.arange(values)
    if isinstance(plane, BitMask):
        bit = index * plane.bits
        return plane.offset + bit // 8, (bit % 8).astype(np.uint8)
    runs = [plane.at(run) for run in range(values // RUN)]
    offsets = np.repeat([offset for offset, _ in runs], RUN) + index % RUN
    return offsets, np.repeat([shift for _, shift in runs], RUN).astype(np.uint8)


@lru_cache(maxsize=256)
def _digit_places(plane: Digits, values: int) -> tuple[NDArray[np.intp], Bytes]:
    """Byte offset and factor of each value of a block."""
    offsets: list[int] = []
    factors: list[int] = []
    for run in range(values // RUN):
        offset, turns = plane.at(run)
        width = RUN // len(turns)
        for factor in turns:
            offsets += range(offset, offset + width)
            factors += [factor] * width
    return np.array(offsets, np.intp), np.array(factors, np.uint8)


def _per_group(fmt: BlockFormat, raw: Bytes, declared: object) -> Ints:
    shape = (*_check(fmt, raw).shape[:-1], fmt.groups)
    if not callable(declared):
        return np.ones(shape, np.int32)
    reader = _Blocks(raw)
    return np.stack([declared(reader, j) for j in range(fmt.groups)], axis=-1)


def _f16_at(raw: Bytes, offset: int) -> Floats:
    low, high = raw[..., offset].astype(np.int32), raw[..., offset + 1].astype(np.int32)
    return _f16(low | (high << np.int32(8)))


def _f16(bits: Ints) -> Floats:
    return np.asarray(math.f16_bits_to_f32(NUMPY, bits), np.float32)


def _half_power(e: Ints) -> Floats:
    """2^(e - 128); the two smallest are subnormal floats."""
    bits = np.where(e < 2, np.int32(0x00200000) << np.minimum(e, 1), (e - 1) << np.int32(23))
    return bits.astype(np.int32).view(np.float32)


def _floats(fmt: Format, raw: Bytes) -> Floats:
    flat = np.ascontiguousarray(raw).reshape(*raw.shape[:-2], -1)
    if fmt.nbytes == 4:
        return flat.view("<f4")
    words = flat.view("<u2").astype(np.int32)
    widen = math.bf16_bits_to_f32 if fmt.name == "BF16" else math.f16_bits_to_f32
    return np.asarray(widen(NUMPY, words), np.float32)
