"""Whether a .ktc file is what its manifest says: every byte of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kinetic.errors import ModelFileError
from kinetic.ir.gguf import GGUFFile, display_path
from kinetic.receipts.signing import signature_is_good

_BLOCK = 16 << 20


@dataclass(frozen=True)
class Checked:
    """What a good file says of itself. *Units*: bytes."""

    made_by: str
    sections: int
    nbytes: int
    public_key: str | None
    device_class: str | None
    n_ctx: int | None


def verify_ktc(path: Path, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Recompute every hash, look at the padding, check the signature.

    *Raises*: ModelFileError naming the first section that does not match, or for a file that is
    not .ktc; UnsupportedError for a signature without PyNaCl.
    """
    with GGUFFile.open(path) as file:
        manifest = file.manifest
        if manifest is None:
            raise ModelFileError(
                f"{display_path(str(path))} is no .ktc file, and only those hold hashes to verify; "
                "kinetic ktc makes one of it"
            )
        total, at = file.size, 0
        for section in manifest.sections:
            if any(bytes(file.raw(at, section.offset - at))):
                raise ModelFileError(
                    f"{path}: the padding before section {section.name} is not zero; "
                    "get the file again"
                )
            digest, at = blake3(), section.offset + section.nbytes
            for block in range(section.offset, at, _BLOCK):
                digest.update(file.raw(block, min(_BLOCK, at - block)))
                if progress is not None:
                    progress(min(block + _BLOCK, at), total)
            if digest.hexdigest() != section.blake3:
                raise ModelFileError(
                    f"{path}: section {section.name} does not match its hash; get the file again"
                )
        public = manifest.public_key.hex() or None
        if public is not None and not signature_is_good(
            manifest.signed, public, manifest.signature.hex()
        ):
            raise ModelFileError(
                f"{path}: the signature is not valid: the head was changed after signing"
            )
        device_class, n_ctx = manifest.profile["device-class"], manifest.profile["ctx-size"]
        return Checked(
            manifest.made_by,
            len(manifest.sections),
            manifest.start + total,
            public,
            None if device_class is None else str(device_class),
            None if n_ctx is None else int(n_ctx),
        )
