#!/usr/bin/env python3
"""Kinetic's bench and llama.cpp's llama-bench on one file, in turns, as a markdown table.

    python3 scripts/bench_vs_llamacpp.py model.gguf --llama-dir llama.cpp/build/bin -t 2 -r 5

Each round starts each program once, and every other round the other one first. The best of the
rounds counts (what disturbs a run only slows it); the median shows how quiet the machine was.
"""

from __future__ import annotations

import shlex
import sys

from _bench import (
    arguments,
    best_and_median,
    kinetic_program,
    llama_program,
    machine,
    peer_json,
    table,
)
from _setup import say, stop

TESTS = ("pp512", "tg128")
Speeds = tuple[float, float]


def main() -> int:
    """Measure, and print the table."""
    options = arguments(__doc__, default_repetitions=5).parse_args()
    threads, model = str(options.threads), str(options.model)
    where, ours, peers = machine(), [], []
    kinetic = [
        *(kinetic_program(options.kinetic), "bench", "-m", model, "--json", "-r", "1"),
        *("-t", threads, "--device", "cpu", *shlex.split(options.kinetic_args)),
    ]
    llama = [
        *(llama_program("llama-bench", options.llama_dir), "-m", model, "-o", "json", "-r", "1"),
        *("-p", "512", "-n", "128", "-t", threads, "-ngl", "0", "-dev", "none", "-fa", "1"),
        *shlex.split(options.llama_args),
    ]
    build = ""
    for number in range(options.repetitions):
        say(f"round {number + 1} of {options.repetitions}")
        for turn in ("kinetic", "llama") if number % 2 == 0 else ("llama", "kinetic"):
            if turn == "kinetic":
                ours.append(_kinetic_speeds(peer_json(kinetic)))
            else:
                build, speeds = _llama_speeds(peer_json(llama))
                peers.append(speeds)

    rows = [_row(test, [s[i] for s in ours], [s[i] for s in peers]) for i, test in enumerate(TESTS)]
    head = ("tok/s", "Kinetic", "median", f"llama.cpp {build}", "median", "ratio", "of medians")
    print(f"Machine: {where}\n")
    print(f"File: {options.model.name}; {threads} threads; best of {options.repetitions}.\n")
    print(table(head, rows))
    print(f"\n    {shlex.join(kinetic)}\n    {shlex.join(llama)}")
    return 0


def _row(test: str, ours: list[float], peers: list[float]) -> tuple[str, ...]:
    best, median = best_and_median(ours, "high")
    peer_best, peer_median = best_and_median(peers, "high")
    return (
        test,
        *(f"{best:.1f}", f"{median:.1f}", f"{peer_best:.1f}", f"{peer_median:.1f}"),
        *(f"{best / peer_best:.2f}x", f"{median / peer_median:.2f}x"),
    )


def _kinetic_speeds(found: object) -> Speeds:
    if not isinstance(found, dict):
        stop("kinetic bench did not print a JSON object.")
    return found["prefill_tokens_per_second"], found["decode_tokens_per_second"]


def _llama_speeds(found: object) -> tuple[str, Speeds]:
    if not isinstance(found, list):
        stop("llama-bench did not print a JSON list.")
    prefill = next(max(test["samples_ts"]) for test in found if test["n_gen"] == 0)
    decode = next(max(test["samples_ts"]) for test in found if test["n_prompt"] == 0)
    return found[0]["build_commit"], (prefill, decode)


if __name__ == "__main__":
    sys.exit(main())
