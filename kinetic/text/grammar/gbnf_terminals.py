"""Finds parts of a recursive grammar that the library may read greedily as one terminal each.

Single characters are always right but slow: every character is a step of the parser. A part
without recursion can be one terminal, if greed cannot mislead: where the terminal A has read the
text w, and a character c may follow A, no terminal B may go on from w with c. Parts that fail are
taken apart, and in the end are characters again.

    part        -> Glushkov automaton, states as bits of an int
    characters  -> atoms, the classes that no part tells apart
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kinetic.text.grammar.gbnf_syntax import Chars, Node, Reference, Repeat, Sequence

MAX_POSITIONS = 400
MAX_TERMINALS = 80
MAX_ATOMS = 200
MAX_ROUNDS = 24
# Steps of all comparisons together: a second or so of work, on which a stranger may call.
MAX_STEPS = 20_000


@dataclass(frozen=True)
class Automaton:
    """A part's positions: where it may begin, end and go on, and the atoms of each."""

    nullable: bool
    first: int
    last: int
    follow: tuple[int, ...]
    atoms: tuple[int, ...]


EMPTY = Automaton(True, 0, 0, (), ())


@dataclass
class Leaf:
    """A terminal in one place."""

    node: Node
    after: int = 0
    """The atoms that may follow it."""


@dataclass
class Tree:
    """A rule's body over terminals: a leaf, another rule, or parts."""

    kind: str
    leaf: Leaf | None = None
    name: str = ""
    parts: list[Tree] = field(default_factory=list)
    node: Repeat | None = None


def bits(value: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


class Terminals:
    """The trees of all rules that recurse, over terminals that are safe to read greedily."""

    def __init__(self, rules: dict[str, Node], regular: list[str]) -> None:
        """`regular` are the rules without recursion, each after those it names."""
        self._rules = rules
        edges = {0, 0x110000}
        stack = list(rules.values())
        while stack:
            node = stack.pop()
            if isinstance(node, Chars):
                edges.update(e for low, high in node.ranges for e in (low, high + 1))
            elif isinstance(node, Repeat):
                stack.append(node.part)
            elif not isinstance(node, Reference):
                stack.extend(node.parts)
        self._starts = sorted(edges)
        self._of_chars: dict[Node, int] = {}
        self._made: dict[str, Automaton | None] = {}
        for name in regular:
            self._made[name] = self._automaton(rules[name])
        self._known: dict[Node, Automaton | None] = {}
        self._broken: set[Node] = set()
        self._steps = 0
        self.trees: dict[str, Tree] = {}

    def find(self) -> bool:
        """Choose; whether a safe choice was found."""
        if len(self._starts) > MAX_ATOMS:
            return False
        for _ in range(MAX_ROUNDS):
            leaves = self._plant()
            distinct = {leaf.node for leaf in leaves}
            if len(distinct) > MAX_TERMINALS or len(leaves) > 20 * MAX_TERMINALS:
                return False
            self._follow()
            after: dict[Node, int] = {}
            for leaf in leaves:
                after[leaf.node] = after.get(leaf.node, 0) | leaf.after
            wrong = self._misled(after)
            if not wrong:
                return True
            self._broken |= wrong
        return False

    def nullable(self, node: Node) -> bool:
        """Whether a leaf's part may be empty."""
        found = self._of(node)
        assert found is not None
        return found.nullable

    # Automata.

    def _mask(self, node: Chars) -> int:
        if node not in self._of_chars:
            found = 0
            for index, start in enumerate(self._starts[:-1]):
                if any(low <= start <= high for low, high in node.ranges):
                    found |= 1 << index
            self._of_chars[node] = found
        return self._of_chars[node]

    def _of(self, node: Node) -> Automaton | None:
        if node not in self._known:
            self._known[node] = self._automaton(node)
        return self._known[node]

    def _automaton(self, node: Node) -> Automaton | None:
        """None for what recurses or is too big."""
        if isinstance(node, Chars):
            return Automaton(False, 1, 1, (0,), (self._mask(node),))
        if isinstance(node, Reference):
            return self._made.get(node.name)
        if isinstance(node, Repeat):
            return self._repeated(node)
        made: Automaton | None = EMPTY if isinstance(node, Sequence) else None
        for part in node.parts:
            next_ = self._automaton(part)
            if next_ is None:
                return None
            join = _row if isinstance(node, Sequence) else _either
            made = next_ if made is None else join(made, next_)
            if len(made.atoms) > MAX_POSITIONS:
                return None
        return made

    def _repeated(self, node: Repeat) -> Automaton | None:
        part = self._automaton(node.part)
        times = max(node.least, node.most or 0, 1)
        if part is None or len(part.atoms) * times > MAX_POSITIONS:
            return None
        made = EMPTY
        for index in range(times if node.most != 0 else 0):
            last = node.most is None and index == times - 1
            one = _looped(part) if last else part
            optional = index >= node.least
            made = _row(made, _either(EMPTY, one) if optional else one)
        return made

    # Trees.

    def _plant(self) -> list[Leaf]:
        self.trees, leaves = {}, list[Leaf]()
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in self.trees:
                self.trees[name] = self._tree(self._rules[name], leaves, waiting)
        return leaves

    def _whole(self, node: Node) -> bool:
        return isinstance(node, Chars) or (node not in self._broken and self._of(node) is not None)

    def _tree(self, node: Node, leaves: list[Leaf], waiting: list[str]) -> Tree:
        if self._whole(node) and node != Sequence(()):
            leaves.append(Leaf(node))
            return Tree("leaf", leaf=leaves[-1])
        if isinstance(node, Reference):
            waiting.append(node.name)
            return Tree("rule", name=node.name)
        if isinstance(node, Repeat):
            return Tree("repeat", parts=[self._tree(node.part, leaves, waiting)], node=node)
        assert not isinstance(node, Chars)
        parts = list(node.parts)
        if isinstance(node, Sequence):
            parts = self._runs(parts)
        kind = "row" if isinstance(node, Sequence) else "choice"
        return Tree(kind, parts=[self._tree(p, leaves, waiting) for p in parts])

    def _runs(self, parts: list[Node]) -> list[Node]:
        """Neighbours that can be one terminal, joined."""
        out: list[Node] = []
        run: list[Node] = []
        for part in [*parts, None]:
            if part is not None and self._whole(part):
                run.append(part)
                continue
            joined = Sequence(tuple(run))
            out += [joined] if len(run) > 1 and self._whole(joined) else run
            run = []
            if part is not None:
                out.append(part)
        return out

    # What follows.

    def _follow(self) -> None:
        """Fill in each leaf's `after`."""
        first = dict.fromkeys(self.trees, 0)
        empty = dict.fromkeys(self.trees, False)

        def begin(tree: Tree) -> tuple[int, bool]:
            if tree.kind == "leaf":
                assert tree.leaf is not None
                made = self._of(tree.leaf.node)
                assert made is not None
                atoms = 0
                for position in bits(made.first):
                    atoms |= made.atoms[position]
                return atoms, made.nullable
            if tree.kind == "rule":
                return first[tree.name], empty[tree.name]
            if tree.kind == "repeat":
                atoms, is_empty = begin(tree.parts[0])
                assert tree.node is not None
                return atoms, is_empty or tree.node.least == 0
            atoms, is_empty = 0, tree.kind == "row"
            for part in tree.parts:
                if tree.kind == "row" and not is_empty:
                    break
                more, may_be = begin(part)
                atoms |= more
                is_empty = may_be if tree.kind == "row" else is_empty or may_be
            return atoms, is_empty

        changed = True
        while changed:
            changed = False
            for name, tree in self.trees.items():
                found = begin(tree)
                changed |= found != (first[name], empty[name])
                first[name], empty[name] = found

        after = dict.fromkeys(self.trees, 0)

        def spread(tree: Tree, atoms: int) -> None:
            nonlocal changed
            if tree.kind == "leaf":
                assert tree.leaf is not None
                tree.leaf.after |= atoms
            elif tree.kind == "rule":
                changed |= after[tree.name] | atoms != after[tree.name]
                after[tree.name] |= atoms
            elif tree.kind == "repeat":
                assert tree.node is not None
                more = 0 if tree.node.most == 1 else begin(tree.parts[0])[0]
                spread(tree.parts[0], atoms | more)
            elif tree.kind == "choice":
                for part in tree.parts:
                    spread(part, atoms)
            else:
                for part in reversed(tree.parts):
                    spread(part, atoms)
                    begins, is_empty = begin(part)
                    atoms = begins | (atoms if is_empty else 0)

        changed = True
        while changed:
            changed = False
            for name, tree in self.trees.items():
                spread(tree, after[name])

    def _misled(self, after: dict[Node, int]) -> set[Node]:
        """The terminals that could go on where another has ended."""
        steps = {node: self._stepper(node) for node in after}
        wrong: set[Node] = set()
        for ending, atoms in after.items():
            for other in after:
                if isinstance(other, Chars) or other in wrong:
                    continue
                if self._goes_on(steps[ending], steps[other], ending, atoms):
                    wrong.add(other)
        return wrong

    def _stepper(self, node: Node) -> Callable[[int | None, int], int]:
        made = self._of(node)
        assert made is not None
        having: dict[int, int] = {}
        for position, atoms in enumerate(made.atoms):
            for atom in bits(atoms):
                having[atom] = having.get(atom, 0) | 1 << position
        known: dict[int, int] = {}

        def step(state: int | None, atom: int) -> int:
            if state is None:
                return made.first & having.get(atom, 0)
            if state not in known:
                reach = 0
                for position in bits(state):
                    reach |= made.follow[position]
                known[state] = reach
            return known[state] & having.get(atom, 0)

        return step

    def _goes_on(
        self,
        one: Callable[[int | None, int], int],
        two: Callable[[int | None, int], int],
        ending: Node,
        atoms: int,
    ) -> bool:
        made = self._of(ending)
        assert made is not None
        n_atoms = len(self._starts) - 1
        seen: set[tuple[int | None, int | None]] = set()
        waiting: list[tuple[int | None, int | None]] = [(None, None)]
        while waiting:
            a, b = waiting.pop()
            for atom in range(n_atoms):
                state = one(a, atom), two(b, atom)
                if not (state[0] and state[1]) or state in seen:
                    continue
                self._steps += 1
                if self._steps > MAX_STEPS:
                    return True
                seen.add(state)
                if state[0] & made.last and any(two(state[1], c) for c in bits(atoms)):
                    return True
                waiting.append(state)
        return False


def _shifted(made: Automaton, by: int) -> Automaton:
    return Automaton(
        made.nullable,
        made.first << by,
        made.last << by,
        tuple(f << by for f in made.follow),
        made.atoms,
    )


def _row(one: Automaton, two: Automaton) -> Automaton:
    two = _shifted(two, len(one.atoms))
    follow = [f | (two.first if one.last >> i & 1 else 0) for i, f in enumerate(one.follow)]
    return Automaton(
        one.nullable and two.nullable,
        one.first | (two.first if one.nullable else 0),
        two.last | (one.last if two.nullable else 0),
        (*follow, *two.follow),
        one.atoms + two.atoms,
    )


def _either(one: Automaton, two: Automaton) -> Automaton:
    two = _shifted(two, len(one.atoms))
    return Automaton(
        one.nullable or two.nullable,
        one.first | two.first,
        one.last | two.last,
        one.follow + two.follow,
        one.atoms + two.atoms,
    )


def _looped(one: Automaton) -> Automaton:
    follow = tuple(f | (one.first if one.last >> i & 1 else 0) for i, f in enumerate(one.follow))
    return Automaton(one.nullable, one.first, one.last, follow, one.atoms)
