#!/usr/bin/env python3
"""From starting the process to the first token, and peak memory: Kinetic and llama-completion.

    python3 scripts/bench_start.py model.gguf --llama-dir llama.cpp/build/bin -t 2 -r 5

Both continue the same raw prompt by one greedy token, in turns, after one run each that is not
counted and that fills the page cache and Kinetic's object cache. `first` is the time to the first
byte of the answer, `wall` to the end of the process; peak memory is the system's count for the
process, mapped pages of the model included.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from typing import NamedTuple

from _bench import arguments, best_and_median, kinetic_program, llama_program, machine, table
from _setup import say, stop

PROMPT = "The capital of France is"


class Sample(NamedTuple):
    """One start. Units: seconds, bytes."""

    first: float
    wall: float
    peak: float


def main() -> int:
    """Measure, and print the table."""
    if not hasattr(os, "wait4"):
        stop("this script needs wait4, which Windows does not have.")
    options = arguments(__doc__, default_repetitions=5).parse_args()
    common = ["-m", str(options.model), "-t", str(options.threads), "-n", "1", "--temp", "0"]
    where = machine()
    commands = {
        "Kinetic": [
            *(kinetic_program(options.kinetic), "run", *common, "--raw", "-p", PROMPT),
            *("--device", "cpu", *shlex.split(options.kinetic_args)),
        ],
        "llama.cpp": [
            *(llama_program("llama-completion", options.llama_dir), *common, "-p", PROMPT),
            *("-no-cnv", "--no-display-prompt", "-ngl", "0", "-dev", "none"),
            *shlex.split(options.llama_args),
        ],
    }
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for number in range(options.repetitions + 1):
        say(f"round {number} of {options.repetitions}" if number else "a round to warm the caches")
        for name in list(commands) if number % 2 else list(reversed(commands)):
            sample = _start(commands[name])
            if number:
                samples[name].append(sample)

    head = ("best of " + str(options.repetitions), *commands, "ratio")
    rows = [_row(field, *samples.values()) for field in Sample._fields]
    print(f"Machine: {where}\n")
    print(f"File: {options.model.name}, {options.model.stat().st_size / 2**20:.0f} MiB.\n")
    print(table(head, rows))
    print("".join(f"\n    {shlex.join(command)}" for command in commands.values()))
    return 0


def _row(field: str, ours: list[Sample], peers: list[Sample]) -> tuple[str, ...]:
    mine, _ = best_and_median([getattr(sample, field) for sample in ours], "low")
    theirs, _ = best_and_median([getattr(sample, field) for sample in peers], "low")
    unit = (lambda v: f"{v / 2**20:.0f} MiB") if field == "peak" else (lambda v: f"{v:.2f} s")
    return (field, unit(mine), unit(theirs), f"{mine / theirs:.2f}x")


def _start(command: list[str]) -> Sample:
    """Run one process to its end and account for it."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None  # Popen was asked for a pipe
        first_byte = os.read(process.stdout.fileno(), 1)
        first = time.perf_counter() - started
        while first_byte and os.read(process.stdout.fileno(), 65536):
            pass
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        stop(f"this failed with {process.returncode}: {shlex.join(command)}")
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return Sample(first, wall, usage.ru_maxrss * kilobyte)


if __name__ == "__main__":
    sys.exit(main())
