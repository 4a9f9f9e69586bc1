"""Importance matrices: the mean square of each input of a weight, as llama.cpp keeps them.

GGUF    NAME.in_sum2 [matrices, K] and NAME.counts [matrices, 1], F32, for each weight
.dat    the older form: entries i32, then for each a name, calls i32, count i32, values f32

*Source*: llama.cpp's `common/imatrix-loader.cpp` and `tools/imatrix`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinetic.errors import ModelFileError
from kinetic.ir.gguf import GGUFFile, display_path, printable
from kinetic.ir.gguf_writer import GGUFWriter, KeyValue, TensorPlan

Floats = NDArray[np.float32]

SUMS, COUNTS = ".in_sum2", ".counts"
_DATASETS, _CHUNKS, _SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_I32 = struct.Struct("<i")
_MAX_TEXT = 127
"""Bytes of a text that llama-quantize keeps in a model's metadata."""


@dataclass(frozen=True)
class Matrix:
    """Sums of squares of a weight's inputs. *Shapes*: sums [matrices, K], counts [matrices]."""

    sums: Floats
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class ImportanceMatrix:
    """What one file holds; `chunks` windows of `chunk_size` tokens of the `datasets`."""

    matrices: Mapping[str, Matrix]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    path: str = field(default="", compare=False)

    def means(self) -> dict[str, Floats]:
        """Mean squares by weight, [matrices * K]; 1 for an expert that nothing reached."""
        found = {}
        for name, matrix in self.matrices.items():
            counts = matrix.counts.astype(np.float32)[:, None]
            means = np.ones_like(matrix.sums)
            np.divide(matrix.sums, counts, out=means, where=counts > 0)
            found[name] = means.reshape(-1)
        return found

    def pairs(self) -> list[KeyValue]:
        """What a quantized model's metadata says of the matrix that weighed it."""
        found = [KeyValue("quantize.imatrix.file", "string", _short(self.path))]
        if self.datasets:
            dataset = _short(self.datasets[0])
            found.append(KeyValue("quantize.imatrix.dataset", "string", dataset))
        found.append(KeyValue("quantize.imatrix.entries_count", "uint32", len(self.matrices)))
        if self.chunks > 0:
            found.append(KeyValue("quantize.imatrix.chunks_count", "uint32", self.chunks))
        return found


def _short(text: str) -> str:
    return text.encode()[:_MAX_TEXT].decode(errors="ignore")


def read(path: Path, shown: str | None = None) -> ImportanceMatrix:
    """A file of either form; `shown` is how it was named.

    *Raises* `ModelFileError` for a damaged file, or one that is neither.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            found = None if magic == b"GGUF" else _read_dat(path, magic + file.read())
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from None
    if found is None:
        with GGUFFile.open(path) as gguf:
            found = _read_gguf(gguf)
    for name, matrix in found.matrices.items():
        if not np.isfinite(matrix.sums).all() or (matrix.sums < 0).any():
            raise ModelFileError(
                f"{path}: the importance of {printable(name)} holds values that cannot be; make "
                "the file again"
            )
    named = shown or os.fspath(path)
    return ImportanceMatrix(found.matrices, found.datasets, found.chunks, found.chunk_size, named)


def _read_gguf(file: GGUFFile) -> ImportanceMatrix:
    where = display_path(file.path)
    kind = file.get_str("general.type", "model")
    if kind != "imatrix" or not {_DATASETS, _CHUNKS, _SIZE} <= file.metadata.keys():
        raise ModelFileError(
            f"{where} is no importance matrix (general.type is {printable(kind)}); "
            "kinetic imatrix makes one"
        )
    matrices = {}
    for name, info in file.tensors.items():
        if not name.endswith(SUMS):
            continue
        weight = name.removesuffix(SUMS)
        counts = file.tensors.get(weight + COUNTS)
        if counts is None or (info.type_name, counts.type_name) != ("F32", "F32"):
            raise ModelFileError(
                f"{where} has no F32 sums and counts for {printable(weight)}; make the file again"
            )
        number = file.data(counts.name).view("<f4").astype(np.float64)
        sums = file.data(name).view("<f4")
        if not len(number) or len(sums) % len(number) or not np.isfinite(number).all():
            raise ModelFileError(
                f"{where} has {len(sums)} sums and {len(number)} counts for {printable(weight)}, "
                "which do not go together; make the file again"
            )
        matrices[weight] = Matrix(
            sums.reshape(len(number), -1).copy(), np.rint(number).astype(np.int64)
        )
    if not matrices:
        raise ModelFileError(f"{where} holds no importance data; make the file again")
    datasets = tuple(str(text) for text in file.get_strings(_DATASETS))
    return ImportanceMatrix(matrices, datasets, file.get_int(_CHUNKS), file.get_int(_SIZE))


class _Bytes:
    """A .dat file's bytes, taken in order."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._at = path, data, 0

    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, nbytes: int, what: str) -> bytes:
        if not 0 <= nbytes <= self.left():
            raise ModelFileError(
                f"{self._path}: {what} would take {nbytes} bytes at {self._at} and {self.left()} "
                "are left; it is no importance matrix, or damaged: make it again"
            )
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]

    def number(self, what: str) -> int:
        return int(_I32.unpack(self.take(4, what))[0])

    def text(self, what: str) -> str:
        return self.take(self.number(what), what).decode(errors="replace")


def _read_dat(path: Path, data: bytes) -> ImportanceMatrix:
    reader = _Bytes(path, data)
    count = reader.number("the number of entries")
    if count < 1:
        raise ModelFileError(f"{path} holds no importance data; make the file again")
    matrices = {}
    for _ in range(count):
        name = reader.text("a weight's name")
        calls = reader.number("a number of calls")
        values = np.frombuffer(reader.take(4 * reader.number("a count"), "values"), "<f4")
        if not len(values):
            raise ModelFileError(f"{path}: {printable(name)} has no values; make the file again")
        # The sums of this form are means already, times the number of calls.
        matrices[name] = Matrix(values[None].copy(), np.array([max(1, calls)], np.int64))
    chunks, datasets = 0, []
    if reader.left() >= 4:
        chunks = max(0, reader.number("the number of chunks"))
        if reader.left() > 4:
            datasets.append(reader.text("the text's name"))
    return ImportanceMatrix(matrices, tuple(datasets), chunks)


def write(path: Path, importance: ImportanceMatrix) -> None:
    """Write the GGUF form; the file has its name only when it is complete."""
    metadata = [
        KeyValue("general.type", "string", "imatrix"),
        KeyValue(_DATASETS, "array[string]", list(importance.datasets)),
        KeyValue(_CHUNKS, "uint32", importance.chunks),
        KeyValue(_SIZE, "uint32", importance.chunk_size),
    ]
    plans, parts = [], []
    for name, matrix in sorted(importance.matrices.items()):
        plans.append(TensorPlan(name + SUMS, matrix.sums.shape, "F32"))
        plans.append(TensorPlan(name + COUNTS, (len(matrix.counts), 1), "F32"))
        parts += [matrix.sums, matrix.counts]
    with GGUFWriter(path, metadata, plans) as writer:
        for part in parts:
            writer.write(np.ascontiguousarray(part, "<f4").reshape(-1).view(np.uint8).data)
        writer.finish()
