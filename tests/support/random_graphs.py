"""Random small graphs over the row ops, and the weights they name: food for passes."""

from __future__ import annotations

import numpy as np
from support.cpu_device import Memory, graph_of, random_weights

from kinetic.ir.build import Builder
from kinetic.ir.graph import CacheSpec, Graph, Node
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat

WIDTHS = (64, 256)
TOKENS = 64
HEAD = 16


def random_graph(seed: int, size: int = 14) -> tuple[Graph, Memory]:
    """A graph whose values are used again, gated, normed, multiplied, attended, at random."""
    return _Maker(np.random.default_rng(seed)).make(size)


class _Maker:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.b, self.memory = rng, Builder(), Memory()
        self.values: list[Node] = []
        self.caches: dict[str, CacheSpec] = {}
        self.count = 0

    def make(self, size: int) -> tuple[Graph, Memory]:
        for width in WIDTHS:
            table = self.weight("F32", TOKENS, width)
            self.values.append(self.b.embed(self.b.tokens(), table, name=self.name("embed")))
        for _ in range(size):
            self.values.append(self.step())
        last = self.values[-3:] + [self.pick() for _ in range(int(self.rng.integers(0, 3)))]
        found = {f"y{i}": node for i, node in enumerate(dict.fromkeys(last))}
        if self.rng.random() < 0.5:
            taken = self.b.take_outputs(self.pick(), name=self.name("taken"))
            if self.rng.random() < 0.5:
                taken = self.linear(taken)
            found["wanted"] = taken
        written = {node.attrs.get("cache") for node in graph_of(found)}
        caches = {name: spec for name, spec in self.caches.items() if name in written}
        return graph_of(found, caches), self.memory

    def step(self) -> Node:
        b, x = self.b, self.pick()
        kind = self.rng.choice(
            ["add", "mul", "glu", "norm", "linear", "residual", "mlp", "scale", "act", "attention"],
            p=[0.1, 0.05, 0.1, 0.15, 0.2, 0.15, 0.1, 0.05, 0.05, 0.05],
        )
        if kind == "add":
            return b.add(x, self.like(x), name=self.name("add"))
        if kind == "mul":
            return b.mul(x, self.like(x), name=self.name("mul"))
        if kind == "glu":
            return b.mul(self.act(x), self.like(x), name=self.name("gate"))
        if kind == "norm":
            return self.norm(x)
        if kind == "linear":
            return self.linear(x)
        if kind == "residual":
            y = self.linear(self.pick(), _width(x))
            pair = (x, y) if self.rng.random() < 0.5 else (y, x)
            return b.add(*pair, name=self.name("residual"))
        if kind == "mlp":
            h = self.norm(x)
            inner = int(self.rng.choice(WIDTHS))
            h = b.mul(self.act(self.linear(h, inner)), self.linear(h, inner), name=self.name("h"))
            return b.add(x, self.linear(h, _width(x)), name=self.name("mlp"))
        if kind == "scale":
            return b.scale(x, float(self.rng.uniform(-2, 2)), name=self.name("scale"))
        if kind == "act":
            return self.act(x)
        return self.attention()

    def attention(self) -> Node:
        b, rng = self.b, self.rng
        heads = int(rng.choice([1, 2, 4]))
        window = [None, 3][int(rng.integers(2))]
        cache = f"c{len(self.caches)}"
        parts = [self.linear(self.pick(), n * HEAD) for n in (4, heads, heads)]
        if rng.random() < 0.3:  # one row for keys and values, or for all three
            parts[1 if rng.random() < 0.5 or heads < 4 else 0] = parts[2]
        q, k, v = (b.split_heads(p, _width(p) // HEAD, name=self.name("heads")) for p in parts)
        if rng.random() < 0.5:
            w = self.weight("F32", HEAD)
            q, k = (b.rms_norm(x, w, 1e-6, name=self.name("head_norm")) for x in (q, k))
        if rng.random() < 0.7:
            kind = str(rng.choice(["norm", "neox"]))
            q, k = (
                b.rope(x, None, name=self.name("rope"), kind=kind, rot=HEAD, base=100.0)
                for x in (q, k)
            )
        self.caches[cache] = CacheSpec("attention", heads, HEAD, HEAD, window)
        y = b.attention(q, k, v, scale=0.25, cache=cache, window=window, name=self.name("attend"))
        return b.merge_heads(y, name=self.name("merged"))

    def norm(self, x: Node) -> Node:
        w = self.weight("F32", _width(x)) if self.rng.random() < 0.7 else None
        return self.b.rms_norm(x, w, 1e-6, name=self.name("norm"))

    def act(self, x: Node) -> Node:
        return self.b.op(str(self.rng.choice(["silu", "gelu_tanh"])), x, name=self.name("act"))

    def linear(self, x: Node, outs: int | None = None) -> Node:
        width = _width(x)
        usable = [
            f.name
            for f in FORMATS.values()
            if not isinstance(f, BlockFormat) or width % f.values == 0
        ]
        fmt = str(self.rng.choice(usable))
        rows = outs or int(self.rng.choice(WIDTHS))
        bias = self.weight("F32", rows) if self.rng.random() < 0.2 else None
        return self.b.linear(x, self.weight(fmt, rows, width), bias, name=self.name("linear"))

    def weight(self, fmt: str, *shape: int) -> Node:
        name = self.name("w")
        rows = shape[0] if len(shape) == 2 else 1
        raw = random_weights(self.rng, fmt, rows, shape[-1], "plain")
        self.memory.put(name, fmt, shape, raw)
        return self.b.declare(name, fmt, shape)

    def pick(self) -> Node:
        """A value, more often a late one."""
        at = min(int(self.rng.geometric(0.3)), len(self.values))
        return self.values[-at]

    def like(self, x: Node) -> Node:
        """Another value of the same width (perhaps the same)."""
        return self.rng.choice([v for v in self.values if v.type == x.type])  # type: ignore[arg-type, no-any-return]

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"


def _width(x: Node) -> int:
    width = x.type.shape[-1]  # type: ignore[union-attr]
    assert isinstance(width, int)
    return width
