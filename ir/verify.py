"""Check a graph against the rules of its ops; run after the builder and after each pass."""

from __future__ import annotations

from kinetic.errors import InternalError
from kinetic.ir.graph import NAME, CacheSpec, Graph, Node
from kinetic.ir.ops.recurrent import state_shape
from kinetic.ir.ops.spec import OPS, RuleError
from kinetic.ir.types import DType, TensorType


def verify(graph: Graph, after: str = "build") -> None:
    """Names, definitions, types, caches and outputs; `after` names the pass for the error.

    Raises: InternalError with pass, node, expected and got.
    """
    names: dict[str, Node] = {}
    writers: dict[str, Node] = {}
    for node in dict.fromkeys([*graph.inputs, *graph.nodes]):
        where = f"after {after}: %{node.name} = {node.op}"
        if not node.name or not NAME.fullmatch(node.name):
            raise RuleError(where, "a printable name", repr(node.name))
        if names.setdefault(node.name, node) is not node:
            raise RuleError(where, "one value of this name", repr(names[node.name]))
        _check_types(node, where)
        _check_cache(graph, node, where, writers)
    for name, node in graph.outputs.items():
        if not isinstance(node.type, TensorType) or node.type.dtype is not DType.f32:
            raise RuleError(f"after {after}: output {name}", "an f32 tensor", node.type)
    for cache in graph.meta.caches:
        if cache not in writers:
            raise RuleError(f"after {after}: cache {cache}", "one op that writes it", "none")


def _check_types(node: Node, where: str) -> None:
    spec = OPS.get(node.op)
    if spec is None:
        raise RuleError(where, "an op of ir/ops", node.op)
    try:
        bound = spec.bind(node.attrs)
        found = spec.infer(tuple(i.type if i else None for i in node.inputs), bound)
    except RuleError as error:
        raise RuleError(f"{where}: {error.where}", error.expected, error.got) from None
    if found != node.type:
        raise RuleError(where, str(found), node.type)


def _check_cache(graph: Graph, node: Node, where: str, writers: dict[str, Node]) -> None:
    cache = node.attrs.get("cache")
    if cache is None:
        return
    if not isinstance(cache, str) or cache not in graph.meta.caches:
        raise RuleError(where, f"a cache of {sorted(graph.meta.caches)}", cache)
    again = node.op == "attention_again" or (node.op == "rope_write" and node.maybe("k") is None)
    if again and cache not in writers:
        raise RuleError(where, f"a cache written before, not {cache}", "no writer")
    if node.spec.writes and not again and writers.setdefault(cache, node) is not node:
        raise RuleError(where, f"one writer of cache {cache}", repr(writers[cache]))
    declared = graph.meta.caches[cache]
    state = state_shape(node.op, *(i.type for i in node.sources))
    kind = "attention" if state is None else "state"
    if declared.kind != kind:
        raise RuleError(where, f"a cache of kind {kind}", declared.kind)
    if state is not None and state != (declared.heads, declared.k, declared.v):
        raise RuleError(where, f"heads, k, v {(declared.heads, declared.k, declared.v)}", state)
    if node.op == "attention_again":
        _check_queries(node, declared, where)
    if node.op == "attention":
        k, v = node.arg("k").type, node.arg("v").type
        if not isinstance(k, TensorType) or not isinstance(v, TensorType):
            raise InternalError(f"{where}: k and v are not tensors")
        got = (*k.shape[1:], v.shape[2], node.attrs["window"])
        expected = (declared.heads, declared.k, declared.v, declared.window)
        if got != expected:
            raise RuleError(where, f"heads, k, v, window {expected}", got)


def _check_queries(node: Node, declared: CacheSpec, where: str) -> None:
    """Queries that read a cache must be as wide as its keys, a few to each of its heads."""
    found = node.arg("q").type
    assert isinstance(found, TensorType)
    heads, width = found.shape[1:]
    got = (heads if isinstance(heads, int) and heads % declared.heads else declared.heads, width)
    if (*got, node.attrs["window"]) != (declared.heads, declared.k, declared.window):
        raise RuleError(where, f"heads, k, window {declared}", found)
