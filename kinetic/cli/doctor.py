"""`kinetic doctor`: what this computer is, and what keeps models from running well on it."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import TYPE_CHECKING, NamedTuple

from kinetic._version import __version__
from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import printable, use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.cli.here import Here
    from kinetic.machine.gpu import Gpu

_LOW_DISK = 10 << 30
_LOW_MEMORY = 4 << 30


class Report(NamedTuple):
    """Everything on the screen: labelled lines, then what to fix."""

    lines: list[tuple[str, str]]
    to_fix: list[str]


def build_parser() -> CommandParser:
    """The options of `kinetic doctor`."""
    parser = CommandParser(
        "doctor",
        "kinetic doctor [options]",
        "checks the CPU, memory, GPUs, drivers and disk, and says what to fix.",
    )
    parser.option("output", "--json", help="print one JSON object")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the report. Raises: UsageError for words."""
    use_utf8()
    if options.words:
        raise UsageError("kinetic doctor takes no name.")
    report = examine()
    if options.json:
        lines = [{"what": what, "found": found} for what, found in report.lines]
        fields = {"kinetic": __version__, "lines": lines, "to_fix": report.to_fix}
        write_out(json.dumps(fields, indent=2) + "\n")
        return 0
    text = f"Kinetic {__version__}\n"
    text += "".join(f"  {what:<8} {printable(found)}\n" for what, found in report.lines)
    if report.to_fix:
        text += "\nTo fix:\n" + "".join(f"  - {printable(line)}\n" for line in report.to_fix)
    else:
        text += "\nNothing to fix.\n"
    write_out(text)
    return 0


def examine() -> Report:
    """Look at everything once."""
    from kinetic.cli.here import look
    from kinetic.machine.cpu import FEATURES, cpu_features, cpu_name, cpu_threads, system_name

    here, features = look(), cpu_features()
    lines, to_fix = [("system", system_name())], []
    has = ", ".join(f"{name.upper()} {'yes' if features[name] else 'no'}" for name in FEATURES)
    more = ", AVX-512 VNNI yes" if features["avx512vnni"] else ""
    lines.append(("cpu", f"{cpu_name()}, {cpu_threads()} threads, {has}{more}"))
    if not features["avx2"]:
        to_fix.append("this CPU has no AVX2: models run on the slow scalar kernels")
    lines.append(("memory", _memory_line(here)))
    if here.memory.available < _LOW_MEMORY:
        to_fix.append("under 4 GiB of memory is free: close other programs before large models")
    lines += _gpu_lines(here)
    lines.append(("models", _models_line()))
    disk, low = _disk_line()
    lines.append(("disk", disk))
    if low:
        to_fix.append("under 10 GiB of disk is free where models are kept")
    return Report(lines, to_fix)


def _memory_line(here: Here) -> str:
    total, available = here.memory
    return (
        f"{total / 2**30:.1f} GiB, {available / 2**30:.1f} GiB available, reads at "
        f"{here.bandwidth / 1e9:.0f} GB/s (measured, {here.threads} threads)"
    )


def _gpu_lines(here: Here) -> list[tuple[str, str]]:
    from kinetic.cli.here import usable_apis

    lines = []
    for probe in here.probes:
        for gpu in probe.gpus:
            lines.append(("gpu", gpu_text(gpu)))
        if probe.reason:
            lines.append(("gpu", f"none through {probe.api}: {probe.reason}"))
    apis = usable_apis()
    if here.gpus and not any(gpu.api in apis for gpu in here.gpus):
        lines.append(("", "this version runs models on the CPU only"))
    return lines


def gpu_text(gpu: Gpu) -> str:
    """One GPU in a line."""
    free = f"{gpu.free / 2**30:.1f} of " if gpu.free else ""
    size = f"{free}{gpu.total / 2**30:.1f} GiB" + (" free" if gpu.free else "")
    speed = f", {gpu.bandwidth / 1e9:.0f} GB/s nominal" if gpu.bandwidth else ""
    software = " (computes on the CPU; not used)" if gpu.software else ""
    return f"{gpu.name} via {gpu.api}: {size}{speed}; {gpu.driver}{software}"


def _models_line() -> str:
    from kinetic.cli.runs import check
    from kinetic.models.folders import all_models

    models = all_models()
    whole = [model for model in models if not model.unfinished]
    running = sum(1 for model in whole if not check(model.path)[1])
    unfinished = len(models) - len(whole)
    more = f", {unfinished} unfinished" if unfinished else ""
    return f"{len(whole)} found, {running} that Kinetic runs{more} (`kinetic models` lists them)"


def _disk_line() -> tuple[str, bool]:
    from kinetic.settings import models_dir

    folder = models_dir()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    return f"{free / 2**30:.1f} GiB free for {folder}", free < _LOW_DISK
