"""`kinetic models`: what is installed, by the names that every command takes."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import LiveLine, use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.models.found import FoundModel


def build_parser() -> CommandParser:
    """The options of `kinetic models`."""
    parser = CommandParser(
        "models",
        "kinetic models [options]",
        "lists the models on this computer and whether Kinetic runs them.",
        notes="Looks in Kinetic's own folder, Ollama's store, LM Studio's folder, the Hugging Face "
        "cache, llama.cpp's cache and installed Python packages; only headers are read.",
    )
    parser.option("output", "--json", help="print one JSON list")
    return parser


def run(options: argparse.Namespace) -> int:
    """List every model. Raises: UsageError for words."""
    use_utf8()
    if options.words:
        raise UsageError("kinetic models takes no name; kinetic info MODEL shows one model.")
    from kinetic.cli.runs import check
    from kinetic.models.folders import all_models

    models = all_models()
    live = LiveLine(enabled=not options.json)
    rows = []
    for model in models:
        live.update(f"reading {model.name}")
        rows.append((model, *(("", "") if model.unfinished else check(model.path))))
    live.clear()
    if options.json:
        write_out(json.dumps([_fields(*row) for row in rows], indent=2) + "\n")
    elif rows:
        write_out(_as_table(rows))
    else:
        from kinetic.settings import models_dir

        write_out(
            "There are no models yet. kinetic pull org/repo downloads one, as in\n"
            "  kinetic pull ggml-org/gemma-3-1b-it-GGUF\n"
            f"and files put into {models_dir()} are found by their names.\n"
        )
    return 0


def _as_table(rows: list[tuple[FoundModel, str, str]]) -> str:
    from kinetic.cli.table import gib, table

    head = ("NAME", "SIZE", "QUANT", "ARCH", "RUNS ON KINETIC", "FROM")
    lines = []
    for model, architecture, lacks in rows:
        runs = f"no: {lacks}" if lacks else "yes"
        if model.unfinished:
            runs = f"unfinished: {model.unfinished}"
        lines.append((model.name, gib(model.size), model.quant, architecture, runs, model.source))
    return table(head, lines, right=(1,))


def _fields(model: FoundModel, architecture: str, lacks: str) -> dict[str, object]:
    return {
        "name": model.name,
        "other_names": list(model.other_names),
        "path": str(model.path),
        "files": [str(path) for path in model.files],
        "projector": str(model.projector) if model.projector else None,
        "size_bytes": model.size,
        "quant": model.quant or None,
        "architecture": architecture or None,
        "runs": not lacks and not model.unfinished,
        "missing": lacks or None,
        "unfinished": model.unfinished or None,
        "from": model.source,
    }
