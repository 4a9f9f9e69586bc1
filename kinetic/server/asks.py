"""A request of any dialect, as what the engine is to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kinetic.generation import GenerationRequest
from kinetic.receipts.held import Held
from kinetic.runtime.request import Token
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.sampling.constraint import Constraint
from kinetic.text.events import OutputEvent, Text
from kinetic.text.tools import End


class Parser(Protocol):
    """Splits an answer's text into text, reasoning and calls."""

    def push(self, text: str) -> list[OutputEvent]:
        """What more text makes certain."""

    def flush(self, end: End) -> list[OutputEvent]:
        """What is left; `end` is `stop` or `length`."""

    @property
    def complete(self) -> bool:
        """Whether all that is wanted is there already."""


class PlainParser:
    """All of an answer is text."""

    def push(self, text: str) -> list[OutputEvent]:
        """The text itself."""
        return [Text(text)]

    def flush(self, end: End) -> list[OutputEvent]:
        """Nothing is held back."""
        return []

    @property
    def complete(self) -> bool:
        """There may always be more."""
        return False


@dataclass(frozen=True)
class Ask:
    """What to generate, `n` times over; each answer gets its own parser and constraint."""

    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    salt: str = ""
    ignore_eos: bool = False
    ahead: bool = False
    """Whether only the prompt is run, while nobody else wants the engine."""
    new_parser: Callable[[], Parser] = PlainParser
    new_constraint: Callable[[], Constraint] | None = None
    shown: frozenset[int] = frozenset()
    """Control tokens that the parser must see."""
    prompt_scores: tuple[Token, ...] = ()
    """The prompt's tokens with their log-probabilities, where they are asked for."""
    receipt: bool = False
    """Whether the answer gets a receipt, which records these two:"""
    given: object = None
    held: Held | None = None

    def generation(self, choice: int) -> GenerationRequest:
        """One of the answers, as the engine is asked for it."""
        return GenerationRequest(
            prompt_ids=self.prompt_ids,
            params=self.params,
            max_tokens=self.max_tokens,
            stop=self.stop,
            choice=choice,
            logprobs=self.logprobs,
            constraint=None if self.new_constraint is None else self.new_constraint(),
            salt=self.salt,
            ahead=self.ahead,
            ignore_eos=self.ignore_eos,
            shown=self.shown,
        )
