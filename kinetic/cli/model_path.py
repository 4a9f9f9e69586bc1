"""From what a user typed to a model file that exists: a path, or a name of an installed model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kinetic.cli.named import readable
from kinetic.errors import UsageError
from kinetic.ir.gguf_parts import part_name
from kinetic.models.found import (
    SUFFIXES,
    FoundModel,
    projector_for,
    size_of,
    stem_of,
)


def find_model(typed: str, suffixes: Sequence[str] = (".gguf",)) -> Path:
    """The model file a command line names; of a folder, those with the suffixes are proposed.

    Raises: as `locate`.
    """
    return readable(locate(typed, suffixes).path, "the model")


def locate(typed: str, suffixes: Sequence[str] = (".gguf",)) -> FoundModel:
    """The model a command line names, with its projector and a name to show.

    Raises: UsageError, with the nearest files or names there are, when there is none.
    """
    if not typed.strip():
        raise UsageError("the model's name is empty; give a file, as in kinetic run model.gguf.")
    path = Path(typed).expanduser()
    if path.is_file():
        return _file(path)
    if path.is_dir():
        names = _names(path, suffixes)
        kinds = " or ".join(suffixes)
        has = f"it holds {_listed(names)}" if names else f"there is no {kinds} file in it"
        raise UsageError(f"{typed} is a folder; name a file in it: {has}.")
    if path.exists():
        raise UsageError(f"{typed} is not a regular file; name a .gguf file.")
    return _installed(typed, path)


def _file(path: Path) -> FoundModel:
    """A model given by its path, with the other parts of a split one."""
    stem, part = stem_of(path.name), part_name(path.name)
    names = part.all() if part is not None else []
    parts = tuple(p for p in map(path.with_name, names) if p.is_file())
    size = sum(map(size_of, parts or (path,)))
    projector = projector_for(stem, path.parent)
    return FoundModel(stem, path, "", size, parts=parts, projector=projector)


def _installed(typed: str, path: Path) -> FoundModel:
    from kinetic.models.folders import all_models
    from kinetic.models.names import closest, find_named

    models = all_models()
    found = find_named(typed, models)
    if found is not None:
        return found
    if _looks_like_path(typed):
        raise UsageError(f"there is no file {typed}; {_hint(path)}.")
    near = closest(typed, models)
    hint = f"did you mean {' or '.join(near)}?" if near else "kinetic models lists those there are;"
    raise UsageError(f"there is no model {typed}; {hint} kinetic pull org/repo downloads one.")


def _looks_like_path(typed: str) -> bool:
    return typed.lower().endswith(SUFFIXES) or typed[0] in "./~\\" or "\\" in typed


def _hint(path: Path) -> str:
    from difflib import get_close_matches

    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    names = _names(folder, (".gguf",))
    near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    where = "this folder" if folder == Path() else str(folder)
    if near:
        return f"near it in {where}: {_listed(near)}"
    if names:
        return f"{where} holds {_listed(names)}"
    return "give the path of a .gguf file on this computer"


def _names(folder: Path, suffixes: Sequence[str]) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix.lower() in suffixes)
    except OSError:
        return []


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
