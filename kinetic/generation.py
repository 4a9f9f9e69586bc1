"""An answer under way, as text: what servers and the chat build on.

    generation = model.start(GenerationRequest(prompt_ids, params), on_event=queue.put)
    for event in generation.events():      # or hear of them through `on_event`
        ...
    generation.cancel()                    # from any thread

Events are `TextEvent`s, a token each, and one `FinishEvent` at the end. Text that may be the
beginning of a stop text is held back until that is known.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kinetic.errors import KineticError
from kinetic.runtime.request import Counts, Finish, Reason, Ticket, Token
from kinetic.runtime.sampling import SamplingParams
from kinetic.text.detokenizer import StreamDecoder
from kinetic.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kinetic.runtime.sampling.constraint import Constraint


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate. `choice` numbers the answers of one request (`n` > 1); `logprobs`,
    `constraint`, `salt`, `deadline` and `ahead` as in `runtime.request.Request`."""

    prompt_ids: Items[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choice: int = 0
    logprobs: int | None = None
    constraint: Constraint | None = None
    salt: str = ""
    deadline: float | None = None
    ignore_eos: bool = False
    shown: frozenset[int] = frozenset()
    """Control tokens whose text is part of the answer's, for those who read markup in it."""
    ahead: bool = False


@dataclass(frozen=True)
class TextEvent:
    """A token and the text it completes (empty inside a character or a possible stop text).

    `token` is None for text that was held back and comes free at the end.
    """

    text: str
    token: Token | None


@dataclass(frozen=True)
class PromptEvent:
    """So many tokens of the prompt have been run."""

    done: int
    total: int


@dataclass(frozen=True)
class FinishEvent:
    """The end. `stop_text` is the stop text that was found, `seed` the one in use."""

    reason: Reason
    counts: Counts
    seed: int
    stop_text: str | None = None
    error: KineticError | None = None


Event = TextEvent | PromptEvent | FinishEvent


class Generation:
    """One answer under way; the listener of its request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Items[str],
        end_ids: frozenset[int],
        seed: int,
        on_event: Callable[[Event], None] | None = None,
        shown: frozenset[int] = frozenset(),
    ):
        self.seed = seed
        self._decoder = _decoder(tokenizer, shown)
        self._held, self._ends = StopText(stop), end_ids
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._emit = on_event or self._queue.put
        self.ticket: Ticket | None = None

    def events(self) -> Iterator[Event]:
        """The events, to the end; waits for them. Leaving early cancels the answer, and waits
        until its memory is given back."""
        event: Event | None = None
        try:
            while not isinstance(event, FinishEvent):
                event = self._queue.get()
                yield event
        finally:
            self.cancel()
            while not isinstance(event, FinishEvent):
                event = self._queue.get()

    def cancel(self) -> None:
        """End the answer within one step."""
        if self.ticket is not None:
            self.ticket.cancel()

    # -- runtime.request.Listener, on the engine's thread --------------------------------
    def prompt(self, done: int, total: int) -> None:
        """Part of the prompt has been run."""
        self._emit(PromptEvent(done, total))

    def token(self, token: Token) -> bool:
        """One more token; whether a stop text is complete."""
        if token.id in self._ends:
            self._emit(TextEvent("", token))
            return False
        self._emit(TextEvent(self._held.push(self._decoder.push(token.id)), token))
        return self._held.found is not None

    def finish(self, finish: Finish) -> None:
        """The answer is over."""
        if finish.reason != "stop":
            rest = self._held.push(self._decoder.flush()) + self._held.flush()
            if rest:
                self._emit(TextEvent(rest, None))
        self._emit(
            FinishEvent(finish.reason, finish.counts, self.seed, self._held.found, finish.error)
        )


def _decoder(tokenizer: Tokenizer, shown: frozenset[int]) -> StreamDecoder:
    if not shown:
        return tokenizer.stream_decoder()

    def spell(token: int) -> bytes:
        return tokenizer.token_bytes(token) if token in shown else tokenizer.shown_bytes(token)

    return StreamDecoder(spell)


class StopText:
    """Holds text back while it may be the beginning of a stop text."""

    def __init__(self, stops: Items[str]):
        self._stops = [s for s in stops if s]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Text that is safe to show now; `found` is set once a stop text appeared."""
        if not self._stops:
            return text
        self._held += text
        hits = [(at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if hits:
            at, self.found = min(hits)
            shown, self._held = self._held[:at], ""
            return shown
        keep = max(
            n for s in self._stops for n in range(len(s)) if n == 0 or self._held.endswith(s[:n])
        )
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What is still held when the answer ends."""
        held, self._held = self._held, ""
        return held
