"""The node and the graph: immutable values that name an op, its inputs and attributes.

Nodes are interned: asking twice for the same `(op, inputs, attributes, name)` gives the
same object, so two graphs are equal when their outputs are the same objects, and a
dict may be keyed by a node. A name is how a value prints and is unique in a graph;
`Builder` and `rewrite` look values up *without* their names, so that one value is not
computed twice: the first name wins.
"""

from __future__ import annotations

import builtins
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar, final
from weakref import WeakValueDictionary

from blake3 import blake3

from kinetic.errors import InternalError
from kinetic.ir.ops.spec import OPS, Attr, OpSpec, RuleError
from kinetic.ir.printer import print_graph
from kinetic.ir.types import Type

A = TypeVar("A", bound=bool | int | float | str)

NAME = re.compile(r"[A-Za-z0-9_.\-]*")
"""What a value may be called; the empty name is for drafts that never print."""

_interned: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
_lock = threading.Lock()


@final
@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """One value. Made by `Node.make`, which infers the type and interns.

    `inputs` has one entry for each parameter of the op, None where an optional one is
    left out; `attrs` has every attribute, in signature order.
    """

    op: str
    type: Type
    inputs: tuple[Node | None, ...]
    attrs: Mapping[str, Attr]
    name: str

    @staticmethod
    def make(
        op: str,
        inputs: Iterable[Node | None] = (),
        attrs: Mapping[str, Attr] | None = None,
        name: str = "",
    ) -> Node:
        """The node for this op, inputs and attributes; trailing optional inputs may be missing.

        Raises: RuleError where they break the op's rule.
        """
        if not NAME.fullmatch(name):
            raise RuleError("name", f"characters of {NAME.pattern}", repr(name))
        spec = OPS.get(op)
        if spec is None:
            raise RuleError(name or "node", "an op of ir/ops", repr(op))
        given = tuple(inputs)
        given += (None,) * (len(spec.inputs) - len(given))
        try:
            bound = spec.bind(attrs or {})
            found = spec.infer(tuple(i.type if i else None for i in given), bound)
        except RuleError as error:
            label = f"%{name} = {op}" if name else op
            raise RuleError(f"{label}: {error.where}", error.expected, error.got) from None
        key = (name, op, given, repr(bound))
        with _lock:
            node = _interned.get(key)
            if node is None:
                node = Node(op, found, given, MappingProxyType(bound), name)
                _interned[key] = node
        return node

    @property
    def spec(self) -> OpSpec:
        """The op's declaration."""
        return OPS[self.op]

    @property
    def sources(self) -> tuple[Node, ...]:
        """The inputs that are there."""
        return tuple(i for i in self.inputs if i is not None)

    def arg(self, name: str) -> Node:
        """The input of that parameter name, which must be there."""
        node = self.maybe(name)
        if node is None:
            raise InternalError(f"%{self.name} = {self.op} has no input {name!r}")
        return node

    def maybe(self, name: str) -> Node | None:
        """The input of that parameter name, None where it is left out."""
        for p, node in zip(self.spec.inputs, self.inputs, strict=True):
            if p.name == name:
                return node
        raise InternalError(f"op {self.op} has no parameter {name!r}")

    def get(self, name: str, kind: builtins.type[A]) -> A:
        """The attribute, which must be of that type: `node.get("eps", float)`."""
        value = self.attrs[name]
        if not isinstance(value, kind):
            raise InternalError(f"%{self.name} = {self.op}: {name} is {value!r}")
        return value

    def optional(self, name: str, kind: builtins.type[A]) -> A | None:
        """The attribute, or None where it is null."""
        return None if self.attrs[name] is None else self.get(name, kind)

    def key(self) -> tuple[object, ...]:
        """What the value is, apart from its name."""
        return (self.op, self.inputs, repr(dict(self.attrs)))

    def renamed(self, name: str) -> Node:
        """The same value under another name."""
        return Node.make(self.op, self.inputs, self.attrs, name)

    def with_inputs(self, inputs: tuple[Node | None, ...]) -> Node:
        """The same op, attributes and name over other inputs."""
        if inputs == self.inputs:
            return self
        return Node.make(self.op, inputs, self.attrs, self.name)

    def __repr__(self) -> str:
        ins = ", ".join("none" if i is None else f"%{i.name}" for i in self.inputs)
        return f"<%{self.name} : {self.type} = {self.op}({ins})>"


@dataclass(frozen=True)
class CacheSpec:
    """What a layer keeps of a sequence: kind, heads, widths of one head, sliding window.

    `attention`: keys `k` and values `v` wide at each position. `state`: one f32 matrix
    `[k, v]` a head, which each row replaces.
    """

    kind: str
    heads: int
    k: int
    v: int
    window: int | None = None


@dataclass(frozen=True)
class Meta:
    """What the runtime must know beyond the ops.

    *Units*: counts; `n_ctx_train` in positions; `caches` by the name that ops use. `pooling` says
    how a text's rows become one (`mean`, `cls`, `last`, or `rank` for scores), None in models that
    generate; `labels` name a reranker's scores where the file does.
    """

    arch: str
    n_ctx_train: int
    n_vocab: int
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    caches: Mapping[str, CacheSpec] = field(default_factory=dict)
    pooling: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Graph:
    """A model, or a part of one: named outputs over nodes.

    `inputs` are the row inputs (`tokens`), `outputs` the values by the name under which
    the runtime asks for them (`logits`, `hidden`).
    """

    inputs: tuple[Node, ...]
    outputs: Mapping[str, Node]
    name: str
    meta: Meta

    def __iter__(self) -> Iterator[Node]:
        """Nodes in topological order, inputs before their users, left to right."""
        return iter(self.nodes)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes in topological order; the same for every graph with the same outputs."""
        return topological(self.outputs.values())

    @cached_property
    def uses(self) -> Mapping[Node, tuple[Node, ...]]:
        """The users of each node, in topological order (one entry per use)."""
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.sources:
                users[source].append(node)
        return {node: tuple(found) for node, found in users.items()}

    def weights(self) -> tuple[Node, ...]:
        """The weight nodes, in the order of their first use."""
        return tuple(node for node in self.nodes if node.op == "weight")

    def with_outputs(self, outputs: Mapping[str, Node]) -> Graph:
        """The same graph with other outputs; row inputs that are not read stay listed."""
        return Graph(self.inputs, dict(outputs), self.name, self.meta)

    def same_as(self, other: Graph) -> bool:
        """Whether both are the same computation under the same names."""
        return (self.name, self.meta, self.inputs) == (
            other.name,
            other.meta,
            other.inputs,
        ) and list(self.outputs.items()) == list(other.outputs.items())

    def hash(self) -> str:
        """BLAKE3 of the printed text, as hex: the model's identity in keys and receipts."""
        return blake3(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        return print_graph(self)


def topological(outputs: Iterable[Node]) -> tuple[Node, ...]:
    """Every node that the outputs need, inputs first, each once."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(outputs))]
    while stack:
        node, done = stack.pop()
        if node in order:
            continue
        if done:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((s, False) for s in reversed(node.sources) if s not in order)
    return tuple(order)
