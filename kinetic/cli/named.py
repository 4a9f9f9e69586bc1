"""Files that a command line names: reading one, and the place of a new one.

A path that cannot be read or written, and a text that is none (a grammar, a template), make the
command line wrong: exit code 2. A file that was read and is damaged makes the command fail: 1.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from kinetic.cli.terminal import printable
from kinetic.errors import UsageError

_ADVICE = {
    errno.ENOENT: "check its name",
    errno.EACCES: "check its permissions, or name another",
    errno.EPERM: "check its permissions, or name another",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.ENOTDIR: "a part of its path is no folder; check its name",
    errno.ENOSPC: "free some of the disk, or name a file on another",
    errno.EROFS: "name a file on a disk that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "its links lead in a circle; name the file itself",
    errno.EMFILE: "close other programs, or raise the limit with ulimit -n",
    errno.EIO: "the disk may be failing; try a copy on another",
}


def reason(error: OSError | ValueError) -> str:
    """What the system said, and what to do about it."""
    if not isinstance(error, OSError):  # a NUL in a path
        return f"{error}; give another name"
    said = error.strerror or str(error)
    return f"{said}; {_ADVICE.get(error.errno or 0, 'check the path, or name another')}"


def read_bytes(file: str | Path, what: str, most: int | None = None) -> bytes:
    """A file that an option names, a pipe included.

    *Raises*: UsageError where it cannot be read, or holds more than `most` bytes.
    """
    path = Path(file).expanduser()
    try:
        with path.open("rb") as stream:
            raw = stream.read() if most is None else stream.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{_named(what, path)} cannot be read: {reason(error)}.") from None
    if most is not None and len(raw) > most:
        raise UsageError(f"{_named(what, path)} has more than the allowed {most} bytes.")
    return raw


def read_text(
    file: str | Path, what: str, most: int | None = None, encoding: str = "utf-8-sig"
) -> str:
    """The same as text. *Raises*: UsageError, for other bytes than UTF-8 too."""
    raw = read_bytes(file, what, most)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{_named(what, file)} is not UTF-8 text at byte {error.start}; convert it first."
        ) from None


def readable(file: str | Path, what: str) -> Path:
    """The path of a regular file that can be opened.

    *Raises*: UsageError where it is none, before a load that may take long.
    """
    path = Path(file).expanduser()
    try:
        # Opening a pipe would wait for a writer.
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise UsageError(f"{_named(what, path)} is a folder; name a file in it.")
        if not stat.S_ISREG(kind):
            raise UsageError(f"{_named(what, path)} is no regular file; name another.")
        path.open("rb").close()
    except (OSError, ValueError) as error:
        raise UsageError(f"{_named(what, path)} cannot be read: {reason(error)}.") from None
    return path


def new_file(
    file: str | Path,
    what: str,
    *,
    sources: Iterable[Path] = (),
    ours: Callable[[Path], bool] | None = None,
    forced: bool = False,
    force: str | None = None,
) -> Path:
    """The place of a file that is going to be written.

    A file that is there is replaced where it is one of the same kind (`ours`) or empty, or where
    the option `force` was given; never one of the `sources`, which the command reads.

    *Raises*: UsageError where nothing can be written, or something would be lost.
    """
    path = Path(file).expanduser()
    shown = _named(what, path)
    try:
        if path.is_dir():
            raise UsageError(f"{shown} is a folder; name a file in it.")
        if not path.parent.is_dir():
            raise UsageError(
                f"{shown} is no place for a file: there is no folder "
                f"{printable(str(path.parent))}; make it, or name a file in one there is."
            )
        if not path.exists():
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise UsageError(
                    f"{shown} cannot be written: its folder is not writable; name another."
                )
            return path
        for source in sources:
            if source.exists() and path.samefile(source):
                raise UsageError(
                    f"{shown} is {printable(source.name)} itself, which is read; give another name."
                )
        # Devices and pipes keep nothing that could be lost.
        if path.is_file() and not forced and path.stat().st_size and not (ours and ours(path)):
            way = "give another name" if force is None else f"{force} replaces it"
            raise UsageError(f"{shown} exists; {way}.")
        if not os.access(path, os.W_OK):
            raise UsageError(f"{shown} cannot be written: it is read-only; name another.")
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown} cannot be written: {reason(error)}.") from None
    return path


def model_parts(path: Path) -> list[Path]:
    """The files of a model, those of a split one included."""
    from kinetic.ir.gguf_parts import part_name

    part = part_name(path.name)
    return [path] if part is None else [path.with_name(name) for name in part.all()]


def _named(what: str, path: str | Path) -> str:
    return f"{what} {printable(str(path))}" if what else printable(str(path))
