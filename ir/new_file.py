"""A file that has its name only when it is complete.

Until then it is a hidden file beside it, which an error or Ctrl-C deletes; so nobody ever finds
half a file under the name, and what stood there before stays until the new one is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, Self

from kinetic.errors import KineticError
from kinetic.ir.gguf import display_path


class NewFile:
    """Bytes on their way to `path`; a context manager, and only `finish` gives the file its name.

    `nbytes` is what it will take, checked against the disk's free space first.

    *Raises* `KineticError` when the disk is too small, fills up or cannot be written.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(path.parent).free
            if free < nbytes:
                raise KineticError(
                    f"{display_path(os.fspath(path.parent))} has {free / 2**30:.2f} GiB free and "
                    f"the file takes {nbytes / 2**30:.2f}; free some space or write to another disk"
                )
        try:
            handle, name = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.name}.", suffix=".part"
            )
        except OSError as error:
            raise self._failed(error) from None
        self._temporary = Path(name)
        self._file: BinaryIO | None = os.fdopen(handle, "wb")

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from None

    def tell(self) -> int:
        """Bytes written so far."""
        assert self._file is not None
        return self._file.tell()

    def finish(self) -> None:
        """Give the complete file its name."""
        assert self._file is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(self._temporary, 0o666 & ~mask)
            os.replace(self._temporary, self.path)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> KineticError:
        what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        return KineticError(
            f"cannot write {display_path(os.fspath(self.path))}: {what}; nothing was kept"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            self._temporary.unlink()
