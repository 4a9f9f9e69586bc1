"""A small matcher over the graph: patterns, rules, and one bottom-up walk.

    rule = Rule(
        "residual",
        P("add", any_value("x"), P("matmul", any_value("xq"), any_value("W"), uses=1, name="y")),
        lambda r, m: r.node("matmul", m["xq"], m["W"], None, m["x"]),
    )
    graph = rewrite(graph, [rule])

The walk rebuilds each node over its rewritten inputs and tries the rules in order until
none fires. Equal values become one node. What a rule returns takes the name of the value
that it replaces, so names stay those of the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kinetic.errors import InternalError
from kinetic.ir.graph import Graph, Node
from kinetic.ir.ops.spec import Attr

Match = dict[str, Node]
"""The nodes that a pattern named."""

MAX_FIRINGS = 64
"""Rules that may fire on one value before the walk is taken to run in circles."""


@dataclass(frozen=True)
class Pattern:
    """Matches a node: its op, inputs, number of uses, and whatever `where` asks.

    `op` None matches any node. `inputs` None matches any inputs; an entry None matches an
    input that is left out. With `swap`, two inputs match in either order.
    """

    op: str | None = None
    inputs: tuple[Pattern | None, ...] | None = None
    name: str = ""
    uses: int | None = None
    where: Callable[[Node], bool] | None = None
    swap: bool = False
    optional: bool = False

    def match(self, node: Node | None, rewriter: Rewriter, found: Match) -> bool:
        """Whether the node matches; named nodes are put into `found`."""
        if node is None:
            return self.optional
        if self.op is not None and node.op != self.op:
            return False
        if self.uses is not None and rewriter.uses(node) != self.uses:
            return False
        if self.where is not None and not self.where(node):
            return False
        if self.name and found.setdefault(self.name, node) is not node:
            return False
        return self.inputs is None or self._match_inputs(node, rewriter, found)

    def _match_inputs(self, node: Node, rewriter: Rewriter, found: Match) -> bool:
        assert self.inputs is not None
        wanted = self.inputs + (None,) * (len(node.inputs) - len(self.inputs))
        orders = [node.inputs, node.inputs[::-1]] if self.swap else [node.inputs]
        for order in orders:
            attempt = dict(found)
            if all(
                (i is None) if p is None else p.match(i, rewriter, attempt)
                for p, i in zip(wanted, order, strict=True)
            ):
                found.update(attempt)
                return True
        return False


def P(
    op: str,
    *inputs: Pattern | None,
    name: str = "",
    uses: int | None = None,
    where: Callable[[Node], bool] | None = None,
    swap: bool = False,
) -> Pattern:
    """A node of this op over these inputs; trailing inputs not given must be left out."""
    return Pattern(op, inputs, name, uses, where, swap)


def any_value(name: str = "", *, optional: bool = False) -> Pattern:
    """Any node, or with `optional` none at all."""
    return Pattern(name=name, optional=optional)


@dataclass(frozen=True)
class Rule:
    """Where `pattern` matches, `build` gives the value to put there, or None to leave it."""

    name: str
    pattern: Pattern
    build: Callable[[Rewriter, Match], Node | None]


class Rewriter:
    """One walk: the values made so far, their names, and how often each is used."""

    def __init__(self, graph: Graph) -> None:
        self._uses: dict[Node, int] = {node: len(users) for node, users in graph.uses.items()}
        for node in graph.outputs.values():
            self._uses[node] += 1
        self._names = {node.name for node in dict.fromkeys([*graph.inputs, *graph.nodes])}
        self._values: dict[tuple[object, ...], Node] = {}
        self._fresh: list[Node] = []
        self._at = ""

    def uses(self, node: Node) -> int:
        """Users of the value that this node stands for, outputs included."""
        return self._uses.get(node, 1)

    def node(self, op: str, *inputs: Node | None, name: str = "", **attrs: Attr) -> Node:
        """A node for a rule's result: an equal one if there is one, else under a free name.

        `name` is a suffix to the name of the value being replaced (by default the op).
        """
        draft = Node.make(op, inputs, attrs)
        known = self._values.get(draft.key())
        if known is not None:
            return known
        base = f"{self._at}.{name or op}"
        free, n = base, 1
        while free in self._names:
            n += 1
            free = f"{base}.{n}"
        self._names.add(free)
        made = draft.renamed(free)
        self._values[made.key()] = made
        self._fresh.append(made)
        return made

    def walk(self, graph: Graph, rules: Sequence[Rule]) -> Graph:
        """The graph after the rules."""
        new: dict[Node, Node] = {}
        for node in graph.nodes:
            inputs = tuple(None if i is None else new[i] for i in node.inputs)
            new[node] = self._settle(node, node.with_inputs(inputs), rules)
        return graph.with_outputs({name: new[node] for name, node in graph.outputs.items()})

    def _settle(self, old: Node, node: Node, rules: Sequence[Rule]) -> Node:
        self._at = old.name
        self._uses.setdefault(node, self._uses[old])
        for _ in range(MAX_FIRINGS):
            fired = self._fire(node, rules)
            if fired is None:
                return self._values.setdefault(node.key(), node)
            node = fired
            self._uses.setdefault(node, self._uses[old])
        raise InternalError(f"%{old.name}: rules fire on it without end")

    def _fire(self, node: Node, rules: Sequence[Rule]) -> Node | None:
        for rule in rules:
            found: Match = {}
            if rule.pattern.match(node, self, found):
                self._fresh = []
                result = rule.build(self, found)
                if result is not None and result.key() != node.key():
                    return self._named(result, node)
        return None

    def _named(self, result: Node, node: Node) -> Node:
        """A new result takes the old name, unless the old value lives on below it."""
        if result not in self._fresh or any(node in f.sources for f in self._fresh):
            return result
        named = result.renamed(self._at)
        self._names.discard(result.name)
        self._values[named.key()] = named
        return named


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """One bottom-up walk of the rules over the graph.

    Raises: InternalError where rules fire without end; RuleError where a rule builds a node
    that breaks its op's rule.
    """
    return Rewriter(graph).walk(graph, rules)


def replace(graph: Graph, new: Mapping[Node, Node]) -> Graph:
    """The graph with these nodes put in place of others, and their users rebuilt."""
    done: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple(None if i is None else done[i] for i in node.inputs)
        done[node] = new[node] if node in new else node.with_inputs(inputs)
    return graph.with_outputs({name: done[node] for name, node in graph.outputs.items()})
