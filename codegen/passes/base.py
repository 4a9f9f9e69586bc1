"""A pass: named data with a sentence, a picture and the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinetic.ir.graph import Graph
from kinetic.ir.rewrite import Rule, rewrite


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline: graph in, equal graph out.

    `before` and `after` show the change on the smallest example; `run` makes it. Every
    pass keeps every word: the reference gives the same outputs before and after.
    """

    name: str
    sentence: str
    before: str
    after: str
    run: Callable[[Graph], Graph]


def rules_pass(name: str, sentence: str, before: str, after: str, rules: Sequence[Rule]) -> Pass:
    """A pass that is one walk of rewrite rules."""
    return Pass(name, sentence, before, after, lambda graph: rewrite(graph, rules))
