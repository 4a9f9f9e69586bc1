"""Write small GGUF files for tests.

    write_gguf(path, {"general.architecture": "llama"}, {"t": ((2, 32), 2, blocks)})

Python values choose their GGUF type: bool, int (uint32, or int32/uint64/int64 when needed),
float (float32), str, list (of one of these, or of lists), numpy arrays and scalars (their own
type). `U8(7)`-style exactness comes from numpy scalars: `np.uint8(7)`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_NUMPY_TYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": 7,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}
Tensor = tuple[tuple[int, ...], int, bytes]


def pack_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _int_type(values: list[int]) -> str:
    low, high = min(values), max(values)
    for name in ("uint32", "int32", "uint64", "int64"):
        info = np.iinfo(name)
        if info.min <= low and high <= info.max:
            return name
    raise ValueError("integer does not fit 64 bits")


def pack_value(value: object) -> tuple[int, bytes]:
    """The type id and the bytes of a metadata value."""
    if isinstance(value, (str, bytes)):
        return 8, pack_string(value)
    if isinstance(value, (bool, np.bool_)):
        return 7, struct.pack("<?", bool(value))
    if isinstance(value, np.generic):
        return _NUMPY_TYPES[value.dtype.name], value.tobytes()
    if isinstance(value, int):
        name = _int_type([value])
        return _NUMPY_TYPES[name], np.array(value, name).tobytes()
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, np.ndarray):
        head = struct.pack("<IQ", _NUMPY_TYPES[value.dtype.name], value.size)
        return 9, head + value.tobytes()
    if isinstance(value, (list, tuple)):
        return 9, _pack_list(list(value))
    raise TypeError(f"no GGUF type for {type(value)}")


def _pack_list(items: list[object]) -> bytes:
    if not items:
        return struct.pack("<IQ", 4, 0)
    if all(isinstance(x, int) and not isinstance(x, bool) for x in items):
        name = _int_type([int(x) for x in items])  # type: ignore[call-overload]
        return pack_value(np.array(items, name))[1]
    packed = [pack_value(x) for x in items]
    kind = packed[0][0]
    return struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in packed)


def gguf_bytes(
    metadata: dict[str, object],
    tensors: dict[str, Tensor] | None = None,
    *,
    version: int = 3,
    pad_end: bool = True,
) -> bytes:
    """A whole file; `shape` of a tensor is logical (rows first), its bytes are stored as given."""
    tensors = tensors or {}
    alignment = int(metadata.get("general.alignment", 32))  # type: ignore[call-overload]
    out = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = pack_value(value)
        out.append(pack_string(key) + struct.pack("<I", kind) + data)
    offset = 0
    body: list[bytes] = []
    for i, (name, (shape, type_id, data)) in enumerate(tensors.items()):
        dims = tuple(reversed(shape))
        out.append(pack_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.append(struct.pack("<IQ", type_id, offset))
        last = i == len(tensors) - 1
        fill = b"" if last and not pad_end else b"\0" * (-len(data) % alignment)
        body.append(data + fill)
        offset += len(data) + len(fill)
    head = b"".join(out)
    if tensors or pad_end:
        head += b"\0" * (-len(head) % alignment)
    return head + b"".join(body)


def write_gguf(
    path: str | Path,
    metadata: dict[str, object],
    tensors: dict[str, Tensor] | None = None,
    *,
    version: int = 3,
    pad_end: bool = True,
) -> Path:
    """Write a file from metadata and {name: (shape, type_id, bytes)}; returns its path."""
    target = Path(path)
    target.write_bytes(gguf_bytes(metadata, tensors, version=version, pad_end=pad_end))
    return target
