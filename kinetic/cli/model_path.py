"""From what a user typed to a model file that exists."""

from __future__ import annotations

from pathlib import Path

from kinetic.errors import ModelFileError, UsageError


def find_model(typed: str) -> Path:
    """The model file a command line names.

    Raises: ModelFileError, with the nearest files there are, when there is none; UsageError
    for an empty name.
    """
    if not typed.strip():
        raise UsageError("the model's name is empty; give a file, as in kinetic run model.gguf.")
    path = Path(typed).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        names = _gguf_names(path)
        has = f"it holds {_listed(names)}" if names else "there is no .gguf file in it"
        raise ModelFileError(f"{typed} is a folder; name a model file: {has}.")
    if path.exists():
        raise ModelFileError(f"{typed} is not a regular file; name a .gguf file.")
    raise ModelFileError(f"there is no file {typed}; {_hint(path)}.")


def _hint(path: Path) -> str:
    from difflib import get_close_matches

    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    names = _gguf_names(folder)
    near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    where = "this folder" if folder == Path() else str(folder)
    if near:
        return f"near it in {where}: {_listed(near)}"
    if names:
        return f"{where} holds {_listed(names)}"
    return "give the path of a .gguf file on this computer"


def _gguf_names(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix.lower() == ".gguf")
    except OSError:
        return []


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
