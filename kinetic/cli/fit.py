"""`kinetic fit`: where each model would run here and roughly how fast."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic.cli.parser import CommandParser, whole
from kinetic.cli.terminal import use_utf8, write_out
from kinetic.errors import KineticError, UsageError

if TYPE_CHECKING:
    from kinetic.cli.here import Here
    from kinetic.models.found import FoundModel


class Fit(NamedTuple):
    """How one model fits. *Units*: bytes, tokens a second."""

    name: str
    size: int
    where: str
    speed: tuple[float, float] | None
    runs: bool


def build_parser() -> CommandParser:
    """The options of `kinetic fit`."""
    parser = CommandParser(
        "fit",
        "kinetic fit [options] [<model> | <folder>]",
        "shows where each model would run and roughly how fast.",
        notes="The speed is estimated from the bytes a token reads and the measured read speed of "
        "memory; kinetic bench measures it. With one model named, the exit code is 1 when it "
        "does not run here.",
    )
    parser.option(
        "runtime options",
        "-t",
        "--threads",
        metavar="N",
        type=whole(1, 4096),
        help="CPU threads [default: all]",
    )
    parser.option("output", "--json", help="print one JSON list")
    return parser


def run(options: argparse.Namespace) -> int:
    """Estimate every model, or the named one or folder. Raises: UsageError, ModelFileError."""
    use_utf8()
    if len(options.words) > 1:
        raise UsageError("kinetic fit takes one model or folder, or none for all models.")
    models = _wanted(options.words[0] if options.words else None)
    from kinetic.cli.here import look

    here = look(options.threads)
    fits = [estimate(model, here) for model in models]
    if options.json:
        write_out(json.dumps([_fields(fit) for fit in fits], indent=2) + "\n")
    elif fits:
        write_out(_as_table(fits))
    else:
        write_out("There are no models here; kinetic pull org/repo downloads one.\n")
    one = bool(options.words) and not Path(options.words[0]).expanduser().is_dir()
    return 1 if one and not fits[0].runs else 0


def _wanted(typed: str | None) -> list[FoundModel]:
    from kinetic.cli.model_path import locate
    from kinetic.models.folders import OWN, all_models, in_folder

    if typed is None:
        return [model for model in all_models() if not model.unfinished]
    folder = Path(typed).expanduser()
    if folder.is_dir():
        return [model for model in in_folder(folder, OWN) if not model.unfinished]
    return [locate(typed)]


def estimate(model: FoundModel, here: Here) -> Fit:
    """How one model would run here, from its header."""
    from kinetic.cli.runs import missing
    from kinetic.ir.gguf_split import open_model
    from kinetic.models.cost import cost_of, expected_speed

    try:
        with open_model(model.path) as gguf:
            lacks, cost, size = missing(gguf), cost_of(gguf), gguf.size
    except KineticError as error:
        return Fit(model.name, model.size, f"no: {error}", None, False)
    if lacks:
        return Fit(model.name, size, f"no: needs {lacks}", None, False)
    if not here.fits(cost.weights):
        short = f"no: {here.memory.total / 2**30:.1f} GiB of memory is too little"
        return Fit(model.name, size, short, None, False)
    return Fit(model.name, size, "CPU", expected_speed(cost.per_token, here.bandwidth), True)


def speed_text(speed: tuple[float, float]) -> str:
    """A range of speeds, as exact as it is."""
    low, high = speed
    if high < 10:
        return f"{low:.1f}-{high:.1f} t/s"
    return f"{low:.0f}-{high:.0f} t/s"


def _as_table(fits: list[Fit]) -> str:
    from kinetic.cli.table import gib, table

    rows = [
        (fit.name, gib(fit.size), fit.where, speed_text(fit.speed) if fit.speed else "")
        for fit in fits
    ]
    return table(("MODEL", "SIZE", "RUNS ON", "EXPECTED DECODE"), rows, right=(1,))


def _fields(fit: Fit) -> dict[str, object]:
    return {
        "name": fit.name,
        "size_bytes": fit.size,
        "runs": fit.runs,
        "where": fit.where,
        "tokens_per_second": [round(v, 2) for v in fit.speed] if fit.speed else None,
    }
