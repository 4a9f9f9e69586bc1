"""Whether Kinetic runs a model file, and what is missing when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.errors import KineticError, ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.ir.gguf import GGUFFile


def missing(gguf: GGUFFile) -> str:
    """What keeps Kinetic from running an open file, as a phrase; nothing when it runs."""
    from kinetic import families
    from kinetic.ir.quant import FORMATS

    architecture = gguf.get_str("general.architecture", "none")
    if architecture not in families.SUPPORTED:
        return f"architecture {architecture}"
    known = {fmt.name for fmt in FORMATS.values()}
    types = sorted({t.type_name for t in gguf.tensors.values()} - known)
    if types:
        return f"weight format {', '.join(types)}"
    tokenizer = missing_tokenizer(gguf)
    if tokenizer:
        return tokenizer
    try:
        families.build(gguf)
    except (UnsupportedError, ModelFileError) as error:
        return _without_path(str(error), gguf.path)
    return ""


def missing_tokenizer(gguf: GGUFFile) -> str:
    """What the file's tokenizer needs and Kinetic lacks."""
    from kinetic.cli.info import can_tokenize

    model = gguf.metadata.get("tokenizer.ggml.model")
    pre = gguf.metadata.get("tokenizer.ggml.pre")
    if not isinstance(model, str):
        return "a tokenizer (the file has none)"
    if can_tokenize(model, pre if isinstance(pre, str) else None):
        return ""
    return f"tokenizer {model}" + (f" with the rules {pre}" if isinstance(pre, str) else "")


def check(path: Path) -> tuple[str, str]:
    """(architecture, what is missing) of a model file; a file that cannot be read says why."""
    from kinetic.ir.gguf_split import open_model

    try:
        with open_model(path) as gguf:
            return gguf.get_str("general.architecture", "none"), missing(gguf)
    except KineticError as error:
        return "?", _without_path(str(error), str(path))


def _without_path(text: str, path: str) -> str:
    return text.removeprefix(f"{path}: ").rstrip(".")
