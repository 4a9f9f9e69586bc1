"""Encoders compiled for this machine, and called: floats in, bytes of blocks out."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from kinetic import settings
from kinetic.codegen.objects import cached_object, object_key
from kinetic.codegen.targets.llvm_x86 import compile_object, cpu_target, link, module_text
from kinetic.errors import InternalError
from kinetic.ir.quant import FORMATS
from kinetic.quantize.encoders import k_quants, nonlinear, simple
from kinetic.quantize.encoders.lanes import TILE, Encoder

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

WRITTEN_BY: dict[str, Callable[[Encoder], None]] = {
    "F16": simple.f16,
    "BF16": simple.bf16,
    "Q8_0": simple.q8_0,
    "Q4_0": functools.partial(simple.signed, bits=4),
    "Q5_0": functools.partial(simple.signed, bits=5),
    "Q4_1": functools.partial(simple.ranged, bits=4),
    "Q5_1": functools.partial(simple.ranged, bits=5),
    "MXFP4": simple.mxfp4,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ4_NL": nonlinear.iq4_nl,
    "IQ4_XS": nonlinear.iq4_xs,
}
"""Every type with an encoder; F32 needs none."""
UNWEIGHTED = ("F32", "F16", "BF16", "Q8_0", "MXFP4")
"""Types that importance does not change."""
WEIGHTED = tuple(name for name in WRITTEN_BY if name not in UNWEIGHTED)
"""Types whose encoders weigh by importance."""


def encode(type_name: str, values: Floats, importance: Floats | None = None) -> Bytes:
    """Rows of floats as the bytes of a type's rows.

    *Shapes*: `values` float32 [rows, columns], `importance` float32 [columns] or None; the
    result uint8 [rows, row bytes].
    """
    if importance is not None and type_name in UNWEIGHTED:
        importance = None
    fmt = FORMATS[type_name]
    rows, columns = values.shape
    if columns % fmt.values:
        raise InternalError(f"rows of {columns} values are no whole number of {type_name} blocks")
    out = np.empty((rows, columns // fmt.values * fmt.nbytes), np.uint8)
    values = np.ascontiguousarray(values, np.float32)
    if type_name == "F32":
        return values.view(np.uint8)
    if importance is None:
        _run(_kernel(type_name, False), values.reshape(-1), out.reshape(-1), type_name)
        return out
    function = _kernel(type_name, True)
    weights = np.ascontiguousarray(importance, np.float32)
    for row, target in zip(values, out, strict=True):
        _run(function, row, target, type_name, weights)
    return out


def _run(
    function: _Function, values: Floats, out: Bytes, type_name: str, weights: Floats | None = None
) -> None:
    """Encode whole tiles where they lie, and what is left of one through a padded copy."""
    fmt = FORMATS[type_name]
    tile_bytes = TILE // fmt.values * fmt.nbytes
    tiles, left = divmod(len(values), TILE)
    square = 0.0 if weights is None else _mean_square(values)
    importance = values if weights is None else weights
    function(values.ctypes.data, out.ctypes.data, tiles, importance.ctypes.data, square)
    if left:
        padded, spread = np.zeros(TILE, np.float32), np.zeros(TILE, np.float32)
        padded[:left] = values[tiles * TILE :]
        if weights is not None:
            spread[:left] = weights[tiles * TILE :]
        last = np.empty(tile_bytes, np.uint8)
        function(padded.ctypes.data, last.ctypes.data, 1, spread.ctypes.data, square)
        out[tiles * tile_bytes :] = last[: left // fmt.values * fmt.nbytes]


def _mean_square(row: Floats) -> float:
    """The mean square of a row, summed in order."""
    total = np.cumsum(row * row, dtype=np.float32)[-1]
    return float(total / np.float32(len(row)))


_Function = Callable[[int, int, int, int, float], None]
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
)


@functools.cache
def _kernel(type_name: str, weighted: bool) -> _Function:
    """The machine code of a type's encoder, from the cache or made now."""
    target = cpu_target()
    name = f"encode_{type_name.lower()}" + ("_weighted" if weighted else "")

    def make() -> bytes:
        fmt = FORMATS[type_name]
        encoder = Encoder(name, TILE // fmt.values * fmt.nbytes, weighted=weighted)
        WRITTEN_BY[type_name](encoder)
        return compile_object(target, module_text(target, [encoder]))

    key = object_key(target.key, [name, _sources()])
    machine_code = cached_object(settings.cache_dir() / "kernels", key, make)
    return _SIGNATURE(link(machine_code, [name])[name])


@functools.cache
def _sources() -> str:
    digest = blake3()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
