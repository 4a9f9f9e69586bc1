"""A GGUF model in several files, presented as one.

    model-00001-of-00003.gguf    metadata, some tensors
    model-00002-of-00003.gguf    tensors only
    model-00003-of-00003.gguf

Each part is a GGUF file of its own, with the keys `split.no` (from 0), `split.count` and
`split.tensors.count` (of all parts together). The first holds the model's metadata.

*Source*: `llama-gguf-split`, which writes them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from kinetic.errors import ModelFileError
from kinetic.ir.gguf import GGUFFile, TensorInfo, display_path, printable
from kinetic.ir.gguf_parts import part_name


def open_model(path: str | os.PathLike[str], *, in_memory: bool = False) -> GGUFFile:
    """Open a model file, or all files of a split model when `path` is any one of them.

    *Raises*: ModelFileError for a damaged file, and where a part is missing or belongs to
    another model.
    """
    file = GGUFFile.open(path, allow_split=True, in_memory=in_memory)
    if file.split_count <= 1:
        return file
    file.close()
    return SplitGGUF(path, in_memory=in_memory)


class SplitGGUF(GGUFFile):
    """The parts of a split model as one file: metadata of the first, tensors of all.

    A tensor's `offset` counts from the start of its own part; `data` finds the part.
    """

    def __init__(self, path: str | os.PathLike[str], *, in_memory: bool = False) -> None:
        self.parts: list[GGUFFile] = []
        self._part_of: dict[str, GGUFFile] = {}
        paths = _part_paths(Path(path))
        super().__init__(paths[0], allow_split=True, in_memory=in_memory)
        try:
            self.parts = [
                GGUFFile.open(p, allow_split=True, in_memory=in_memory) for p in paths[1:]
            ]
            self._join(paths)
        except BaseException:
            self.close()
            raise

    def _join(self, paths: list[Path]) -> None:
        tensors: dict[str, TensorInfo] = {}
        for i, part in enumerate([self, *self.parts]):
            _check_part(part, i, len(paths))
            for name, info in part.tensors.items():
                if name in tensors:
                    raise ModelFileError(
                        f"{display_path(part.path)}: tensor {printable(name)} is in an earlier "
                        "part already; the parts belong to different models, download them again"
                    )
                tensors[name] = info
                self._part_of[name] = part
        said = self.get_int("split.tensors.count", len(tensors))
        if said != len(tensors):
            raise ModelFileError(
                f"{display_path(self.path)}: the model has {said} tensors and its {len(paths)} "
                f"parts hold {len(tensors)}; download the parts again"
            )
        self.tensors = tensors
        self.size += sum(part.size for part in self.parts)

    def _owner(self, name: str) -> GGUFFile | None:
        part = self._part_of.get(name)
        return None if part is self or name in self._replaced else part

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as a view of the part it lies in."""
        part = self._owner(name)
        return super().data(name) if part is None else part.data(name)

    def advise_dontneed(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Let the system drop pages of a tensor from memory."""
        part = self._owner(name)
        if part is None:
            super().advise_dontneed(name, start, stop)
        else:
            part.advise_dontneed(name, start, stop)

    def release(self, name: str) -> None:
        """Let go of a tensor that nobody will read again."""
        part = self._owner(name)
        if part is None:
            super().release(name)
        else:
            part.release(name)

    def identity(self) -> str:
        """What tells these files from others: the identities of all parts."""
        digest = blake3()
        for own in [super().identity(), *(part.identity() for part in self.parts)]:
            digest.update(own.encode())
        return digest.hexdigest()

    def close(self) -> None:
        """Unmap all parts."""
        for part in self.parts:
            part.close()
        super().close()


def _part_paths(path: Path) -> list[Path]:
    """Where all parts lie, the first first.

    *Raises*: ModelFileError naming the parts that are missing.
    """
    name = part_name(path.name)
    if name is None:
        raise ModelFileError(
            f"{display_path(str(path))} is one part of a split model but is not named like one; "
            "name the parts model-00001-of-00003.gguf and so on, as they were downloaded"
        )
    paths = [path.with_name(part) for part in name.all()]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
        raise ModelFileError(
            f"{display_path(str(path))} is part {name.no} of {name.of} of a split model and "
            f"{display_path(listed)} is missing in the same folder; download all parts"
        )
    return paths


def _check_part(part: GGUFFile, index: int, count: int) -> None:
    """Refuse a part that its own keys say is another one."""
    no, of = part.get_int("split.no", 0), part.split_count
    if (no, of) != (index, count):
        raise ModelFileError(
            f"{display_path(part.path)} says that it is part {no + 1} of {of}, but is named "
            f"part {index + 1} of {count}; download it again or give it its name back"
        )
