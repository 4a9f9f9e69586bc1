#!/usr/bin/env python3
"""Every weight format's product alone: GB/s and GMAC/s beside what the machine can do.

    python3 scripts/bench_kernels.py                                   # all formats, one thread
    python3 scripts/bench_kernels.py -t 2 --svg docs/img/roofline.svg
    python3 scripts/bench_kernels.py --formats Q4_K,Q8_0 --rows 1 --ggml-dir llama.cpp/build/bin

The kernels are the ones that models run, compiled, repacked and launched the same way. With
few rows a case walks copies of its matrix, 256 MiB in all, so that weights come from memory
as they do in a model. `repack` is the load: bytes of the file a second and thread, the new
memory's first touch included. ggml's column is its one-row `vec_dot` over the same bytes, one
thread. Runs of the cases of a format take turns, and the best of -r counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import machine, table
from _setup import PYTHON, ensure_venv, need_python, say, stop

try:
    import numpy as np
    from _ggml import Ggml
    from _limits import Limits, measure
    from _roofline import Point, svg

    from kinetic import settings
    from kinetic.codegen.pipeline import compile_graph
    from kinetic.codegen.targets.llvm_x86 import CpuTarget, cpu_target
    from kinetic.ir.build import Builder
    from kinetic.ir.graph import Graph, Meta
    from kinetic.ir.quant import FORMATS
    from kinetic.ir.quant.base import BlockFormat, Format
    from kinetic.runtime.devices.cpu import CpuDevice
    from kinetic.runtime.rows import Rows
except ModuleNotFoundError:  # not the project's own Python yet
    if TYPE_CHECKING:
        raise
    need_python()
    ensure_venv()
    if Path(sys.executable) == PYTHON:
        raise
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

SHAPES = "4864x896,896x4864"
ROWS = "1,4,64,512"
_MEMORY = 256 << 20
"""Bytes of weights that a case with few rows walks: more than any cache."""
_WORK = 2e9
"""Multiply-adds of a case with many rows."""
_FEW = 4


@dataclass(frozen=True)
class _Info:
    """What a device asks of a tensor."""

    shape: tuple[int, ...]
    type_id: int


@dataclass
class _Source:
    """A model file that is one matrix under many names."""

    tensors: dict[str, _Info] = field(default_factory=dict)
    bytes: dict[str, np.ndarray] = field(default_factory=dict)

    def data(self, name: str) -> np.ndarray:
        return self.bytes[name]

    def advise_dontneed(self, name: str, start: int = 0, stop: int | None = None) -> None:
        pass

    def release(self, name: str) -> None:
        pass


class Case:
    """A format, a shape and a number of rows, ready to run."""

    def __init__(
        self, fmt: Format, shape: tuple[int, int], rows: int, target: CpuTarget, threads: int
    ):
        outs, columns = shape
        raw = _weights(fmt, outs, columns)
        self.rows, self.raw_bytes = rows, raw.nbytes
        self.copies = max(1, int(_WORK / (rows * outs * columns)))
        if rows <= _FEW:
            self.copies = -(-_MEMORY // raw.nbytes)
        self.macs = self.copies * rows * outs * columns
        source, graph = _model(fmt, shape, raw, rows, self.copies)
        folder = settings.cache_dir() / "kernels"
        program = compile_graph(graph, target, max_rows=rows, max_outputs=rows, object_cache=folder)
        self.weight_bytes = sum(w.nbytes for w in program.packed)
        program.link()  # compiled before the load is timed
        started = time.perf_counter()
        self.device = CpuDevice(program, source, threads=threads, n_ctx=rows, n_pages=8)
        self.load_seconds = time.perf_counter() - started
        kernels = [launch.kernel.startswith("matmul_") for launch in program.launches]
        self._first = kernels.index(True)
        if not all(kernels[self._first :]):
            stop("the products of a case are not side by side in its plan.")
        self._last = len(kernels)
        ids = np.arange(rows, dtype=np.int32)
        pages = np.arange(8, dtype=np.int32)
        nothing = np.zeros(0, np.int32)
        self.device.step(Rows(ids, ids, ids.astype(np.int64), [pages] * rows, nothing))
        self.best = float("inf")

    def run(self) -> None:
        """One more run."""
        started = time.perf_counter()
        self.device.replay(self._first, self._last)
        self.best = min(self.best, time.perf_counter() - started)


def main() -> int:
    """Measure, and print the table."""
    options = _arguments().parse_args()
    target, threads = cpu_target(options.device_class), options.threads
    where = machine()
    try:
        ggml = Ggml(options.ggml_dir, target) if options.ggml_dir else None
    except OSError as error:
        stop(f"{error}; give the folder of llama.cpp's libraries as --ggml-dir.")
    head: tuple[str, ...] = ("format", "shape", "rows", "GB/s", "of read", "GMAC/s", "of peak")
    head += ("repack GB/s",) + (("ggml vec_dot GMAC/s", "ratio") if ggml else ())
    say("the machine's limits")
    limits = measure(target, threads, options.repetitions)
    lines: list[tuple[str, ...]] = []
    points: list[Point] = []
    for name in options.formats.split(",") if options.formats else sorted(FORMATS):
        if name not in FORMATS:
            stop(f"there is no format {name}; there are {', '.join(sorted(FORMATS))}.")
        for text in options.shapes.split(","):
            shape = _legal(FORMATS[name], text)
            say(f"{name} {shape[0]}x{shape[1]}")
            rows = [int(r) for r in options.rows.split(",")]
            cases = [Case(FORMATS[name], shape, r, target, threads) for r in rows]
            peer = _interleave(cases, FORMATS[name], shape, ggml, options.repetitions)
            for case in cases:
                lines.append(_row(name, shape, case, limits, peer if case.rows == 1 else None))
                lines[-1] += ("",) * (len(head) - len(lines[-1]))
                intensity, rate = case.macs / case.weight_bytes, case.macs / case.best
                label = f"{name} {shape[0]}x{shape[1]}, {case.rows} rows"
                points.append(Point(label, f"{case.rows} rows", intensity, rate))
                case.device.close()
    print(f"Machine: {where}\n")
    print(
        f"{target.device_class} ({target.dot}), {threads} threads; memory reads "
        f"{limits.read / 1e9:.1f} GB/s, f32 multiply and add {limits.floats / 1e9:.0f} GMAC/s, "
        f"integer dot {limits.dots / 1e9:.0f} GMAC/s; best of {options.repetitions}.\n"
    )
    print(table(head, lines))
    if options.svg:
        roofs = {"dot": limits.dots, "f32": limits.floats}
        title = f"Products on {threads} threads, {target.device_class} ({target.dot})"
        options.svg.parent.mkdir(parents=True, exist_ok=True)
        options.svg.write_text(svg(title, points, limits.read, roofs), encoding="utf-8")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", help="comma-separated [default: all]")
    parser.add_argument("--shapes", default=SHAPES, help=f"outputs x inputs [default: {SHAPES}]")
    parser.add_argument("--rows", default=ROWS, help=f"rows of activations [default: {ROWS}]")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--device-class", help="[default: the best this CPU has]")
    parser.add_argument("--ggml-dir", type=Path, help="folder with llama.cpp's libggml-cpu")
    parser.add_argument("--svg", type=Path, help="also write a roofline plot here")
    return parser


def _interleave(
    cases: list[Case], fmt: Format, shape: tuple[int, int], ggml: Ggml | None, repetitions: int
) -> float | None:
    """Run all in turns; ggml's best multiply-adds a second, if it has a kernel."""
    peer: list[float] = []
    raw = None
    if ggml is not None and any(case.rows == 1 for case in cases):
        matrix = _weights(fmt, *shape)
        copies = -(-_MEMORY // matrix.nbytes)
        raw = np.tile(matrix.reshape(shape[0], -1), (copies, 1))
    for _ in range(repetitions):
        for case in cases:
            case.run()
        if ggml is not None and raw is not None:
            seconds = ggml.dots(fmt.ggml_id, raw, shape[1])
            if seconds is not None:
                peer.append(len(raw) * shape[1] / seconds)
    return max(peer, default=None)


def _row(
    name: str, shape: tuple[int, int], case: Case, limits: Limits, peer: float | None
) -> tuple[str, ...]:
    read, rate = case.weight_bytes / case.best, case.macs / case.best
    peak = limits.dots if isinstance(FORMATS[name], BlockFormat) else limits.floats
    load = case.copies * case.raw_bytes / case.load_seconds / case.device.threads
    cells = [
        *(name, f"{shape[0]}x{shape[1]}", str(case.rows)),
        *(f"{read / 1e9:.1f}", f"{100 * read / limits.read:.0f}%"),
        *(f"{rate / 1e9:.1f}", f"{100 * rate / peak:.0f}%"),
        f"{load / 1e9:.1f}" if case.rows == 1 else "",
    ]
    if peer is not None:
        cells += [f"{peer / 1e9:.1f}", f"{rate / peer:.2f}x"]
    return tuple(cells)


def _legal(fmt: Format, text: str) -> tuple[int, int]:
    """A shape whose rows are whole blocks: the columns are rounded up."""
    try:
        outs, columns = (int(part) for part in text.split("x"))
    except ValueError:
        stop(f"{text!r} is no shape; write outputs x inputs, as in 4864x896.")
    block = fmt.values if isinstance(fmt, BlockFormat) else 8
    return outs, -(-columns // block) * block


def _weights(fmt: Format, outs: int, columns: int) -> np.ndarray:
    """Bytes of a matrix. Every byte is one that makes a finite scale wherever it falls."""
    rng = np.random.default_rng(0)
    if not isinstance(fmt, BlockFormat):
        words = rng.standard_normal(outs * columns).astype(np.float32)
        if fmt.name == "F32":
            return words.view(np.uint8)
        if fmt.name == "F16":
            return words.astype(np.float16).view(np.uint8)
        return (words.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return rng.integers(100, 120, outs * columns // fmt.values * fmt.nbytes, np.uint8)


def _model(
    fmt: Format, shape: tuple[int, int], raw: np.ndarray, rows: int, copies: int
) -> tuple[_Source, Graph]:
    """A graph of many products of the same rows."""
    columns = shape[1]
    b, source = Builder(), _Source()
    values = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    source.tensors["x"] = _Info(values.shape, FORMATS["F32"].ggml_id)
    source.bytes["x"] = values.view(np.uint8).reshape(-1)
    tokens = b.tokens()
    x = b.embed(tokens, b.declare("x", "F32", (rows, columns)), name="x")
    found = {}
    for i in range(copies):
        source.tensors[f"w{i}"] = _Info(shape, fmt.ggml_id)
        source.bytes[f"w{i}"] = raw
        weight = b.declare(f"w{i}", fmt.name, shape)
        found[f"y{i}"] = b.linear(x, weight, name=f"y{i}")
    meta = Meta("bench", rows, 1, 1, 8, 1, 1, rows, {})
    return source, Graph((tokens,), found, "bench", meta)


if __name__ == "__main__":
    sys.exit(main())
