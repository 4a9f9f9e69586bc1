"""Which file of a repository to take, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kinetic.errors import ModelFileError
from kinetic.ir.gguf_parts import part_name
from kinetic.models.found import is_projector, quant_in, stem_of

PREFERRED = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
"""Quantizations that are taken when none is named, from small to large."""
CONTEXT_ROOM = 1.15
"""A model's file and room for a context beside it, as a share of the file."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. *Units*: `size` is bytes.

    `sha256` is empty where the hub publishes none; `blob_id` is git's SHA-1 then.
    """

    path: str
    size: int
    sha256: str = ""
    blob_id: str = ""

    @property
    def name(self) -> str:
        """Its name without folders."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class RemoteModel:
    """One model of a repository: a file, or all parts of a split one."""

    stem: str
    quant: str
    files: tuple[RemoteFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Budget:
    """How large a model may be, and what sets that bound. *Units*: bytes."""

    nbytes: int
    of: str
    """As in "of half the free memory"."""


@dataclass(frozen=True)
class Choice:
    """What will be downloaded; `why` is a sentence for the person who asked."""

    model: RemoteModel
    projector: RemoteFile | None
    why: str

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All files, the projector last."""
        return self.model.files + ((self.projector,) if self.projector else ())


def models_in(files: Sequence[RemoteFile]) -> list[RemoteModel]:
    """The GGUF models of a repository, small ones first."""
    singles: list[RemoteModel] = []
    split: dict[tuple[str, int], list[RemoteFile]] = {}
    for file in files:
        if not file.name.lower().endswith(".gguf") or is_projector(file.name):
            continue
        part = part_name(file.name)
        if part is None:
            singles.append(RemoteModel(stem_of(file.name), quant_in(file.name), (file,)))
        else:
            folder = PurePosixPath(file.path).parent.as_posix()
            split.setdefault((f"{folder}/{part.stem}", part.of), []).append(file)
    for parts in split.values():
        parts.sort(key=lambda file: file.name)
        first = part_name(parts[0].name)
        assert first is not None  # only such names are put there
        there = {file.name for file in parts}
        missing = tuple(name for name in first.all() if name not in there)
        singles.append(RemoteModel(first.stem, quant_in(first.stem), tuple(parts), missing))
    return sorted(singles, key=lambda model: (model.size, model.stem))


def choose(
    repo: str,
    files: Sequence[RemoteFile],
    *,
    quant: str | None,
    file: str | None,
    projector: bool,
    budget: Budget,
) -> Choice:
    """The model to download from a repository.

    *Raises*: ModelFileError that lists what there is, when the wanted one is not there.
    """
    models = models_in(files)
    if not models:
        raise ModelFileError(
            f"{repo} has no GGUF file; kinetic can-run {repo} looks for conversions of it."
        )
    if file is not None:
        model, why = _by_file(repo, models, file), "as named by --file"
    elif quant is not None:
        model, why = _by_quant(repo, models, quant), f"as named by :{quant}"
    else:
        model, why = _by_budget(models, budget)
    if model.missing:
        raise ModelFileError(
            f"{repo} lacks {model.missing[0]}, a part of {model.stem}; choose another file of it."
        )
    return Choice(model, _projector(files) if projector else None, why)


def _by_file(repo: str, models: Sequence[RemoteModel], wanted: str) -> RemoteModel:
    for model in models:
        if any(wanted in (f.path, f.name) for f in model.files):
            return model
    raise ModelFileError(f"{repo} has no file {wanted}; it has {_listed(models)}.")


def _by_quant(repo: str, models: Sequence[RemoteModel], wanted: str) -> RemoteModel:
    low = wanted.lower()
    same = [m for m in models if m.quant.lower() == low]
    # A tag that is not a quantization may still be the end of one file's name.
    same = same or [m for m in models if m.stem.lower().endswith(low)]
    if len(same) == 1:
        return same[0]
    if same:
        raise ModelFileError(
            f"{repo} has several {wanted} files; name one with --file: {_listed(same)}."
        )
    raise ModelFileError(f"{repo} has no {wanted}; it has {_listed(models)}.")


def _by_budget(models: Sequence[RemoteModel], budget: Budget) -> tuple[RemoteModel, str]:
    """The largest of the preferred quantizations that fits, Q4_K_M at least."""
    by_quant: dict[str, RemoteModel] = {}
    for model in models:
        if not model.missing:
            by_quant.setdefault(model.quant, model)
    preferred = [by_quant[q] for q in PREFERRED if q in by_quant]
    room = f"{budget.nbytes / 2**30:.1f} GiB of {budget.of}"
    if preferred:
        fitting = [m for m in preferred if m.size * CONTEXT_ROOM <= budget.nbytes]
        if fitting:
            best = max(fitting, key=lambda m: m.size)
            return best, f"the largest of {', '.join(PREFERRED)} that fits {room}"
        smallest = preferred[0]
        return smallest, f"larger than {room}, but smaller ones lose much of the quality"
    fitting = [m for m in models if m.size * CONTEXT_ROOM <= budget.nbytes]
    best = fitting[-1] if fitting else models[0]
    told = f"the largest file that fits {room}" if fitting else f"the smallest, larger than {room}"
    return best, f"{told}; it has none of {', '.join(PREFERRED)}"


def _projector(files: Sequence[RemoteFile]) -> RemoteFile | None:
    """The repository's projector: F16 before others, which quantize what is small anyway."""
    found = [f for f in files if f.name.lower().endswith(".gguf") and is_projector(f.name)]
    order = {"F16": 0, "BF16": 1, "Q8_0": 2, "F32": 3}
    return min(found, key=lambda f: (order.get(quant_in(f.name), 4), f.path), default=None)


def _listed(models: Sequence[RemoteModel]) -> str:
    names = [model.quant or model.stem for model in models]
    if len(set(names)) < len(names):
        names = [model.files[0].name for model in models]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
