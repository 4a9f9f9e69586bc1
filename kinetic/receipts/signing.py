"""Ed25519 signatures, and the files that keys lie in."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

_HEX = re.compile(rb"[0-9a-fA-F]{64}")


def load_key(path: Path) -> SigningKey:
    """The secret key of a file: 32 bytes, or 64 hex digits with white space around.

    A file that others can read is warned about on stderr.
    *Raises*: UsageError for a file that holds no key, UnsupportedError without PyNaCl.
    """
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"--sign-key {path} is no regular file; name a key's file")
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(1025)
    except OSError as error:
        raise UsageError(f"--sign-key {path} cannot be read: {error.strerror}") from None
    if len(raw) != 32:
        text = raw.strip()
        if not _HEX.fullmatch(text):
            raise UsageError(
                f"--sign-key {path} holds no key: it must be 32 bytes or 64 hex digits, as "
                "`openssl rand -hex 32` prints them"
            )
        raw = bytes.fromhex(text.decode("ascii"))
    if os.name == "posix" and mode & 0o077:
        print(
            f"kinetic: other users of this computer can read the key {path}; run chmod 600 {path}",
            file=sys.stderr,
        )
    return _nacl().SigningKey(raw)


def sign_bytes(data: bytes, key: SigningKey) -> tuple[str, str]:
    """The public key and the signature, both in hex."""
    return bytes(key.verify_key).hex(), key.sign(data).signature.hex()


def signature_is_good(data: bytes, public_key: str, signature: str) -> bool:
    """Whether the signature over the data was made with that key. *Raises*: UnsupportedError."""
    nacl = _nacl()
    try:
        nacl.VerifyKey(bytes.fromhex(public_key)).verify(data, bytes.fromhex(signature))
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "nacl" or isinstance(error, ValueError):
            return False
        raise
    return True


def _nacl():  # type: ignore[no-untyped-def]
    try:
        from nacl import signing
    except ImportError:
        raise UnsupportedError(
            "signatures need the package pynacl; install it with pip install pynacl"
        ) from None
    return signing
