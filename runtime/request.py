"""What the scheduler is asked for, and what it tells while it works.

    request = Request(prompt, sampler, end_ids=..., max_tokens=...)
    ticket = scheduler.submit(request, listener)      # returns at once
    listener.token(Token(...)) ... listener.finish(Finish(...))   # on the engine's thread

Token ids only: text, stop texts, reasoning and tools are the business of storeys above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from kinetic.errors import KineticError
from kinetic.runtime.sampling import Sampler

if TYPE_CHECKING:
    from kinetic.runtime.sampling.constraint import Constraint

Reason = Literal["end", "stop", "length", "context", "cancelled", "deadline", "error"]
"""Why an answer ended: an end token, the listener's wish, `max_tokens`, a full context, ..."""


@dataclass(frozen=True, eq=False)
class Request:
    """One answer to one prompt.

    `sampler` is fresh: the scheduler feeds it the prompt. `logprobs`: None, or how many of the
    likeliest tokens to report beside each token, 0 for the token's own log-probability alone.
    `salt` separates users: prompt states and drafts are shared only between equal salts.
    `deadline` is a `time.monotonic()` after which the answer ends.

    `ahead` runs a prompt that is still being written, with `max_tokens` 0: only while no other
    request wants the engine, a batch at a time. It ends with `cancelled` where another one needs
    its slot or pages. What it has run stays in the prompt cache, so a longer prompt, asked for
    ahead again or in earnest, goes on from there.
    """

    prompt: Sequence[int]
    sampler: Sampler
    end_ids: frozenset[int]
    max_tokens: int | None = None
    logprobs: int | None = None
    constraint: Constraint | None = None
    salt: str = ""
    deadline: float | None = None
    ahead: bool = False


@dataclass(frozen=True)
class Token:
    """A token of the answer. Log-probabilities are of the raw logits, natural logarithm."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Counts:
    """What an answer cost. *Units*: tokens and seconds.

    `cached_tokens` of the prompt were not computed again; `drafted` tokens were guessed ahead,
    and `accepted` of them were right.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prompt_seconds: float = 0.0
    generate_seconds: float = 0.0
    queue_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Finish:
    """The end of an answer; `error` says what went wrong where the reason is `error`."""

    reason: Reason
    counts: Counts = field(default_factory=Counts)
    error: KineticError | None = None


class Listener(Protocol):
    """Hears of an answer, on the engine's thread: it must be quick and must not raise."""

    def prompt(self, done: int, total: int) -> None:
        """So many tokens of the prompt have been run."""

    def token(self, token: Token) -> bool:
        """One more token, the end token included; True ends the answer with `stop`."""

    def finish(self, finish: Finish) -> None:
        """The last call."""


class Ticket(Protocol):
    """A submitted request."""

    def cancel(self) -> None:
        """End the answer within one step; from any thread, any number of times."""
