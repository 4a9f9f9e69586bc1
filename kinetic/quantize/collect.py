"""Collect importance: run a text, and sum the squares of what each matrix is multiplied with.

    linear(x, W)        x becomes an output of the graph too, [T, K]
    experts(x, ...)     x and the router's logits; the rest is computed again (experts.py)
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
from kinetic.ir.graph import Graph, Node
from kinetic.quantize.experts import Mixture, Sums
from kinetic.quantize.importance import ImportanceMatrix, Matrix
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.weights import LoadOptions, Progress
from kinetic.runtime.engine import Engine, Work

MAX_ROWS = 128
"""Rows of a step. Every input of a matrix is kept for all rows of a step."""
MIXTURE_ROWS = 512
"""Rows of a step of a mixture: its experts are decoded anew for each."""
LAYERS = "blk."
"""Weights whose inputs are collected: those of the layers."""


@dataclass(frozen=True)
class Taps:
    """A graph with the inputs of matrices as outputs, and the weights that read each; the
    mixtures, with the outputs that hold their rows and their routers' logits."""

    graph: Graph
    readers: dict[str, tuple[str, ...]]
    mixtures: tuple[tuple[Mixture, str, str], ...]


def tap(graph: Graph, file: GGUFFile) -> Taps:
    """The graph that also gives the inputs of its matrices."""
    outputs = dict(graph.outputs)
    readers: dict[str, tuple[str, ...]] = {}
    mixtures = []

    def output(value: Node) -> str:
        label = f"input.{value.name}"
        outputs[label] = value
        return label

    def reads(weight: Node, x: Node) -> None:
        name = weight.get("name", str)
        if name.startswith(LAYERS):
            label = output(x)
            # Matrices of a fused tensor read the same rows once.
            readers[label] = tuple(dict.fromkeys((*readers.get(label, ()), name)))

    for node in graph:
        if node.op == "linear":
            reads(node.arg("W"), node.arg("x"))
        elif node.op == "experts":
            mixture = Mixture(node, file)
            reads(node.arg("gate_inp"), mixture.reads)
            mixtures.append((mixture, output(node.arg("x")), output(mixture.router())))
    return Taps(graph.with_outputs(outputs), readers, tuple(mixtures))


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
        self._taps = tap(graph, file)
        self._rows = MIXTURE_ROWS if self._taps.mixtures else MAX_ROWS
        program = compile_graph(
            self._taps.graph,
            cpu_target(),
            max_rows=self._rows,
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
        self._sums: dict[str, Sums] = {}
        self._chunks = 0

    def run(self, tokens: NDArray[np.int32], bos: int | None) -> Iterator[int]:
        """Run windows, with BOS for the first token of each; yields how many are done."""
        for chunk in tokens.reshape(-1, self._window):
            rows = [int(token) for token in chunk]
            if bos is not None:
                rows[0] = bos
            with closing(self.engine.new_sequence()) as sequence:
                for start in range(0, len(rows), self._rows):
                    part = rows[start : start + self._rows]
                    self.engine.step([Work(sequence, part)])
                    self._add(len(part))
            self._chunks += 1
            yield self._chunks

    def _add(self, rows: int) -> None:
        for label, names in self._taps.readers.items():
            x = self._device.output(label, rows)
            for name in names:
                if name not in self._sums:
                    self._sums[name] = Sums(np.zeros((1, x.shape[1])), np.zeros(1, np.int64))
                self._sums[name].add(0, x)
        for mixture, label, router in self._taps.mixtures:
            x, logits = self._device.output(label, rows), self._device.output(router, rows)
            mixture.add(x, logits, self._sums)

    def found(self, dataset: str) -> ImportanceMatrix:
        """What has been collected."""
        matrices = {
            name: Matrix(sums.values.astype(np.float32), sums.counts)
            for name, sums in self._sums.items()
        }
        return ImportanceMatrix(matrices, (dataset,), self._chunks, self._window)

    def close(self) -> None:
        """Give threads and memory back."""
        self._device.close()
