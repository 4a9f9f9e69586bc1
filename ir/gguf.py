"""The GGUF container: metadata and the places of tensors, read through a memory map.

Nothing here computes with weights. Every count, length, dimension and offset is checked
against the size of the file before it is used, in integers that cannot overflow; whatever is
wrong becomes one ModelFileError that names the field and its byte.

    magic "GGUF" | version | tensor count | key count     24 bytes, little-endian
    key, type, value                                      once per key
    name, dimensions, type, offset                        once per tensor
    padding to general.alignment                          then tensor data

Decisions where the format is silent: tensors must not overlap, must start at a multiple of the
alignment, and gaps between them are allowed; padding after the last tensor may be missing or
longer than needed; a key or tensor name that comes twice is refused.

*Source*: the GGUF specification in ggml's documentation.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from io import FileIO
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from kinetic.errors import InternalError, ModelFileError, UnsupportedError
from kinetic.ir.ggml_types import GGML_TYPES, REMOVED_TYPES
from kinetic.ir.gguf_strings import ChainBroken, StringArray, scan_strings
from kinetic.ir.ktc import MAGIC, Manifest, check_tensors, read_head

Value = bool | int | float | str | NDArray[np.generic] | StringArray | list
T = TypeVar("T")

MAX_DIMS = 4
MAX_KEY_BYTES = 65535
MAX_ARRAY_DEPTH = 4
MAX_INNER_ARRAYS = 65536  # arrays inside arrays become Python lists, so their number is bounded
MAX_STRINGS = 1 << 24  # strings of one array; the largest known vocabulary has 2^18
MAX_ENTRIES = 1 << 20  # keys, and tensors
_READ_BYTES = 64 << 20  # of a file that is read instead of mapped, at a time
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of the weights, for a file's identity

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Value types of the format: (numpy type, size). 8 is string, 9 array.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_TYPE_NAMES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float32",
    "bool",
    "string",
    "array",
    "uint64",
    "int64",
    "float64",
]
_OLD_MAGICS = {b"lmgg", b"fmgg", b"tjgg", b"algg", b"GGML", b"GGMF", b"GGJT"}


class _Required:
    """Marks a getter's default that was not given."""


REQUIRED = _Required()


class TensorInfo(NamedTuple):
    """Where a tensor lies and what it holds.

    *Shapes*: `shape` is in logical order, rows first and columns (the contiguous axis) last.
    *Units*: `offset` and `nbytes` are bytes; `offset` counts from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file.

    `in_memory` reads the file once, now, instead of mapping it: nothing that happens to the
    file or its disk later can reach the process.

    *Raises*: ModelFileError if the file is damaged or is not GGUF; UnsupportedError for one
    part of a split model, unless `allow_split`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allow_split: bool = False,
        in_memory: bool = False,
    ) -> None:
        self.path, self.in_memory = os.fspath(path), in_memory
        self._released: set[str] = set()
        self._replaced: dict[str, Callable[[], NDArray[np.float32]]] = {}
        self._made: dict[str, NDArray[np.uint8]] = {}
        self._also = ""
        self._map, self._buf, self.mtime_ns = _open_file(self.path, in_memory)
        self.manifest: Manifest | None = None
        """Of a .ktc file, whose model is a GGUF file with hashes before it."""
        self._start = 0
        try:
            if self._buf[:4].tobytes() == MAGIC:
                self.manifest = read_head(self._buf.data, display_path(self.path))
                self._start = self.manifest.start
                self._buf = self._buf[self._start :]
            self.size = len(self._buf)
            parser = _Parser(self.path, self._map, self._buf)
            self.version: int = parser.version
            self.metadata: Mapping[str, Value] = MappingProxyType(parser.metadata)
            self._types = parser.types
            self.alignment: int = parser.alignment
            self.data_offset: int = parser.data_offset
            self.tensors: dict[str, TensorInfo] = parser.tensors
            if self.manifest is not None:
                check_tensors(
                    self.manifest, self.tensors, self.data_offset, display_path(self.path)
                )
            self.split_count: int = self.get_int("split.count", 1)
            if self.split_count > 1 and not allow_split:
                part = self.get_int("split.no", 0) + 1
                raise UnsupportedError(
                    f"{display_path(self.path)} is part {part} of {self.split_count} of a split "
                    "model, and this needs a whole file; join the parts with "
                    "`llama-gguf-split --merge`"
                )
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        allow_split: bool = False,
        in_memory: bool = False,
    ) -> GGUFFile:
        """Open and check a file; a mapped one's weights are not read until they are used."""
        return cls(path, allow_split=allow_split, in_memory=in_memory)

    # Metadata. A getter without a default demands the key.

    @property
    def architecture(self) -> str:
        """The value of general.architecture."""
        return self.get_str("general.architecture")

    def get_str(self, key: str, default: T | _Required = REQUIRED) -> str | T:
        """A string value."""
        return self._get(key, default, "a string", lambda v: isinstance(v, str), str)

    def get_bool(self, key: str, default: T | _Required = REQUIRED) -> bool | T:
        """A boolean value."""
        return self._get(key, default, "a bool", lambda v: isinstance(v, bool), bool)

    def get_int(self, key: str, default: T | _Required = REQUIRED) -> int | T:
        """An integer value of any width."""
        return self._get(key, default, "an integer", _is_int, int)

    def get_float(self, key: str, default: T | _Required = REQUIRED) -> float | T:
        """A float value; an integer is accepted as one."""
        return self._get(
            key, default, "a number", lambda v: isinstance(v, float) or _is_int(v), float
        )

    def get_array(
        self, key: str, default: T | _Required = REQUIRED
    ) -> NDArray[np.generic] | StringArray | list | T:
        """An array: numpy for numbers and bools, StringArray for strings, list for arrays."""
        return self._get(
            key, default, "an array", lambda v: isinstance(v, (np.ndarray, StringArray, list)), None
        )

    def get_strings(self, key: str, default: T | _Required = REQUIRED) -> StringArray | T:
        """An array of strings."""
        return self._get(
            key, default, "an array of strings", lambda v: isinstance(v, StringArray), None
        )

    def type_name(self, key: str) -> str:
        """The value type a key was written with, such as `uint32` or `array[string]`."""
        return self._types[key]

    def _get(self, key, default, what, accepts, convert):  # type: ignore[no-untyped-def]
        if key not in self.metadata:
            if isinstance(default, _Required):
                raise ModelFileError(
                    f"{display_path(self.path)}: metadata key {key} is missing; "
                    "the file is incomplete, convert it again"
                )
            return default
        value = self.metadata[key]
        if not accepts(value):
            raise ModelFileError(
                f"{display_path(self.path)}: metadata key {key} is {self._types[key]}, "
                f"not {what}; convert the file again"
            )
        return value if convert is None else convert(value)

    # Tensors.

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as a view of the file."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{display_path(self.path)}: there is no tensor {name}")
        if name in self._released:
            raise InternalError(f"tensor {name} was released; open the file again to read it")
        if name in self._replaced:
            if name not in self._made:
                self._made[name] = self._replaced[name]().reshape(-1).view(np.uint8)
            return self._made[name]
        return self._buf[info.offset : info.offset + info.nbytes]

    def raw(self, offset: int, nbytes: int) -> memoryview:
        """Bytes of the model as the file has them, to be hashed or copied."""
        return self._buf[offset : offset + nbytes].data

    def replace(self, name: str, make: Callable[[], NDArray[np.float32]]) -> None:
        """Give a tensor other values, of its shape and as F32, made when they are first read."""
        info = self.tensors[name]
        nbytes = 4 * math.prod(info.shape)
        self.tensors[name] = info._replace(type_id=0, type_name="F32", offset=0, nbytes=nbytes)
        self._replaced[name] = make

    def add_identity(self, text: str) -> None:
        """Make `identity` depend on this too: on what tensors were replaced with."""
        self._also += text

    @property
    def base_address(self) -> int:
        """The address of the first byte of the mapping, for native code."""
        return int(self._buf.ctypes.data)

    def advise_dontneed(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Let the system drop pages of a tensor from memory; they are read again when used.

        *Units*: `start` and `stop` are bytes within the tensor; by default, all of it.
        """
        if not self.in_memory:  # there the bytes would not come back
            self._drop(name, start, stop)

    def release(self, name: str) -> None:
        """Let go of a tensor that nobody will read again."""
        if self.in_memory or name in self._replaced:
            self._released.add(name)
        self._made.pop(name, None)
        self._drop(name, 0, None)

    def identity(self) -> str:
        """What tells this file from other files and from its own past, without reading it all.

        Its size, its time of change, its header, and a sample of the weights: copies with
        equal times exist (archives, images), and fine-tunes with equal headers do too.
        """
        digest = blake3(_U64.pack(self.size) + _U64.pack(self.mtime_ns & (1 << 64) - 1))
        digest.update(self._buf[: self.data_offset].data)
        step = max(_SAMPLE_BYTES, (self.size - self.data_offset) // _SAMPLES)
        for at in range(self.data_offset, self.size, step):
            digest.update(self._buf[at : at + _SAMPLE_BYTES].data)
        digest.update(self._also.encode())
        return digest.hexdigest()

    def _drop(self, name: str, start: int, stop: int | None) -> None:
        info = self.tensors[name]
        if not hasattr(mmap, "MADV_DONTNEED") or self._map is None or name in self._replaced:
            return
        page = mmap.PAGESIZE
        # Only whole pages: the first and last may hold a neighbour that is in use.
        base = self._start + info.offset
        first = -(-(base + start) // page) * page
        last = (base + (info.nbytes if stop is None else stop)) // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of it that is still held."""
        self._buf = np.empty(0, np.uint8)
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                self._map = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {display_path(self.path)}: {len(self.tensors)} tensors>"


def display_path(path: str | bytes) -> str:
    """A path as one printable line: odd bytes and control characters are escaped."""
    text = os.fsdecode(path)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _open_file(path: str, in_memory: bool) -> tuple[mmap.mmap | None, NDArray[np.uint8], int]:
    """A file's bytes, mapped or read, and its time of change."""
    shown = display_path(path)
    try:
        # Opening a pipe would wait for a writer, so the kind of file is asked first.
        if os.path.exists(path) and not os.path.isfile(path):
            raise ModelFileError(f"{shown} is not a regular file; give the path of a .gguf file")
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            if size < 24:
                raise ModelFileError(
                    f"{shown}: header at byte 0: file is truncated: needs 24 bytes, has {size}; "
                    "get the file again"
                )
            if in_memory:
                mapped = _memory(size)
                got = _read_into(mapped, file)
                if got < size:
                    raise ModelFileError(
                        f"{shown}: file is truncated: it had {size} bytes when it was opened "
                        f"and ended after {got}; is it still being written?"
                    )
            else:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"cannot open {shown}: {reason}") from None
    buf = np.frombuffer(mapped, np.uint8)
    buf.flags.writeable = False
    return mapped, buf, status.st_mtime_ns


def _memory(size: int) -> mmap.mmap:
    """Memory whose pages can be given back one by one: private, unlike Python's default."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _read_into(mapped: mmap.mmap, file: FileIO) -> int:
    """Read until the memory is full or the file ends; the number of bytes read."""
    at = 0
    with memoryview(mapped) as view:
        while at < len(view):
            count = file.readinto(view[at : at + _READ_BYTES])
            if not count:
                break
            at += count
    return at


class _Parser:
    """One pass over the header, the keys and the tensor table."""

    def __init__(self, path: str, mapped: mmap.mmap | None, buf: NDArray[np.uint8]) -> None:
        self.shown = display_path(path)
        self.raw = buf.data
        self.buf = buf
        self.size = len(buf)
        self.pos = 0
        self.inner_arrays = 0
        self.metadata: dict[str, Value] = {}
        self.types: dict[str, str] = {}
        self.tensors: dict[str, TensorInfo] = {}
        n_tensors, n_keys = self._header()
        for index in range(n_keys):
            self._key_value(index, n_keys)
        self.alignment = self._alignment()
        pending = [self._tensor_entry(index) for index in range(n_tensors)]
        self.data_offset = -(-self.pos // self.alignment) * self.alignment
        self._place(pending)

    # Errors and bounded reads.

    def _fail(self, what: str, offset: int, why: str) -> ModelFileError:
        return ModelFileError(f"{self.shown}: {what} at byte {offset}: {why}")

    def _need(self, nbytes: int, what: str, offset: int | None = None) -> None:
        end = self.pos + nbytes
        if end > self.size:
            raise self._fail(
                what,
                self.pos if offset is None else offset,
                f"file is truncated: needs {end} bytes, has {self.size}; get the file again",
            )

    def _u32(self, what: str) -> int:
        self._need(4, what)
        (value,) = _U32.unpack_from(self.raw, self.pos)
        self.pos += 4
        return int(value)

    def _u64(self, what: str) -> int:
        self._need(8, what)
        (value,) = _U64.unpack_from(self.raw, self.pos)
        self.pos += 8
        return int(value)

    def _string(self, what: str, limit: int | None = None) -> str:
        start = self.pos
        length = self._u64(f"length of {what}")
        if limit is not None and length > limit:
            raise self._fail(
                f"length of {what}", start, f"{length} bytes is more than the allowed {limit}"
            )
        self._need(length, what, start)
        data = bytes(self.raw[self.pos : self.pos + length])
        self.pos += length
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._fail(
                what, start + 8, "the bytes are not UTF-8; the file is damaged"
            ) from None

    # Header.

    def _header(self) -> tuple[int, int]:
        magic = bytes(self.raw[:4])
        if magic == b"FUGG":
            raise self._fail("magic", 0, "big-endian GGUF is not supported; convert it")
        if magic in _OLD_MAGICS:
            raise self._fail("magic", 0, "this is a GGML file from before GGUF; convert it")
        if magic != b"GGUF":
            raise self._fail("magic", 0, "this is not a GGUF file; name a .gguf or .ktc file")
        self.pos = 4
        self.version = self._u32("version")
        if self.version & 0xFFFF == 0 and self.version:
            raise self._fail("version", 4, "big-endian GGUF is not supported; convert it")
        if self.version not in (2, 3):
            raise self._fail(
                "version", 4, f"GGUF version {self.version} is not supported, only 2 and 3 are"
            )
        n_tensors = self._count("tensor count", 24)
        n_keys = self._count("metadata count", 13)
        return n_tensors, n_keys

    def _count(self, what: str, least: int) -> int:
        """A count whose entries take at least `least` bytes each."""
        offset = self.pos
        count = self._u64(what)
        if count > MAX_ENTRIES:
            raise self._fail(what, offset, f"{count} is more than the allowed {MAX_ENTRIES}")
        self._need(count * least, what, offset)
        return count

    # Metadata.

    def _key_value(self, index: int, n_keys: int) -> None:
        start = self.pos
        key = self._string(f"metadata key {index} of {n_keys}", MAX_KEY_BYTES)
        if key in self.metadata:
            raise self._fail(f"metadata key {printable(key)}", start, "the key comes twice")
        label = f"metadata key {printable(key)}"
        offset = self.pos
        kind = self._u32(f"type of {label}")
        if kind == _ARRAY:
            value, name = self._array(label, 1)
            self.metadata[key], self.types[key] = value, f"array[{name}]"
            return
        if kind == _STRING:
            self.metadata[key] = self._string(label)
        elif kind in _SCALARS:
            self.metadata[key] = self._scalar(kind, label)
        else:
            raise self._fail(label, offset, f"unknown value type {kind}")
        self.types[key] = _TYPE_NAMES[kind]

    def _scalar(self, kind: int, label: str) -> bool | int | float:
        dtype = _SCALARS[kind]
        self._need(dtype.itemsize, label)
        value: int | float = np.frombuffer(self.raw, dtype, 1, self.pos)[0].item()
        if kind == _BOOL:
            if value not in (0, 1):
                raise self._fail(label, self.pos, f"a bool must be 0 or 1, not {value}")
            value = bool(value)
        self.pos += dtype.itemsize
        return value

    def _array(self, label: str, depth: int) -> tuple[Value, str]:
        start = self.pos
        kind = self._u32(f"element type of {label}")
        count = self._u64(f"length of {label}")
        if kind == _STRING:
            return self._strings(label, start, count), "string"
        if kind == _ARRAY:
            return self._nested(label, start, count, depth), "array"
        if kind not in _SCALARS:
            raise self._fail(label, start, f"unknown array element type {kind}")
        dtype = _SCALARS[kind]
        self._need(count * dtype.itemsize, f"array of {label}", start)
        values: NDArray[np.generic] = np.frombuffer(self.raw, dtype, count, self.pos)
        if kind == _BOOL:
            bad = np.flatnonzero(values.view(np.uint8) > 1)
            if len(bad):
                at = self.pos + int(bad[0])
                raise self._fail(f"{label}[{bad[0]}]", at, "a bool must be 0 or 1")
            values = values.view(np.bool_)
        self.pos += count * dtype.itemsize
        return values, _TYPE_NAMES[kind]

    def _strings(self, label: str, start: int, count: int) -> StringArray:
        if count > MAX_STRINGS:
            raise self._fail(
                label, start, f"{count} strings are more than the allowed {MAX_STRINGS}"
            )
        self._need(count * 8, f"array of {label}", start)
        try:
            starts, lengths, self.pos = scan_strings(self.buf, self.pos, count)
        except ChainBroken as broken:
            raise self._fail(
                f"{label}[{broken.index}]",
                broken.offset,
                f"file is truncated: needs {broken.needs} bytes, has {self.size}; "
                "get the file again",
            ) from None
        return StringArray(self.buf, starts, lengths, f"{self.shown}: {label}")

    def _nested(self, label: str, start: int, count: int, depth: int) -> list[Value]:
        if depth >= MAX_ARRAY_DEPTH:
            raise self._fail(
                label, start, f"arrays are nested deeper than the allowed {MAX_ARRAY_DEPTH}"
            )
        self.inner_arrays += count
        if self.inner_arrays > MAX_INNER_ARRAYS:
            raise self._fail(
                label, start, f"more than the allowed {MAX_INNER_ARRAYS} arrays inside arrays"
            )
        self._need(count * 12, f"array of {label}", start)
        return [self._array(f"{label}[{i}]", depth + 1)[0] for i in range(count)]

    def _alignment(self) -> int:
        key = "general.alignment"
        value = self.metadata.get(key, 32)
        if key in self.types and self.types[key] != "uint32":
            raise ModelFileError(
                f"{self.shown}: metadata key {key} must be uint32, not {self.types[key]}"
            )
        assert isinstance(value, int)
        if not 1 <= value <= 1 << 20 or value & (value - 1):
            raise ModelFileError(
                f"{self.shown}: metadata key {key} is {value}, "
                "not a power of two between 1 and 1048576"
            )
        return value

    # Tensors.

    def _tensor_entry(self, index: int) -> tuple[TensorInfo, int]:
        """A tensor whose offset still counts from the start of the data, and its entry's byte."""
        start = self.pos
        name = self._string(f"name of tensor {index}", MAX_KEY_BYTES)
        label = f"tensor {printable(name)}"
        if name in self.tensors:
            raise self._fail(label, start, "the name comes twice")
        at = self.pos
        n_dims = self._u32(f"dimension count of {label}")
        if n_dims > MAX_DIMS:
            raise self._fail(label, at, f"has {n_dims} dimensions, at most {MAX_DIMS} are allowed")
        at = self.pos
        dims = [self._u64(f"dimension {i} of {label}") for i in range(n_dims)]
        total = 1
        for i, dim in enumerate(dims):
            total *= dim
            if dim == 0 or total >= 1 << 63:
                raise self._fail(
                    label, at + 8 * i, f"dimension {i} is {dim}, which gives no valid size"
                )
        at = self.pos
        type_id = self._u32(f"type of {label}")
        if type_id in REMOVED_TYPES:
            raise self._fail(
                label,
                at,
                f"{label} has type {type_id} ({REMOVED_TYPES[type_id]}), which was removed "
                "from GGUF; quantize the model again",
            )
        if type_id not in GGML_TYPES:
            raise self._fail(label, at, f"{label} has unknown type {type_id}")
        kind = GGML_TYPES[type_id]
        columns = dims[0] if dims else 1
        if columns % kind.values:
            raise self._fail(
                label,
                at,
                f"rows of {columns} values are not a multiple of {kind.name}'s "
                f"block of {kind.values}",
            )
        at = self.pos
        offset = self._u64(f"offset of {label}")
        if offset % self.alignment:
            raise self._fail(
                label, at, f"offset {offset} is not a multiple of the alignment {self.alignment}"
            )
        nbytes = total // kind.values * kind.nbytes
        info = TensorInfo(name, tuple(reversed(dims)), type_id, kind.name, offset, nbytes)
        self.tensors[name] = info
        return info, at

    def _place(self, pending: list[tuple[TensorInfo, int]]) -> None:
        """Make offsets absolute, and check them against the file and each other."""
        needs = 0
        worst: tuple[TensorInfo, int] | None = None
        for info, at in pending:
            end = self.data_offset + info.offset + info.nbytes
            if end > needs:
                needs, worst = end, (info, at)
            self.tensors[info.name] = info._replace(offset=self.data_offset + info.offset)
        if worst is not None and needs > self.size:
            info, at = worst
            raise self._fail(
                f"tensor {printable(info.name)}",
                at,
                f"file is truncated: needs {needs} bytes, has {self.size}; get the file again",
            )
        before: tuple[TensorInfo, int] | None = None
        for info, at in sorted(pending, key=lambda p: (p[0].offset, p[0].nbytes)):
            if before is not None and before[0].offset + before[0].nbytes > info.offset:
                raise self._fail(
                    f"tensor {printable(info.name)}",
                    at,
                    f"its data overlaps that of tensor {printable(before[0].name)}",
                )
            before = (info, at)


def printable(text: str, limit: int = 80) -> str:
    """A name from the file, made safe to print: control characters escaped, length bounded."""
    short = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
