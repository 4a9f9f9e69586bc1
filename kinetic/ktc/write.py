"""A .ktc file from a GGUF file: the same metadata and weights, with a hash of every byte."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from blake3 import blake3

from kinetic._version import __version__
from kinetic.errors import UnsupportedError, UsageError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.ktc import HEAD, MAGIC, METADATA, PAGE, SIGNED, SIGNED_BYTES, TENSOR, VERSION

if TYPE_CHECKING:
    from nacl.signing import SigningKey

_BLOCK = 16 << 20
Progress = Callable[[int, int], None]


def write_ktc(
    source: Path,
    target: Path,
    *,
    key: SigningKey | None = None,
    device_class: str | None = None,
    n_ctx: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a model as .ktc, whole or not at all; memory stays bounded.

    *Raises*: ModelFileError for a damaged source, UnsupportedError for one part of a split
    model, UsageError where the target cannot be written.
    """
    with GGUFFile.open(source) as file:
        if file.manifest is not None:
            raise UsageError(f"{source} is a .ktc file already")
        if not file.tensors:
            raise UnsupportedError(f"{source} has no tensors, so there is nothing to run in it")
        spans = [(METADATA, 0, file.data_offset)]
        spans += sorted(
            ((TENSOR + name, t.offset, t.nbytes) for name, t in file.tensors.items()),
            key=lambda span: span[1],
        )
        total = sum(span[2] for span in spans)
        # Hashed first and written then: the manifest stands before what it hashes.
        done = 0
        sections = []
        for name, offset, nbytes in spans:
            digest = blake3()
            for at in range(offset, offset + nbytes, _BLOCK):
                digest.update(file.raw(at, min(_BLOCK, offset + nbytes - at)))
            done += nbytes
            if progress is not None:
                progress(done, 2 * total)
            sections.append(
                {"name": name, "offset": offset, "bytes": nbytes, "blake3": digest.hexdigest()}
            )
        manifest = json.dumps(
            {
                "made_by": f"Kinetic {__version__}",
                "profile": {"device-class": device_class, "ctx-size": n_ctx},
                "sections": sections,
            },
            separators=(",", ":"),
        ).encode("ascii")
        start = -(-(HEAD.size + len(manifest)) // PAGE) * PAGE
        end = start + spans[-1][1] + spans[-1][2]

        def body(out: IO[bytes]) -> None:
            out.write(_head(manifest, end, key) + manifest)
            written = 0
            for _, offset, nbytes in spans:
                out.write(bytes(start + offset - out.tell()))
                for at in range(offset, offset + nbytes, _BLOCK):
                    out.write(file.raw(at, min(_BLOCK, offset + nbytes - at)))
                written += nbytes
                if progress is not None:
                    progress(total + written, 2 * total)

        _write(target, body)


def sign_ktc(path: Path, key: SigningKey) -> None:
    """Sign a file, or sign it anew, in its head.

    *Raises*: ModelFileError for a file that is no good .ktc file, UsageError where it cannot be
    written.
    """
    with GGUFFile.open(path) as file:
        if file.manifest is None:
            raise UsageError(f"{path} is no .ktc file; kinetic ktc makes one of it")
        old = HEAD.unpack(file.manifest.head)
    head = _packed(old[2], old[3], old[4], key)
    try:
        with open(path, "r+b") as out:
            out.write(head)  # less than a block of any disk: written at once or not at all
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _head(manifest: bytes, file_size: int, key: SigningKey | None) -> bytes:
    return _packed(len(manifest), file_size, blake3(manifest).digest(), key)


def _packed(length: int, file_size: int, digest: bytes, key: SigningKey | None) -> bytes:
    flags, public = (0, bytes(32)) if key is None else (SIGNED, bytes(key.verify_key))
    fields = (MAGIC, VERSION, length, file_size, digest, flags, 0, public)
    bare = HEAD.pack(*fields, bytes(64), bytes(32))
    signature = bytes(64) if key is None else key.sign(bare[:SIGNED_BYTES]).signature
    before = HEAD.pack(*fields, signature, bytes(32))[:-32]
    return before + blake3(before).digest()


def _write(target: Path, body: Callable[[IO[bytes]], None]) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                body(out)
            mask = os.umask(0o077)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
