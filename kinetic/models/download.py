"""From a choice of files to models in a folder: space, transfer, hash, then the final name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kinetic.errors import ModelFileError, NetworkError
from kinetic.models.choice import Choice, RemoteFile
from kinetic.models.hub import Hub, Repository
from kinetic.models.state import State, piece_for, read_state
from kinetic.models.transfer import CONNECTIONS, Progress, Transfer, digest_of

KEEP_FREE = 2 << 30
"""Bytes of disk that a download leaves free."""


@dataclass(frozen=True)
class Target:
    """A remote file and where it goes."""

    file: RemoteFile
    path: Path

    @property
    def part(self) -> Path:
        """Where its bytes are until they are all there and right."""
        return self.path.with_name(self.path.name + ".part")


@dataclass(frozen=True)
class Settings:
    """How to fetch. *Units*: `pause` seconds, `piece` bytes (None: what suits the file)."""

    connections: int = CONNECTIONS
    pause: float = 1.0
    piece: int | None = None


def targets(choice: Choice, folder: Path) -> list[Target]:
    """Where each file of a choice goes: plain names, the projector with its model's."""
    made = [Target(file, folder / _safe_name(file)) for file in choice.model.files]
    if choice.projector is not None:
        name = f"mmproj-{choice.model.stem}.gguf"
        made.append(Target(choice.projector, folder / _checked(name)))
    return made


def bytes_to_fetch(wanted: list[Target]) -> int:
    """What still has to come over the network."""
    total = 0
    for target in wanted:
        if target.path.exists():
            continue
        state = read_state(target.part)
        total += target.file.size - (state.done_bytes if state is not None else 0)
    return max(total, 0)


def check_disk(wanted: list[Target], folder: Path) -> None:
    """Refuse a download that would fill the disk.

    *Raises*: ModelFileError with what is free and what is needed.
    """
    needed = bytes_to_fetch(wanted)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    if needed and free - needed < KEEP_FREE:
        raise ModelFileError(
            f"the download takes {needed / 2**30:.2f} GiB and {there} has {free / 2**30:.2f} GiB "
            f"free, of which {KEEP_FREE >> 30} GiB stay free; delete something (kinetic rm), "
            "choose a smaller file, or another disk with --dir."
        )


def fetch_all(
    hub: Hub,
    repository: Repository,
    wanted: list[Target],
    asked: str,
    progress: Progress,
    settings: Settings | None = None,
) -> None:
    """Download every file that is not there yet; each takes its name only once it is right.

    *Raises*: NetworkError, and ModelFileError where a different file has a name already.
    """
    for target in wanted:
        target.path.parent.mkdir(parents=True, exist_ok=True)
        fetch(hub, repository, target, asked, progress, settings or Settings())


def fetch(
    hub: Hub,
    repository: Repository,
    target: Target,
    asked: str,
    progress: Progress,
    settings: Settings,
) -> None:
    """Download one file."""
    if target.path.exists():
        _check_existing(target, progress)
        return
    file, part = target.file, target.part
    if file.size < 1:
        raise NetworkError(f"{hub.host} lists {file.path} as empty; repeat the command later.")
    with _alone(part):
        if target.path.exists():  # another pull finished it while this one waited
            return
        state = State(
            *(repository.name, repository.revision, file.path, asked, file.size),
            sha256=file.sha256 or file.blob_id,
            piece=settings.piece or piece_for(file.size),
        )
        before = read_state(part)
        if before is not None and part.exists() and before.is_of(state):
            before.revision = state.revision
            state = before
        url = hub.file_url(repository.name, repository.revision, file.path)
        transfer = Transfer(
            *(hub, url, state, part, progress),
            connections=settings.connections,
            pause=settings.pause,
        )
        transfer.run()
        _verify(transfer, target, progress)
        with part.open("r+b") as written:
            os.fsync(written.fileno())
        os.replace(part, target.path)
        State.path_for(part).unlink(missing_ok=True)


def _verify(transfer: Transfer, target: Target, progress: Progress) -> None:
    """Check the file's hash, and look for the piece that is wrong where it is not right.

    *Raises*: NetworkError with the file, the expected hash and the one it has.
    """
    file, part = target.file, target.part
    if not _expected(file):
        return

    def right() -> bool:
        return _digest(file, part, progress) == _expected(file)

    if right() or transfer.repair(right):
        return
    got = _digest(file, part, progress)
    part.unlink(missing_ok=True)
    State.path_for(part).unlink(missing_ok=True)
    raise NetworkError(
        f"{file.name} does not match its published hash, also after every piece was fetched "
        f"again: expected {_expected(file)}, got {got}; it was thrown away, try again later."
    )


def _expected(file: RemoteFile) -> str:
    return file.sha256 or file.blob_id


def _digest(file: RemoteFile, path: Path, progress: Progress) -> str:
    return digest_of(path, "sha256" if file.sha256 else "git", progress)


def _check_existing(target: Target, progress: Progress) -> None:
    """*Raises*: ModelFileError where a file of that name has other bytes."""
    same = target.path.stat().st_size == target.file.size
    if same and _expected(target.file):
        same = _digest(target.file, target.path, progress) == _expected(target.file)
    if not same:
        raise ModelFileError(
            f"{target.path} is another file than the one on the hub; delete it with kinetic rm "
            f"{target.path.name}, or download to another folder with --dir."
        )


def _safe_name(file: RemoteFile) -> str:
    return _checked(file.name)


def _checked(name: str) -> str:
    """A name from the hub, if it can be a plain file name on every system.

    *Raises*: NetworkError.
    """
    odd = set('<>:"/\\|?*')
    if not name or name[0] in ".-" or any(c in odd or not c.isprintable() for c in name):
        raise NetworkError(f"the hub names a file {name!r}, which cannot be a file's name here.")
    return name


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Keep other downloads of the same file away; the system lets go when the process ends.

    *Raises*: ModelFileError while another process downloads it.
    """
    lock = part.with_name(part.name + ".lock")
    with lock.open("a+b") as file:
        try:
            _lock(file.fileno())
        except OSError:
            raise ModelFileError(
                f"another kinetic pull is downloading {part.stem}; wait until it is done."
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
