"""The head of a .ktc file: where its model lies, what every byte is, and what it hashes to.

    head, 192 bytes | manifest, JSON | zeros to 4096 | the model, section by section

The model is a GGUF file as it stands, cut into sections: `metadata`, then one for each tensor.
`docs/FORMAT.md` is the specification. Opening checks the head, the manifest and the metadata;
weights are hashed by `kinetic verify`, not at each load.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, Protocol

from blake3 import blake3

from kinetic.errors import ModelFileError

MAGIC, VERSION = b"KTC1", 1
PAGE = 4096
"""What the model's first byte is a multiple of, so that it can be mapped."""
HEAD = struct.Struct("<4sIQQ32sII32s64s32s")
"""magic | version | manifest bytes | file bytes | manifest's BLAKE3 | flags | zero | public key |
signature | BLAKE3 of all before."""
SIGNED = 1
"""The one flag."""
SIGNED_BYTES = 96
"""Of the head, which a signature covers: all before the signature itself."""
METADATA, TENSOR = "metadata", "tensor:"
MAX_MANIFEST = 256 << 20
_MAX_DEPTH = 8
_MAX_PROFILE = 1 << 30


class Section(NamedTuple):
    """A run of bytes with a hash. *Units*: bytes; `offset` counts from the model's start."""

    name: str
    offset: int
    nbytes: int
    blake3: str


class Tensor(Protocol):
    """What `check_tensors` asks of a tensor."""

    @property
    def offset(self) -> int:
        """Where it starts in the model."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""


class Manifest(NamedTuple):
    """What a checked head and manifest say."""

    start: int
    """Where in the file the model starts."""
    sections: tuple[Section, ...]
    profile: Mapping[str, int | str | None]
    """How the file asks to be run: `device-class` and `ctx-size`."""
    made_by: str
    public_key: bytes
    """Empty in a file that is not signed."""
    signature: bytes
    signed: bytes
    """What the signature covers."""
    head: bytes


def read_head(raw: memoryview, shown: str) -> Manifest:
    """The head and the manifest of a file, checked against its size and their hashes.

    *Raises*: ModelFileError naming the field that is wrong.
    """
    size = len(raw)

    def fail(why: str) -> ModelFileError:
        return ModelFileError(f"{shown}: {why}; get the file again")

    if size < HEAD.size:
        raise fail(f"the head is cut: it has {HEAD.size} bytes and the file {size}")
    magic, version, length, file_size, digest, flags, zero, public, signature, own = (
        HEAD.unpack_from(raw)
    )
    if magic != MAGIC:
        raise fail("the magic at byte 0 is not KTC1")
    if version != VERSION:
        raise ModelFileError(
            f"{shown}: .ktc format version {version} is not supported, only {VERSION} is; a newer "
            "Kinetic may read it"
        )
    if blake3(raw[: HEAD.size - 32]).digest() != own:
        raise fail("the head's hash at byte 160 does not match the head")
    if flags & ~SIGNED or zero:
        raise fail("the flags at byte 56 are not those of version 1")
    is_signed = bool(flags & SIGNED)
    if not is_signed and (any(public) or any(signature)):
        raise fail("the file has a key or a signature at byte 64 and is not marked as signed")
    if file_size != size:
        raise fail(f"the head says that the file has {file_size} bytes, and it has {size}")
    if not 2 <= length <= min(MAX_MANIFEST, size - HEAD.size):
        raise fail(f"the manifest at byte {HEAD.size} has {length} bytes, which cannot be")
    end = HEAD.size + length
    start = -(-end // PAGE) * PAGE
    if start >= size:
        raise fail(f"the model should start at byte {start}, behind the end")
    if blake3(raw[HEAD.size : end]).digest() != digest:
        raise fail("the manifest does not match its hash")
    if any(raw[end:start]):
        raise fail(f"the padding at byte {end} is not zero")
    made_by, sections, profile = _manifest(bytes(raw[HEAD.size : end]), size - start, fail)
    first = sections[0]
    if blake3(raw[start : start + first.nbytes]).hexdigest() != first.blake3:
        raise fail("the section metadata does not match its hash")
    return Manifest(
        start,
        sections,
        profile,
        made_by,
        public if is_signed else b"",
        signature if is_signed else b"",
        bytes(raw[:SIGNED_BYTES]),
        bytes(raw[: HEAD.size]),
    )


def check_tensors(
    manifest: Manifest, tensors: Mapping[str, Tensor], data_offset: int, shown: str
) -> None:
    """Hold the sections to the model's own table: each tensor is one, and no more there are.

    *Raises*: ModelFileError.
    """
    wanted = [(METADATA, 0, data_offset)]
    wanted += sorted(
        ((TENSOR + name, t.offset, t.nbytes) for name, t in tensors.items()), key=lambda w: w[1]
    )
    found = [section[:3] for section in manifest.sections]
    for one, other in zip(wanted, found, strict=False):
        if one != other:
            raise ModelFileError(
                f"{shown}: the manifest's section {other[0][:80]!r} is not where the model has "
                f"{one[0][:80]!r}; get the file again"
            )
    if len(wanted) != len(found):
        raise ModelFileError(
            f"{shown}: the manifest has {len(found)} sections and the model {len(wanted)}; get "
            "the file again"
        )


class _Fail(Protocol):
    def __call__(self, why: str) -> ModelFileError: ...


def _manifest(
    raw: bytes, room: int, fail: _Fail
) -> tuple[str, tuple[Section, ...], Mapping[str, int | str | None]]:
    try:
        if not _is_flat(raw):
            raise ValueError("it is nested too deep")
        found = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise fail(f"the manifest is not proper JSON: {error}") from None
    if not isinstance(found, dict) or set(found) != {"made_by", "profile", "sections"}:
        raise fail("the manifest must have made_by, profile and sections")
    made_by, profile, listed = found["made_by"], found["profile"], found["sections"]
    if not isinstance(made_by, str) or len(made_by) > 256:
        raise fail("the manifest's made_by must be a short text")
    if not isinstance(profile, dict) or set(profile) != {"device-class", "ctx-size"}:
        raise fail("the manifest's profile must have device-class and ctx-size")
    device_class, n_ctx = profile["device-class"], profile["ctx-size"]
    if device_class is not None and not (isinstance(device_class, str) and len(device_class) < 128):
        raise fail("the profile's device-class must be a short text or null")
    if n_ctx is not None and not _is_whole(n_ctx, 1, _MAX_PROFILE):
        raise fail("the profile's ctx-size must be a whole number or null")
    if not isinstance(listed, list) or not listed:
        raise fail("the manifest's sections must be a list")
    sections: list[Section] = []
    at = 0
    for i, entry in enumerate(listed):
        where = f"section {i} of the manifest"
        if not isinstance(entry, dict) or set(entry) != {"name", "offset", "bytes", "blake3"}:
            raise fail(f"{where} must have name, offset, bytes and blake3")
        name, offset, nbytes, digest = (entry[k] for k in ("name", "offset", "bytes", "blake3"))
        if not isinstance(name, str) or (name == METADATA) != (i == 0):
            raise fail(f"{where} has a name that cannot be; the first alone is {METADATA}")
        if not _is_whole(offset, 0, room) or not _is_whole(nbytes, 1, room - offset):
            raise fail(f"{where} does not lie in the file")
        if not isinstance(digest, str) or len(digest) != 64:
            raise fail(f"{where} has no hash of 64 hex digits")
        if offset < at or (i == 0 and offset):
            raise fail(f"{where} begins before the one before it ends")
        sections.append(Section(name, offset, nbytes, digest))
        at = offset + nbytes
    if at != room:
        raise fail(f"{room - at} bytes follow the last section")
    return made_by, tuple(sections), profile


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_flat(raw: bytes) -> bool:
    """Whether brackets nest no deeper than those of a manifest do."""
    depth = 0
    in_text = escaped = False
    for c in raw:
        if in_text:
            in_text = escaped or c != 0x22
            escaped = not escaped and c == 0x5C
        elif c == 0x22:
            in_text = True
        elif c in b"[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return False
        elif c in b"]}":
            depth -= 1
    return True


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
