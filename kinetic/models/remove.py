"""Deleting a model, and what belongs to it alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.models.found import FoundModel


def files_to_remove(model: FoundModel, models: Sequence[FoundModel]) -> list[Path]:
    """The files that go with a model.

    A projector that other models have too stays. What another program keeps books about is
    that program's to delete, or its books would be wrong.

    *Raises*: UnsupportedError naming the command of the program that owns the model.
    """
    if model.source == "Ollama":
        raise UnsupportedError(f"{model.name} is Ollama's; delete it with ollama rm {model.name}.")
    if model.source == "package":
        raise UnsupportedError(
            f"{model.name} came with a Python package; delete it with pip uninstall."
        )
    files = [*model.files, *model.owned]
    projector = model.projector
    shared = any(m.projector == projector and m.path != model.path for m in models)
    if projector is not None and not shared:
        files.append(projector)
    return [path for path in files if path.exists() or path.is_symlink()]


def remove(files: Sequence[Path]) -> int:
    """Delete files and return how many bytes they had.

    The Hugging Face cache keeps bytes in a blob and a link to it in a snapshot; both go.

    *Raises*: ModelFileError for a file that the system does not let go.
    """
    freed = 0
    for path in files:
        try:
            blob = path.resolve() if path.is_symlink() else None
            freed += path.stat().st_size if path.exists() else 0
            path.unlink()
            if blob is not None and blob.parent.name == "blobs" and blob.exists():
                blob.unlink()
        except OSError as error:
            raise ModelFileError(
                f"cannot delete {path}: {error.strerror or error}; close programs that use it."
            ) from None
    return freed
