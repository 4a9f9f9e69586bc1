"""`kinetic` alone in a terminal: two or three models that run well here, and one key.

Nothing is downloaded, and no connection opened, before a model that is not here was picked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from kinetic._version import __version__
from kinetic.cli.terminal import LiveLine, printable, use_utf8

if TYPE_CHECKING:
    from kinetic.cli.here import Here

_LEAST_SPEED = 5.0
"""Tokens a second below which a model does not run well: slower than people read."""
_PROPOSALS = 3


class Proposal(NamedTuple):
    """A model to start with. `typed` runs it, `asked` downloads it when it is not here.

    *Units*: bytes, tokens a second.
    """

    name: str
    size: int
    speed: tuple[float, float]
    typed: str
    asked: str
    good_for: str


def run() -> int:
    """Propose models and start the picked one."""
    use_utf8()
    live = LiveLine(every=0.02)
    live.update("looking at this computer")
    from kinetic.cli.here import look
    from kinetic.machine.cpu import cpu_name

    here = look()
    proposals = propose(here)
    live.clear()
    gpus = ", ".join(gpu.name for gpu in here.gpus)
    _tell(f"Kinetic {__version__} on {cpu_name()}" + (f", {gpus}" if gpus else ""))
    _tell(
        f"{here.memory.available / 2**30:.1f} of {here.memory.total / 2**30:.1f} GiB of memory "
        f"free, read at {here.bandwidth / 1e9:.0f} GB/s\n"
    )
    if not proposals:
        _tell("No model fits the memory that is free; kinetic doctor says more.")
        return 1
    _list(proposals)
    picked = _pick(proposals)
    return 0 if picked is None else _start(picked)


def propose(here: Here) -> list[Proposal]:
    """Models on disk that run well, then known ones that would, the best first."""
    from kinetic.cli.fit import estimate
    from kinetic.models.catalog import CATALOG
    from kinetic.models.cost import expected_speed
    from kinetic.models.folders import all_models

    found = [model for model in all_models() if not model.unfinished]
    local = []
    for model in found:
        fit = estimate(model, here)
        if fit.runs and fit.speed is not None and fit.speed[0] >= _LEAST_SPEED:
            local.append(Proposal(model.name, fit.size, fit.speed, model.name, "", "on this disk"))
    local.sort(key=lambda p: -p.size)  # of those that are quick enough, the largest answers best
    have = {name.lower() for model in found for name in model.names}
    known = []
    for entry in CATALOG:
        speed = expected_speed(entry.per_token, here.bandwidth)
        room = here.fits(entry.size) and entry.size < here.memory.available
        if room and speed[0] >= _LEAST_SPEED and entry.name.lower() not in have:
            known.append(
                Proposal(entry.name, entry.size, speed, entry.name, entry.asked, entry.good_for)
            )
    known.reverse()
    return [*local[: _PROPOSALS - 1], *known][:_PROPOSALS]


def _list(proposals: list[Proposal]) -> None:
    from kinetic.cli.fit import speed_text
    from kinetic.cli.table import gib, table

    rows = [
        (f"{i}  {p.name}", gib(p.size), speed_text(p.speed), _note(p))
        for i, p in enumerate(proposals, 1)
    ]
    _tell(table(("   MODEL", "SIZE", "EXPECTED", ""), rows, right=(1,)))


def _note(proposal: Proposal) -> str:
    return f"download, {proposal.good_for}" if proposal.asked else proposal.good_for


def _pick(proposals: list[Proposal]) -> Proposal | None:
    from kinetic.cli.keys import read_key

    _tell(f"1-{len(proposals)} or Enter picks, q quits. Other commands: kinetic --help.")
    while True:
        key = read_key()
        if key in ("\r", "\n"):
            return proposals[0]
        if key in ("q", "Q", "\x1b", "\x04", ""):
            return None
        if key.isdigit() and 1 <= int(key) <= len(proposals):
            return proposals[int(key) - 1]


def _start(picked: Proposal) -> int:
    from kinetic.cli import COMMANDS, dispatch

    typed = picked.typed
    if picked.asked:
        from kinetic.cli.pull import pull

        typed = str(pull(picked.asked))
    if "chat" in COMMANDS:
        return dispatch(["chat", typed])
    _tell(f'kinetic run {typed} "Hello"')
    return 0


def _tell(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
