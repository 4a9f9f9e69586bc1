#!/usr/bin/env python3
"""Recurrent blocks: what a step spends in them, and how prompts scale with their length.

    python scripts/bench_recurrent.py MODEL.gguf [MODEL.gguf ...] [-t THREADS]

For one row and for a full step: the step's time and the shares of its kernels. Then prompt
tokens per second by length. Run it on a quiet machine: a kernel's time is a difference of two.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kinetic import settings
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import build
from kinetic.ir.cpu_abi import CONTINUE, FRESH, NOT_KEPT
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine
from kinetic.runtime.rows import Rows

KINDS = ("matmul", "expert_matmul", "attend", "norm", "glu")
"""Kernels told by the start of their names."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
REPEATS = 20


def main() -> None:
    """Print one table a model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-t", "--threads", type=int, default=2)
    options = parser.parse_args()
    for path in options.models:
        with GGUFFile.open(path) as file:
            graph, cache = build(file), settings.cache_dir() / "kernels"
            program = compile_graph(graph, cpu_target(), object_cache=cache)
            n_ctx = LENGTHS[-1] + 64
            pages = Engine.pages_for(n_ctx)
            cpu = CpuDevice(program, file, threads=options.threads, n_ctx=n_ctx, n_pages=pages)
            print(f"\n{path.name}: {graph.meta.arch}, {program.slot_bytes / 2**10:.0f} KiB a state")
            for count in (1, program.max_rows):
                print(step_line(cpu, count, graph.meta.n_vocab))
            print(prompt_line(Engine(cpu, n_ctx, pages), graph.meta.n_vocab))
            cpu.close()


def step_line(cpu: CpuDevice, count: int, n_vocab: int) -> str:
    """A step of so many rows: its time and the shares of its kinds of launches."""
    rng = np.random.default_rng(0)
    positions = np.arange(count, dtype=np.int32)
    table = np.arange(-(-count // 64), dtype=np.int32)
    rows = Rows(
        rng.integers(0, n_vocab, count).astype(np.int32),
        positions,
        positions.astype(np.int64),
        [table] * count,
        np.array([count - 1], np.int32),
        np.array([FRESH] + [CONTINUE] * (count - 1), np.int32),
        np.array([NOT_KEPT] * (count - 1) + [0], np.int32),
    )
    cpu.step(rows)
    shares: defaultdict[str, float] = defaultdict(float)
    before = 0.0
    for i, launch in enumerate(cpu.program.launches):
        # A kernel's time is what it adds to the launches before it.
        upto = best(partial(cpu.replay, 0, i + 1), REPEATS if count == 1 else 3)
        name = re.sub(r"_(\d|quantize|f\d|q\d|iq).*", "", launch.kernel)
        shares[next((kind for kind in KINDS if name.startswith(kind)), name)] += upto - before
        before = upto
    by_share = sorted(shares.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {100 * t / before:.0f}%" for kind, t in by_share[:9])
    return f"  {count:4d} rows: {1e3 * before:8.3f} ms; {parts}"


def prompt_line(engine: Engine, n_vocab: int) -> str:
    """Tokens per second of prompts by their length."""
    rng, found = np.random.default_rng(1), []
    for length in LENGTHS:
        sequence = engine.new_sequence()
        tokens = rng.integers(0, n_vocab, length).tolist()
        start = time.perf_counter()
        engine.prefill(sequence, tokens)
        found.append(f"{length}: {length / (time.perf_counter() - start):.0f}")
        sequence.close()
    return "  prompt tokens/s by length: " + ", ".join(found)


def best(run: Callable[[], None], repeats: int) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
