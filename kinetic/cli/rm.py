"""`kinetic rm`: deletes a model, after asking."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import printable, use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.models.found import FoundModel


def build_parser() -> CommandParser:
    """The options of `kinetic rm`."""
    parser = CommandParser(
        "rm",
        "kinetic rm [options] <model> ...",
        "deletes models or unfinished downloads from this computer.",
        notes="Models of Ollama and of Python packages are deleted by the programs that own them.",
    )
    parser.option("confirmation", "-y", "--yes", help="do not ask")
    return parser


def run(options: argparse.Namespace) -> int:
    """Delete each named model. Raises: UsageError, ModelFileError, UnsupportedError."""
    use_utf8()
    if not options.words:
        raise UsageError("name a model to delete; kinetic models lists them.")
    from kinetic.cli.table import gib
    from kinetic.models.folders import all_models
    from kinetic.models.found import size_of
    from kinetic.models.remove import files_to_remove, remove

    for typed in options.words:
        models = all_models()
        model = _find(typed, models)
        files = files_to_remove(model, models)
        total = sum(map(size_of, files))
        listed = "".join(f"  {printable(str(path))}\n" for path in files)
        sys.stderr.write(listed)
        if not options.yes and not _agreed(model.name, gib(total)):
            write_out(f"{printable(model.name)} was kept\n")
            return 1
        write_out(f"deleted {printable(model.name)}, {gib(remove(files))}\n")
    return 0


def _find(typed: str, models: list[FoundModel]) -> FoundModel:
    from kinetic.cli.model_path import locate
    from kinetic.models.found import SUFFIXES

    for model in models:  # unfinished ones too, which `locate` refuses
        if typed.lower() in map(str.lower, model.names) or typed == str(model.path):
            return model
    found = locate(typed)
    if found.path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{typed} is no model file; delete it with the system's own command.")
    same = [m for m in models if m.path.absolute() == found.path.absolute()]
    return same[0] if same else found


def _agreed(name: str, size: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"nobody is there to be asked; kinetic rm --yes {name} does not ask.")
    sys.stderr.write(f"delete {printable(name)} ({size})? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
