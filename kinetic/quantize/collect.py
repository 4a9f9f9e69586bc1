"""Collect importance: run a text, and sum the squares of what each matrix is multiplied with.

    linear(x, W)        x becomes an output of the graph too, [T, K]
    step                the rows of each such x -> squares -> sums of W, of every W that reads it

The extra outputs take part in nothing, so the model computes what it always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic import families, settings
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.errors import UnsupportedError
from kinetic.ir.gguf import GGUFFile, display_path
from kinetic.ir.graph import Graph
from kinetic.quantize.importance import ImportanceMatrix, Matrix
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.weights import LoadOptions, Progress
from kinetic.runtime.engine import Engine, Work

MAX_ROWS = 128
"""Rows of a step. Every input of a matrix is kept for all rows of a step."""
LAYERS = "blk."
"""Weights whose inputs are collected: those of the layers."""


@dataclass(frozen=True)
class Taps:
    """A graph with the inputs of matrices as outputs, and the weights that read each."""

    graph: Graph
    readers: dict[str, tuple[str, ...]]


def tap(graph: Graph) -> Taps:
    """The graph that also gives the inputs of its matrices.

    *Raises* `UnsupportedError` for a mixture of experts.
    """
    if any(node.op == "experts" for node in graph):
        raise UnsupportedError(
            "importance of mixtures of experts is not collected yet; make the file with "
            "llama.cpp's llama-imatrix, kinetic quantize --imatrix reads it"
        )
    outputs = dict(graph.outputs)
    readers: dict[str, tuple[str, ...]] = {}
    for node in graph:
        if node.op != "linear":
            continue
        name = node.arg("W").get("name", str)
        if not name.startswith(LAYERS):
            continue
        x = node.arg("x")
        label = f"input.{x.name}"
        outputs[label] = x
        known = readers.setdefault(label, ())
        if name not in known:  # matrices of a fused tensor read the same rows once
            readers[label] = (*known, name)
    return Taps(graph.with_outputs(outputs), readers)


class Collector:
    """A model loaded to collect importance; close it in the end."""

    def __init__(
        self, file: GGUFFile, window: int, threads: int, progress: Progress | None = None
    ) -> None:
        graph = families.build(file)
        if graph.meta.pooling is not None:
            raise UnsupportedError(
                f"{display_path(file.path)} makes embeddings; importance is collected from models "
                "that predict text"
            )
        self._taps = tap(graph)
        program = compile_graph(
            self._taps.graph,
            cpu_target(),
            max_rows=MAX_ROWS,
            max_outputs=1,
            object_cache=settings.cache_dir() / "kernels",
        )
        pages = Engine.pages_for(window)
        self._device = CpuDevice(
            program,
            file,
            threads=threads,
            n_ctx=window,
            n_pages=pages,
            n_slots=1,
            load=LoadOptions(progress=progress),
        )
        self.engine = Engine(self._device, window, pages)
        self._window = window
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, int] = {}
        self._chunks = 0

    def run(self, tokens: NDArray[np.int32], bos: int | None) -> Iterator[int]:
        """Run windows, with BOS for the first token of each; yields how many are done."""
        for chunk in tokens.reshape(-1, self._window):
            rows = [int(token) for token in chunk]
            if bos is not None:
                rows[0] = bos
            with closing(self.engine.new_sequence()) as sequence:
                for start in range(0, len(rows), MAX_ROWS):
                    part = rows[start : start + MAX_ROWS]
                    self.engine.step([Work(sequence, part)])
                    self._add(len(part))
            self._chunks += 1
            yield self._chunks

    def _add(self, rows: int) -> None:
        for label, names in self._taps.readers.items():
            x = self._device.output(label, rows).astype(np.float64)
            squares = np.einsum("ij,ij->j", x, x)
            for name in names:
                self._counts[name] = self._counts.get(name, 0) + rows
                known = self._sums.get(name)
                self._sums[name] = squares if known is None else known + squares

    def found(self, dataset: str) -> ImportanceMatrix:
        """What has been collected."""
        matrices = {
            name: Matrix(sums.astype(np.float32)[None], np.array([self._counts[name]], np.int64))
            for name, sums in self._sums.items()
        }
        return ImportanceMatrix(matrices, (dataset,), self._chunks, self._window)

    def close(self) -> None:
        """Give threads and memory back."""
        self._device.close()
