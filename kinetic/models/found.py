"""A model that lies on this computer, and what file names tell about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kinetic.ir.gguf_parts import PartName, part_name

SUFFIXES = (".gguf", ".ktc")
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])"
    r"((?:UD-)?(?:I?Q[1-8](?:_[0-9A-Z]{1,3})*|TQ[12]_0|B?F16|F32|MXFP4(?:_MOE)?|NVFP4))"
    r"(?![A-Za-z0-9])",
    re.I,
)


@dataclass(frozen=True)
class FoundModel:
    """One model: what to type for it, where it lies, and which program put it there.

    *Units*: `size` is bytes, of all parts, without the projector.
    """

    name: str
    path: Path
    """The file, or the first part of a split model."""
    source: str
    size: int
    parts: tuple[Path, ...] = ()
    """All files of a split model, in order; empty for a model in one file."""
    other_names: tuple[str, ...] = ()
    projector: Path | None = None
    unfinished: str = ""
    """What is missing of a download, empty for a model that is whole."""
    repo: str = ""
    """`org/repo` where the place tells it."""
    owned: tuple[Path, ...] = field(default=(), compare=False)
    """More files that belong to it alone, such as the state of a download."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the model itself, without its projector."""
        return self.parts or (self.path,)

    @property
    def quant(self) -> str:
        """The quantization that the file's name tells, or nothing."""
        return quant_in(self.path.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it can be called."""
        return (self.name, *self.other_names)


def quant_in(file_name: str) -> str:
    """The quantization in a file's name, such as `Q4_K_M`; empty where there is none."""
    found = _QUANT.findall(file_name)
    return str(found[-1]).upper() if found else ""


def is_projector(file_name: str) -> bool:
    """Whether a file is a vision projector, by the name that converters give it."""
    return "mmproj" in file_name.lower()


def stem_of(file_name: str) -> str:
    """A file's name without its extension and without the number of its part."""
    part = part_name(file_name)
    if part is not None:
        return part.stem
    return file_name[: -len(Path(file_name).suffix)] if Path(file_name).suffix else file_name


@dataclass(frozen=True)
class ModelFiles:
    """Files of one folder that make one model.

    *Units*: `size` is bytes.
    """

    stem: str
    paths: tuple[Path, ...]
    size: int
    missing: tuple[str, ...] = ()
    """Names of parts that are not there."""


def group_files(paths: Iterable[Path]) -> list[ModelFiles]:
    """Model files by model: parts of a split one together, projectors left out."""
    singles: list[ModelFiles] = []
    split: dict[tuple[Path, str, int], tuple[PartName, list[Path]]] = {}
    for path in sorted(paths):
        if path.suffix.lower() not in SUFFIXES or is_projector(path.name):
            continue
        part = part_name(path.name)
        if part is None:
            singles.append(ModelFiles(stem_of(path.name), (path,), size_of(path)))
        else:
            key = (path.parent, part.stem, part.of)
            split.setdefault(key, (part, []))[1].append(path)
    for part, there in split.values():
        names = {p.name for p in there}
        missing = tuple(n for n in part.all() if n not in names)
        size = sum(map(size_of, there))
        singles.append(ModelFiles(part.stem, tuple(there), size, missing))
    return sorted(singles, key=lambda group: group.paths)


def projector_for(stem: str, folder: Path) -> Path | None:
    """The projector that lies beside a model, None where there is none.

    Kinetic's own folder holds many models, so there it carries the model's name; programs that
    keep a folder for each repository call it just mmproj.
    """
    named = folder / f"mmproj-{stem}.gguf"
    if named.is_file():
        return named
    try:
        others = [p for p in folder.iterdir() if p.suffix.lower() == ".gguf"]
    except OSError:
        return None
    projectors = sorted(p for p in others if is_projector(p.name))
    models = group_files(others)
    repos = {re.sub(_QUANT, "", group.stem).strip("-_.").lower() for group in models}
    return projectors[0] if projectors and len(repos) == 1 else None


def size_of(path: Path) -> int:
    """A file's size, 0 where it cannot be read. *Units*: bytes."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
