"""Receipts on disk."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kinetic.errors import ModelFileError, UsageError
from kinetic.receipts.canonical import MAX_BYTES, Json, parse
from kinetic.receipts.fields import check_fields
from kinetic.receipts.seal import Record, check_seals


def receipt_text(record: Mapping[str, Json]) -> str:
    """A receipt as people read it: indented, lists of numbers on one line each."""
    return _pretty(dict(record), "") + "\n"


def write_receipt(path: Path, record: Mapping[str, Json]) -> None:
    """Write a receipt, whole or not at all.

    *Raises*: UsageError where the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe
            path.write_text(receipt_text(record), "utf-8")
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(receipt_text(record))
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"the receipt {path} cannot be written: {error.strerror}") from None


def is_receipt(path: Path) -> bool:
    """Whether a file is a receipt, of whatever version, so that a new one may replace it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > MAX_BYTES:
            return False
        record = parse(path.read_bytes(), str(path))
    except (OSError, ValueError, ModelFileError):
        return False
    return "receipt" in record and "seal" in record


def read_receipt(path: Path) -> Record:
    """The receipt in a file, each field checked and compared with its seal.

    *Raises*: ModelFileError that names the field that is wrong.
    """
    try:
        # Opening a pipe would wait for a writer.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise ModelFileError(f"{path} is not a regular file; name a receipt's file")
        with open(path, "rb") as file:
            # Python sets aside as much memory as it is asked to read.
            data = file.read(min(MAX_BYTES, os.fstat(file.fileno()).st_size) + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"the receipt {path} cannot be read: {reason}") from None
    return receipt_of(data, str(path))


def receipt_of(data: bytes, where: str) -> Record:
    """A receipt from its bytes. *Raises*: ModelFileError that names the field that is wrong."""
    record = parse(data, where)
    check_fields(record, where)
    check_seals(record, where)
    return record


def _pretty(value: Json, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(k)}: {_pretty(v, inner)}" for k, v in value.items()]
    elif isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        rows = [inner + _pretty(v, inner) for v in value]
    else:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(rows) + f"\n{indent}{closing}"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
