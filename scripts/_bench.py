"""What the comparison scripts share: finding the programs, the machine, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from _setup import KINETIC, stop


def arguments(doc: str | None, default_repetitions: int) -> argparse.ArgumentParser:
    """The options they have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the GGUF file both engines run")
    parser.add_argument("--llama-dir", help="folder with llama.cpp's programs [default: PATH]")
    parser.add_argument("--kinetic", help="the kinetic command [default: the one in .venv]")
    parser.add_argument("-t", "--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("-r", "--repetitions", type=int, default=default_repetitions)
    parser.add_argument("--llama-args", default="", help="more arguments for llama.cpp")
    parser.add_argument("--kinetic-args", default="", help="more arguments for kinetic")
    return parser


def kinetic_program(given: str | None) -> str:
    """The kinetic command to measure."""
    program = shutil.which(given or (str(KINETIC) if KINETIC.exists() else "kinetic"))
    if program is None:
        stop("there is no kinetic command; run scripts/try.py once, or give --kinetic.")
    return program


def llama_program(name: str, folder: str | None) -> str:
    """One of llama.cpp's programs."""
    program = shutil.which(name, path=folder)
    if program is None:
        stop(f"there is no {name} in {folder or 'PATH'}; build llama.cpp and give --llama-dir.")
    return program


def machine() -> str:
    """Processor, CPUs this process may use, memory, system, and how busy it was before."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        rows = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
        name = names[0] if names else name
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [name, f"{usable} CPUs"]
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        parts.append(f"{memory:.0f} GiB")
    parts.append(f"{platform.system()} {platform.release()}")
    if hasattr(os, "getloadavg"):
        parts.append(f"load {os.getloadavg()[0]:.2f} at the start")
    return ", ".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def best_and_median(samples: Sequence[float], better: str) -> tuple[float, float]:
    """The best sample, `better` being `high` or `low`, and the median."""
    return (max if better == "high" else min)(samples), statistics.median(samples)


def peer_json(command: list[str]) -> object:
    """What a program that prints JSON found; its failure ends the script."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        stop(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)
