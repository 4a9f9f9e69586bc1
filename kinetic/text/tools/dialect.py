"""What a template's way of writing tool calls must tell: where a call begins and what it says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from kinetic.text.held_text import first_marker, partial_marker
from kinetic.text.tools.tool import Tool

if TYPE_CHECKING:
    from kinetic.text.tools.call_grammar import CallGrammar

End = Literal["stop", "length"]
"""How the text ended: by the model's wish, or cut."""


@dataclass(frozen=True)
class Call:
    """A call as it was written; `arguments` is valid JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Region:
    """The first `length` characters are these calls, or plain text if there are none."""

    length: int
    calls: tuple[Call, ...] = ()


class Dialect(ABC):
    """One way of writing calls.

    `openers` are texts that may begin a call; `markers` all markup that the reader must see even
    where the vocabulary has it as control tokens.
    """

    name: ClassVar[str]
    openers: ClassVar[tuple[str, ...]]
    markers: ClassVar[tuple[str, ...]]

    @classmethod
    def of(cls, template: str) -> Self:
        """The dialect as one template has it."""
        return cls()

    def find(self, text: str, tools: Sequence[Tool], at_start: bool) -> tuple[int, bool]:
        """Where a call may begin: its place and True, or how much is surely text and False.

        `at_start`: nothing but white space came before.
        """
        found = first_marker(text, self.openers)
        if found is not None:
            return found[0], True
        return len(text) - partial_marker(text, self.openers), False

    @abstractmethod
    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """What `text`, which begins with an opener, holds; None while more is needed.

        `seen` characters were there at the last call. With `end` nothing more comes. An answer
        once given must not depend on what follows it.
        """

    @abstractmethod
    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """What a grammar has to say for calls of these tools: one, or if `parallel` more.

        *Raises*: UsageError for a strict tool that cannot be held to its schema.
        """

    def offer(self, grammar: CallGrammar, tools: Sequence[Tool]) -> str:
        """What a grammar has to say where calls may stand in a text, and be held there.

        *Raises*: UsageError as `write`.
        """
        lead = grammar.up_to(self.openers[0], self.openers)
        call = self.write(grammar, tools, False)
        return f"({lead} {call})* {grammar.without(self.openers)}"


def arrived(text: str, closer: str, seen: int) -> bool:
    """Whether `closer` has come with the newest text; spares reading a long call anew each time."""
    return text.find(closer, max(0, seen - len(closer) + 1)) >= 0
