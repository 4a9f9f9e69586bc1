"""Writes GBNF rules in the grammar library's own notation.

The library splits text into terminals greedily, each as long as can be, as compilers do; GBNF
knows no such split. Two forms are safe:

    a root without recursion     one terminal, a regular expression
    one with recursion           rules over terminals that greed cannot mislead, else over
                                 terminals of one character each
"""

from __future__ import annotations

from dataclasses import dataclass

from kinetic.errors import UsageError
from kinetic.text.grammar.gbnf_syntax import (
    ANY,
    Chars,
    Node,
    Ranges,
    Reference,
    Repeat,
    Sequence,
    references,
)
from kinetic.text.grammar.gbnf_terminals import Terminals, Tree

MAX_REGEX = 1 << 16
MAX_REGEX_DEPTH = 100
MAX_SIZE = 200_000
MAX_COMPARED = 4000
# The library walks rules by calling itself: 2,000 levels are right, and 4,000 its stack's end.
MAX_LEVELS = 800
MAX_RULES_SIZE = 20_000


def translated(rules: dict[str, Node]) -> str:
    """A grammar for the library.

    *Raises*: UsageError for one that grows too big.
    """
    order = _bottom_up(rules)
    _check_size(rules, order)
    if order is not None:
        regex = _regex(rules, order)
        if regex is not None:
            return f"start: text\ntext: /{regex}/\n"
    rules = {name: rules[name] for name in _reached(rules)}
    _check_rules(rules)
    return _with_terminals(rules) or _rules(rules)


def _bottom_up(rules: dict[str, Node]) -> list[str] | None:
    """The rules that root needs, each after those it names; None if one needs itself."""
    order: list[str] = []
    path = [("root", references(rules["root"]))]
    open_, done = {"root"}, set[str]()
    while path:
        name, following = path[-1]
        after = next((n for n in following if n not in done), None)
        if after is None:
            path.pop()
            open_.discard(name)
            done.add(name)
            order.append(name)
        elif after in open_:
            return None
        else:
            open_.add(after)
            path.append((after, references(rules[after])))
    return order


def _check_size(rules: dict[str, Node], order: list[str] | None) -> None:
    """Refuse what its counts blow up; rules that recurse count as one where they are named."""
    sizes: dict[str, int] = dict.fromkeys(rules, 1)
    total = 0
    for name in order or rules:
        size = _size(rules[name], sizes)
        total += size
        if order is not None:
            sizes[name] = size
        if size > MAX_SIZE or (order is None and total > MAX_SIZE):
            raise UsageError(
                f"the grammar's rule {name} has more than {MAX_SIZE} characters with its counts "
                "written out; use smaller counts"
            )


def _reached(rules: dict[str, Node]) -> list[str]:
    """The rules that root needs, in the order of the grammar."""
    found, waiting = {"root"}, ["root"]
    while waiting:
        for name in references(rules[waiting.pop()]):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return [name for name in rules if name in found]


def _check_rules(rules: dict[str, Node]) -> None:
    """Refuse what is too much for rules, though it may be right for one expression."""
    if sum(1 + _depth(body) for body in rules.values()) > MAX_LEVELS:
        raise UsageError(
            f"the grammar's rules and parentheses have more than {MAX_LEVELS} levels, too many for "
            "one that recurses or nests; use fewer rules"
        )
    if sum(_size(body, dict.fromkeys(rules, 1)) for body in rules.values()) > MAX_RULES_SIZE:
        raise UsageError(
            f"the grammar has more than {MAX_RULES_SIZE} characters with its counts written out, "
            "too many for one that recurses or is so long; use smaller counts"
        )


def _depth(node: Node) -> int:
    if isinstance(node, Chars | Reference):
        return 0
    if isinstance(node, Repeat):
        return 1 + _depth(node.part)
    return 1 + max((_depth(part) for part in node.parts), default=0)


def _size(node: Node, sizes: dict[str, int]) -> int:
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Reference):
        return sizes[node.name]
    if isinstance(node, Repeat):
        return 1 + _size(node.part, sizes) * max(1, node.least, node.most or 0)
    return sum(_size(part, sizes) for part in node.parts)


@dataclass(frozen=True)
class _Regex:
    """Text, its nesting, and how tight it binds: 0 a choice, 1 a sequence, 2 one piece."""

    text: str
    binds: int
    depth: int

    def at(self, binds: int) -> str:
        """The text where something that binds so tight is needed."""
        return self.text if self.binds >= binds else f"(?:{self.text})"


def _regex(rules: dict[str, Node], order: list[str]) -> str | None:
    """One expression for root; None if it would be too long or deep."""
    made: dict[str, _Regex] = {}
    for name in order:
        regex = _regex_of(rules[name], made)
        if len(regex.text) > MAX_REGEX or regex.depth > MAX_REGEX_DEPTH:
            return None
        made[name] = regex
    return made["root"].text


def _regex_of(node: Node, made: dict[str, _Regex]) -> _Regex:
    if isinstance(node, Chars):
        return _Regex(class_text(node.ranges), 2, 0)
    if isinstance(node, Reference):
        return made[node.name]
    if isinstance(node, Repeat):
        part = _regex_of(node.part, made)
        return _Regex(part.at(2) + _count(node), 1, part.depth + 1)
    parts = [_regex_of(p, made) for p in node.parts]
    depth = 1 + max((p.depth for p in parts), default=0)
    if isinstance(node, Sequence):
        return _Regex("".join(p.at(1) for p in parts) or "(?:)", 1, depth)
    return _Regex("|".join(p.text for p in parts), 0, depth)


def class_text(ranges: Ranges) -> str:
    """A regular expression of one character out of these."""
    if ranges == ANY:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    return f"[{''.join(_char(a) + (f'-{_char(b)}' if b > a else '') for a, b in ranges)}]"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def _count(node: Repeat) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (node.least, node.most) in known:
        return known[node.least, node.most]
    most = "" if node.most is None else node.most
    return f"{{{node.least}}}" if node.least == node.most else f"{{{node.least},{most}}}"


def _with_terminals(rules: dict[str, Node]) -> str | None:
    """Rules over terminals of many characters; None where none are safe, or it takes too long."""
    if sum(_size(body, dict.fromkeys(rules, 1)) for body in rules.values()) > MAX_COMPARED:
        return None
    regular = _regular(rules)
    made: dict[str, _Regex] = {}
    for name in regular:
        made[name] = _regex_of(rules[name], made)
        if len(made[name].text) > MAX_REGEX or made[name].depth > MAX_REGEX_DEPTH:
            return None
    terminals = Terminals(rules, regular)
    if not terminals.find():
        return None
    names: dict[str, str] = {}
    lines: list[str] = []

    def written(tree: Tree) -> str:
        if tree.kind == "leaf":
            assert tree.leaf is not None
            text = _regex_of(tree.leaf.node, made).text
            optional = terminals.nullable(tree.leaf.node)
            key = f"/{text}/ & /[\\s\\S]+/" if optional else f"/{text}/"
            if key not in names:
                names[key] = f"T{len(names)}"
                lines.append(f"{names[key]}: {key}")
            return names[key] + ("?" if optional else "")
        if tree.kind == "rule":
            return rule_names[tree.name]
        if tree.kind == "repeat":
            assert tree.node is not None
            return f"({written(tree.parts[0])}){_count(tree.node)}"
        parts = [written(part) for part in tree.parts]
        if tree.kind == "row":
            return " ".join(parts) if parts else '""'
        return f"({' | '.join(parts)})"

    rule_names = {name: f"r{i}" for i, name in enumerate(terminals.trees)}
    body = [f"{rule_names[name]}: {written(tree)}" for name, tree in terminals.trees.items()]
    return "\n".join([f"start: {rule_names['root']}", *body, *lines]) + "\n"


def _regular(rules: dict[str, Node]) -> list[str]:
    """The rules without recursion, each after those it names."""
    needs = {name: set(references(body)) for name, body in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    ready = [name for name, needed in needs.items() if not needed]
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        for user in users[name]:
            needs[user].discard(name)
            if not needs[user]:
                ready.append(user)
    return order


def _rules(rules: dict[str, Node]) -> str:
    names = {name: f"r{i}" for i, name in enumerate(rules)}
    terminals: dict[Ranges, str] = {}
    lines = [f"start: {names['root']}"]
    for name, body in rules.items():
        lines.append(f"{names[name]}: {_rule(body, names, terminals)}")
    lines += [f"T{i}: /{class_text(ranges)}/" for i, ranges in enumerate(terminals)]
    return "\n".join(lines) + "\n"


def _rule(node: Node, names: dict[str, str], terminals: dict[Ranges, str]) -> str:
    if isinstance(node, Chars):
        return terminals.setdefault(node.ranges, f"T{len(terminals)}")
    if isinstance(node, Reference):
        return names[node.name]
    if isinstance(node, Repeat):
        return f"({_rule(node.part, names, terminals)}){_count(node)}"
    parts = [_rule(p, names, terminals) for p in node.parts]
    if isinstance(node, Sequence):
        return " ".join(parts) if parts else '""'
    return f"({' | '.join(parts)})"
