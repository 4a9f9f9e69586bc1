"""`kinetic can-run`: whether a repository's models would run here, before any is downloaded."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.cli.here import Here
    from kinetic.models.choice import RemoteModel
    from kinetic.models.hub import Hub, Repository


def build_parser() -> CommandParser:
    """The options of `kinetic can-run`."""
    parser = CommandParser(
        "can-run",
        "kinetic can-run [options] <org>/<repo>[:<quant>]",
        "shows which files of a repository would run here and roughly how fast.",
        notes="Reads the repository's list of files from the hub and nothing else. Exit code 0 "
        "when something of it runs here, 1 when nothing does.",
    )
    parser.option("output", "--json", help="print one JSON object")
    return parser


def run(options: argparse.Namespace) -> int:
    """Size one repository. Raises: UsageError, NetworkError."""
    use_utf8()
    if len(options.words) != 1:
        raise UsageError("name one repository, as in kinetic can-run ggml-org/gemma-3-1b-it-GGUF.")
    from kinetic.cli.pull import split_name
    from kinetic.models.hub import Hub, check_repo_name

    repo, quant = split_name(options.words[0])
    check_repo_name(repo)
    from kinetic.cli.here import look
    from kinetic.models.choice import models_in

    with Hub.from_environment() as hub:
        repository = hub.repository(repo)
        models = models_in(repository.files)
        if quant is not None:
            models = [m for m in models if m.quant.lower() == quant.lower()]
        if not models:
            return _no_gguf(hub, repository, quant, options.json)
    here = look()
    unknown = _unknown_architecture(repository)
    rows = [_row(model, repository, here, unknown) for model in models]
    any_runs = any(row["runs"] for row in rows)
    if options.json:
        told = {
            "repo": repo,
            "architecture": repository.architecture or None,
            "context_length": repository.context_length or None,
            "files": rows,
            "runs": any_runs,
        }
        write_out(json.dumps(told, indent=2) + "\n")
    else:
        write_out(_as_table(repository, rows))
    return 0 if any_runs else 1


def _unknown_architecture(repository: Repository) -> str:
    from kinetic.families import SUPPORTED

    name = repository.architecture
    return "" if not name or name in SUPPORTED else name


def _row(model: RemoteModel, repository: Repository, here: Here, unknown: str) -> dict[str, object]:
    from kinetic.models.cost import expected_speed

    why = ""
    if model.missing:
        why = "a part is missing in the repository"
    elif unknown:
        why = f"architecture {unknown} is not supported yet"
    elif not here.fits(model.size):
        why = f"larger than the {here.memory.total / 2**30:.1f} GiB of memory"
    speed = expected_speed(model.size, here.bandwidth)
    return {
        "quant": model.quant or model.stem,
        "size_bytes": model.size,
        "parts": len(model.files),
        "runs": not why,
        "why_not": why or None,
        "tokens_per_second": None if why else [round(v, 2) for v in speed],
    }


def _as_table(repository: Repository, rows: list[dict[str, object]]) -> str:
    from kinetic.cli.fit import speed_text
    from kinetic.cli.table import gib, table

    lines = []
    for row in rows:
        speed, size = row["tokens_per_second"], row["size_bytes"]
        assert isinstance(size, int)
        told = speed_text((speed[0], speed[1])) if isinstance(speed, list) else ""
        lines.append((str(row["quant"]), gib(size), _where(row), told))
    head = f"{repository.name}"
    if repository.architecture:
        head += f": {repository.architecture}"
    if repository.context_length:
        head += f", {repository.context_length} tokens of context"
    text = table(("FILE", "SIZE", "RUNS ON", "EXPECTED DECODE"), lines, right=(1,))
    best = [row for row in rows if row["runs"]]
    hint = f"\nkinetic pull {repository.name} downloads one.\n" if best else ""
    return f"{head}\n\n{text}{hint}"


def _where(row: dict[str, object]) -> str:
    return f"no: {row['why_not']}" if row["why_not"] else "CPU"


def _no_gguf(hub: Hub, repository: Repository, quant: str | None, as_json: bool) -> int:
    """Tell of conversions where a repository has no file for Kinetic."""
    if quant is not None:
        raise UsageError(f"{repository.name} has no {quant}; leave it out to see what it has.")
    found = hub.conversions_of(repository.name)
    if as_json:
        told = {"repo": repository.name, "files": [], "runs": False, "conversions": found}
        write_out(json.dumps(told, indent=2) + "\n")
        return 1
    text = f"{repository.name} has no GGUF file, which is what Kinetic runs.\n"
    if found:
        text += "Conversions of it, those downloaded most first:\n"
        text += "".join(f"  kinetic can-run {name}\n" for name in found)
    else:
        text += "The hub knows no conversion of it.\n"
    write_out(text)
    return 1
