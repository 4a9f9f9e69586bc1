"""A GGUF file written as a stream: the header first, then tensors one slice after the other.

Types and sizes are known before the first byte, so nothing is written twice and no tensor is
ever whole in memory. The file has its name only when it is complete: until then it is a hidden
file beside it, which an error or Ctrl-C deletes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from kinetic.errors import InternalError, UnsupportedError
from kinetic.ir.ggml_types import GGML_TYPES
from kinetic.ir.gguf import Value, printable
from kinetic.ir.new_file import NewFile

VERSION = 3
_KINDS = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}
_STRING, _ARRAY = 8, 9
_IDS = {kind.name: kind for kind in GGML_TYPES.values()}


class KeyValue(NamedTuple):
    """A metadata key, its type as `GGUFFile.type_name` says it, and its value."""

    key: str
    type_name: str
    value: Value


class TensorPlan(NamedTuple):
    """A tensor to be written. *Shapes*: rows first, columns last, as in `TensorInfo`."""

    name: str
    shape: tuple[int, ...]
    type_name: str

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        kind = _IDS[self.type_name]
        return int(np.prod(self.shape, dtype=np.int64)) // kind.values * kind.nbytes


def encode_string(text: str | bytes) -> bytes:
    """A length and the bytes."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def encode_pair(pair: KeyValue) -> bytes:
    """One metadata entry."""
    key = encode_string(pair.key)
    element = pair.type_name.removeprefix("array[").removesuffix("]")
    if element == pair.type_name:
        if element == "string":
            return key + struct.pack("<I", _STRING) + encode_string(str(pair.value))
        kind, form = _KINDS[element]
        return key + struct.pack("<I", kind) + struct.pack(form, pair.value)
    values = pair.value
    if element == "array" or not isinstance(values, Sequence | np.ndarray):
        raise UnsupportedError(
            f"metadata key {printable(pair.key)} holds arrays inside an array, which are not "
            "written; take the key out of the model"
        )
    if element == "string":
        raw = getattr(values, "raw_items", None)
        items = raw() if raw is not None else values
        body = b"".join(map(encode_string, items))
        kind = _STRING
    else:
        kind, form = _KINDS[element]
        body = np.asarray(values).astype(np.dtype(form)).tobytes()
    return key + struct.pack("<IIQ", _ARRAY, kind, len(values)) + body


def encode_header(
    metadata: Sequence[KeyValue], tensors: Sequence[TensorPlan], alignment: int
) -> bytes:
    """Everything before the tensors' data, padded."""
    parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    parts += [encode_pair(pair) for pair in metadata]
    offset = 0
    for tensor in tensors:
        dims = list(reversed(tensor.shape)) or [1]
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()  # as ggml counts dimensions
        parts.append(encode_string(tensor.name) + struct.pack("<I", len(dims)))
        parts.append(struct.pack(f"<{len(dims)}Q", *dims))
        parts.append(struct.pack("<IQ", _IDS[tensor.type_name].id, offset))
        offset += _padded(tensor.nbytes, alignment)
    header = b"".join(parts)
    return header.ljust(_padded(len(header), alignment), b"\0")


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


class GGUFWriter:
    """Writes a file; a context manager, and only `finish` gives the file its name.

    *Raises* `KineticError` when the disk is too small or fills up.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Sequence[KeyValue],
        tensors: Sequence[TensorPlan],
        *,
        alignment: int = 32,
    ) -> None:
        self.path = Path(path)
        self._alignment = alignment
        self._left = [tensor.nbytes for tensor in tensors]
        header = encode_header(metadata, tensors, alignment)
        self.size = len(header) + sum(_padded(n, alignment) for n in self._left)
        self._file = NewFile(self.path, self.size)
        self._file.write(header)

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes of the tensor that is not complete yet."""
        nbytes = len(data) if isinstance(data, bytes) else data.nbytes
        if not self._left or nbytes > self._left[0]:
            raise InternalError(f"{self.path.name}: more bytes than its tensors have")
        self._file.write(data)
        self._left[0] -= nbytes
        while self._left and self._left[0] == 0:
            self._left.pop(0)
            at = self._file.tell()
            self._file.write(bytes(_padded(at, self._alignment) - at))

    def finish(self) -> None:
        """Give the complete file its name."""
        if self._left:
            raise InternalError(f"{self.path.name}: {len(self._left)} tensors were not written")
        self._file.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__(*exc)
