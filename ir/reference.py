"""The reference device: runs a graph node by node in numpy, giving the contract's words.

What each op computes stands beside its declaration in `ir/ops/`, over the arithmetic of
`ir/ops/arithmetic.py`; here are only the caches and the walk. Every device class is tested
against this with `==`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinetic.errors import InternalError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph, Node
from kinetic.ir.ops.spec import F32, Array, Rows, Weight
from kinetic.ir.quant import FORMATS

__all__ = ["Reference", "Rows", "Weight", "rows", "weights_of"]

KV_TYPES: dict[str, type[np.floating]] = {"f16": np.float16, "f32": np.float32}
"""What keys and values are rounded to when they are written."""

Watch = Callable[[Node, object], None]


def rows(
    tokens: Sequence[int] | Array,
    *,
    start: int = 0,
    sequence: int = 0,
    wanted: Sequence[bool] | str = "all",
) -> Rows:
    """Rows of one sequence at positions `start...`; `wanted` may be `"all"` or `"last"`."""
    ids = np.asarray(tokens, np.int32)
    flags = np.asarray(wanted != "last" if isinstance(wanted, str) else wanted, np.bool_)
    flags = np.broadcast_to(flags, ids.shape).copy()
    if isinstance(wanted, str):
        flags[-1:] = True
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    return Rows(ids, np.full(len(ids), sequence, np.int32), positions, flags)


def weights_of(file: GGUFFile) -> Callable[[str], Weight]:
    """Weights of a GGUF file by name, as `Reference` takes them."""

    def weight(name: str) -> Weight:
        info = file.tensors[name]
        raw = file.data(name).reshape(int(np.prod(info.shape[:-1], dtype=np.int64)), -1)
        return Weight(FORMATS[info.type_name], info.shape, raw)

    return weight


class _Cache:
    """Keys and values of one sequence in one layer, by position."""

    def __init__(self, k: F32, v: F32, dtype: type[np.floating]) -> None:
        self.k = np.zeros((0, *k.shape[1:]), dtype)
        self.v = np.zeros((0, *v.shape[1:]), dtype)
        self.length = 0

    def write(self, position: int, k: F32, v: F32) -> None:
        if position > self.length:
            raise InternalError(f"position {position} is written before {self.length}")
        if position >= len(self.k):
            more = max(64, len(self.k))
            self.k = np.concatenate([self.k, np.zeros((more, *self.k.shape[1:]), self.k.dtype)])
            self.v = np.concatenate([self.v, np.zeros((more, *self.v.shape[1:]), self.v.dtype)])
        with np.errstate(over="ignore"):
            self.k[position], self.v[position] = k, v
        self.length = max(self.length, position + 1)


KEPT = 128
"""Recurrent states of a sequence that are kept, those after its last rows."""


class _States:
    """A recurrent layer's states of one sequence, by the position of the row they follow."""

    def __init__(self) -> None:
        self._after: dict[int, F32] = {}

    def before(self, position: int, shape: tuple[int, int, int]) -> F32:
        if position == 0:
            return np.zeros(shape, np.float32)
        if position - 1 not in self._after:
            raise InternalError(
                f"position {position} is run without the state after {position - 1}; only the "
                f"last {KEPT} are kept"
            )
        return self._after[position - 1]

    def keep(self, position: int, state: F32) -> None:
        self._after[position] = state
        self._after.pop(position - KEPT, None)


class Reference:
    """Runs `graph` step by step, keeping the caches of every sequence it has seen.

    `weights` gives a tensor by its name (`weights_of(file)`); `kv_type` is `f16` or, for
    tests against other engines, `f32`.
    """

    def __init__(
        self, graph: Graph, weights: Callable[[str], Weight], kv_type: str = "f16"
    ) -> None:
        self.graph = graph
        self._weights = weights
        self._kv = KV_TYPES[kv_type]
        self._loaded: dict[str, Weight] = {}
        self._caches: dict[tuple[str, int], _Cache] = {}
        self._states: dict[tuple[str, int], _States] = {}
        self.rows = rows([])

    def step(self, rows: Rows, watch: Watch | None = None) -> dict[str, F32]:
        """One step: the named outputs `[R, ...]`; `watch` sees every value as it is made.

        Raises: InternalError when a row leaves a gap in its sequence or comes twice.
        """
        places = list(zip(rows.sequences.tolist(), rows.positions.tolist(), strict=True))
        if len(set(places)) != len(places):
            raise InternalError("two rows of a step have the same sequence and position")
        self.rows = rows
        values: dict[Node, Array] = {}
        for node in self.graph:
            meaning = node.spec.run
            if meaning is None:
                raise InternalError(f"op {node.op} has no numpy meaning")
            inputs = [None if i is None else values[i] for i in node.inputs]
            values[node] = meaning(self, *inputs, **node.attrs)
            if watch is not None:
                watch(node, values[node])
        return {name: values[node] for name, node in self.graph.outputs.items()}

    def forget(self, sequence: int) -> None:
        """Drop the caches of a sequence."""
        self._caches = {key: c for key, c in self._caches.items() if key[1] != sequence}
        self._states = {key: s for key, s in self._states.items() if key[1] != sequence}

    # ---- what meanings ask for: `ops.spec.Run` ---------------------------------------------

    def weight(self, name: str) -> Weight:
        """The tensor of that name, read once."""
        if name not in self._loaded:
            self._loaded[name] = self._weights(name)
        return self._loaded[name]

    def write(self, cache: str, k: F32, v: F32) -> None:
        """Put each row's keys and values at its sequence and position."""
        for i in np.argsort(self.rows.positions, kind="stable"):
            key = (cache, int(self.rows.sequences[i]))
            if key not in self._caches:
                self._caches[key] = _Cache(k, v, self._kv)
            self._caches[key].write(int(self.rows.positions[i]), k[i], v[i])

    def read(self, cache: str, sequence: int) -> tuple[F32, F32]:
        """Keys and values of a sequence, widened."""
        found = self._caches[cache, sequence]
        n = found.length
        return found.k[:n].astype(np.float32), found.v[:n].astype(np.float32)

    def scan(self, cache: str, shape: tuple[int, int, int], row: Callable[[F32, int], F32]) -> None:
        """Walk the rows, each after the one before it on its path."""
        for i in np.argsort(self.rows.positions, kind="stable").tolist():
            sequence, position = int(self.rows.sequences[i]), int(self.rows.positions[i])
            states = self._states.setdefault((cache, sequence), _States())
            states.keep(position, row(states.before(position, shape), i))
