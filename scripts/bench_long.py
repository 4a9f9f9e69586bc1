#!/usr/bin/env python3
"""Long contexts: prompts of 512 and 4,096 tokens, and decoding behind 100 and 4,000, beside
llama.cpp's llama-bench on the same file.

    python3 scripts/bench_long.py model.gguf --llama-dir llama.cpp/build/bin -t 2 -r 3

Rounds of both take turns; the best of the rounds counts.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import arguments, llama_program, machine, peer_json, table
from _setup import PYTHON, ensure_venv, need_python, say, stop

try:
    from kinetic.api import Model
except ModuleNotFoundError:  # not the project's own Python yet
    if TYPE_CHECKING:
        raise
    need_python()
    ensure_venv()
    if Path(sys.executable) == PYTHON:
        raise
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

SHORT, LONG = 512, 4096
NEAR, FAR = 100, 4000
ANSWER = 32
"""Tokens decoded at each depth."""
Speeds = dict[str, float]
"""Tokens per second by test."""


def main() -> int:
    """Measure, and print the table."""
    options = arguments(__doc__, default_repetitions=3).parse_args()
    bench = llama_program("llama-bench", options.llama_dir)
    llama = [bench, "-m", str(options.model), "-o", "json", "-r", "1", "-t", str(options.threads)]
    llama += ["-ngl", "0", "-dev", "none", "-fa", "1", *shlex.split(options.llama_args)]
    where, ours, peers = machine(), [], []
    model = Model.load(options.model, threads=options.threads, ctx_size=LONG + 64)
    turns: list[Callable[[], None]] = [
        lambda: ours.append(model.scheduler.call(lambda: kinetic_speeds(model))),
        lambda: peers.append(llama_speeds(llama)),
    ]
    for number in range(options.repetitions):
        say(f"round {number + 1} of {options.repetitions}")
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    model.close()
    best = {test: max(speeds[test] for speeds in ours) for test in ours[0]}
    peer = {test: max(speeds[test] for speeds in peers) for test in best}
    rows: list[tuple[str, ...]] = [
        (test, f"{best[test]:.1f}", f"{peer[test]:.1f}", f"{best[test] / peer[test]:.2f}x")
        for test in best
    ]
    for name, far, near in (
        ("long prompt against short", f"pp{LONG}", f"pp{SHORT}"),
        ("far decoding against near", f"tg @ {FAR}", f"tg @ {NEAR}"),
    ):
        shares = (f"{found[far] / found[near]:.2f}" for found in (best, peer))
        rows.append((name, *shares, ""))
    print(f"Machine: {where}\n")
    print(f"File: {options.model.name}; {options.threads} threads; best of {len(ours)}.\n")
    print(table(("tok/s", "Kinetic", "llama.cpp", "ratio"), rows))
    return 0


def kinetic_speeds(model: Model) -> Speeds:
    """One run of each test; on the engine's thread."""
    engine, found = model.engine, {}
    tokens = [(i * 7919) % model.graph.meta.n_vocab for i in range(LONG)]
    for count in (SHORT, LONG):
        sequence = engine.new_sequence()
        started = time.perf_counter()
        engine.prefill(sequence, tokens[:count])
        found[f"pp{count}"] = count / (time.perf_counter() - started)
        sequence.close()
    for depth in (NEAR, FAR):
        sequence = engine.new_sequence()
        token = int(engine.prefill(sequence, tokens[:depth]).argmax())
        started = time.perf_counter()
        for _ in range(ANSWER):
            token = int(engine.decode(sequence, token).argmax())
        found[f"tg @ {depth}"] = ANSWER / (time.perf_counter() - started)
        sequence.close()
    return found


def llama_speeds(command: list[str]) -> Speeds:
    """The same tests by llama-bench."""
    found: Speeds = {}
    for tests_of in (
        ["-p", f"{SHORT},{LONG}", "-n", "0"],
        ["-p", "0", "-n", str(ANSWER), "-d", f"{NEAR},{FAR}"],
    ):
        tests = peer_json([*command, *tests_of])
        if not isinstance(tests, list):
            stop("llama-bench did not print a JSON list.")
        for test in tests:
            name = f"tg @ {test['n_depth']}" if test["n_gen"] else f"pp{test['n_prompt']}"
            found[name] = max(test["samples_ts"])
    return found


if __name__ == "__main__":
    sys.exit(main())
