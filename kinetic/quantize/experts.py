"""Importance of experts: which rows reach each, and what its last matrix is multiplied with.

The kernels keep those rows among themselves, so they are computed once more here, in plain
numpy, for the experts that a step has used: statistics need no exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Node
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.decode import as_blocks, dequantize

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass
class Sums:
    """Sums of squares of a weight's inputs. *Shapes*: values [matrices, K], counts [matrices]."""

    values: Doubles
    counts: NDArray[np.int64]

    def add(self, matrix: int, x: Floats) -> None:
        """Take in rows, [n, K]."""
        wide = x.astype(np.float64)
        self.values[matrix] += np.einsum("ij,ij->j", wide, wide)
        self.counts[matrix] += len(x)


class Mixture:
    """A layer's experts, over the file's own weights."""

    def __init__(self, node: Node, file: GGUFFile) -> None:
        self._node, self._file = node, file
        self._how = ar.Router(
            node.get("n_used", int),
            node.get("norm_weights", bool),
            node.get("router", str),
            node.get("weight_scale", float),
        )
        bias = node.maybe("select_bias")
        self._select_bias = None if bias is None else self._values(bias)
        self._row_biases = {
            part: None if found is None else self._values(found)
            for part in ("gate", "up")
            for found in [node.maybe(f"{part}_bias")]
        }

    @property
    def reads(self) -> Node:
        """What the router reads."""
        return self._node.maybe("router_x") or self._node.arg("x")

    def router(self) -> Node:
        """The router's logits, as a value of the graph."""
        inputs = (self.reads, self._node.arg("gate_inp"), self._node.maybe("router_bias"))
        return Node.make("linear", inputs, {}, f"{self._node.name}.router")

    def add(self, x: Floats, logits: Floats, sums: dict[str, Sums]) -> None:
        """Take in the rows of a step and their router's logits."""
        chosen = ar.route(logits, self._how, self._select_bias).experts
        # Gate and up may be parts of one tensor, which reads its rows once.
        inner = dict.fromkeys(self._node.arg(part).get("name", str) for part in ("gate", "up"))
        last = self._node.arg("down").get("name", str)
        for expert in np.unique(chosen).tolist():
            mine = x[(chosen == expert).any(axis=1)]
            for name in inner:
                self._sums(sums, name, mine.shape[1]).add(expert, mine)
            h = self._hidden(expert, mine)
            self._sums(sums, last, h.shape[1]).add(expert, h)

    def _hidden(self, expert: int, x: Floats) -> Floats:
        """An expert's gated rows, before its last matrix."""
        parts = []
        for part in ("gate", "up"):
            y = x @ self._matrix(self._node.arg(part), expert).T
            bias = self._row_biases[part]
            parts.append(y if bias is None else y + bias[expert])
        return ar.glu(parts[0], parts[1], self._node.get("act", str))

    def _matrix(self, weight: Node, expert: int) -> Floats:
        name = weight.get("name", str)
        info = self._file.tensors[name]
        count, n, _ = info.shape
        raw = self._file.data(name).reshape(count, n, -1)[expert]
        part = weight.attrs["part"]
        if isinstance(part, tuple):
            first, size = part
            assert isinstance(first, int) and isinstance(size, int)
            raw = raw[first : first + size]
        fmt = FORMATS[info.type_name]
        return dequantize(fmt, as_blocks(fmt, raw)).reshape(len(raw), -1)

    def _values(self, weight: Node) -> Floats:
        info = self._file.tensors[weight.get("name", str)]
        fmt = FORMATS[info.type_name]
        return dequantize(fmt, as_blocks(fmt, self._file.data(info.name))).reshape(info.shape)

    def _sums(self, sums: dict[str, Sums], name: str, width: int) -> Sums:
        if name not in sums:
            count = self._file.tensors[name].shape[0]
            sums[name] = Sums(np.zeros((count, width)), np.zeros(count, np.int64))
        return sums[name]
