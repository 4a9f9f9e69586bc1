"""Answers under way as one asyncio stream of neutral events, whatever dialect tells them.

    async with await Answers.start(service, ask) as answers:
        async for event in answers:       # Piece, Progress, Finish; Quiet when nothing comes

The engine's thread hands its events over with `call_soon_threadsafe` and never waits. Leaving
the block ends what still runs within one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from kinetic import generation
from kinetic.errors import KineticError
from kinetic.receipts.make import Heard
from kinetic.runtime.request import Counts, Token
from kinetic.server.errors import cut_off, from_kinetic
from kinetic.text.events import OutputEvent, Reasoning, Text, ToolArguments, ToolCallStart

if TYPE_CHECKING:
    from kinetic.server.asks import Ask
    from kinetic.server.service import Service

log = logging.getLogger("kinetic.server")
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class Piece:
    """Part of an answer; `tokens` are those that came since the last piece."""

    choice: int
    what: OutputEvent
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Progress:
    """So much of a prompt has been run."""

    choice: int
    done: int
    total: int


@dataclass(frozen=True)
class Finish:
    """The end of one choice; `stop_text` is the stop text that ended it, if one did."""

    choice: int
    reason: FinishReason
    counts: Counts
    seed: int
    tokens: tuple[Token, ...] = ()
    stop_text: str | None = None
    ended: bool = False
    """Whether the model itself ended its answer."""


@dataclass(frozen=True)
class Quiet:
    """Nothing came for a while: time to tell the client that the server is alive."""


Event = Piece | Progress | Finish | Quiet


@dataclass
class Call:
    """A whole tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Whole:
    """One choice, gathered."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def reason(self) -> FinishReason:
        """Why it ended."""
        return self.finish.reason if self.finish is not None else "cancelled"

    @property
    def counts(self) -> Counts:
        """What it cost."""
        return self.finish.counts if self.finish is not None else Counts()

    def add(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, Piece):
            self.tokens += event.tokens
            what = event.what
            if isinstance(what, Text):
                self.text += what.text
            elif isinstance(what, Reasoning):
                self.reasoning += what.text
            elif isinstance(what, ToolCallStart):
                self.calls.append(Call(what.id, what.name))
            elif isinstance(what, ToolArguments):
                self.calls[what.index].arguments += what.delta
        elif isinstance(event, Finish):
            self.tokens += event.tokens
            self.finish = event


class _Choice:
    """One generation, its text parsed into pieces."""

    def __init__(self, index: int, ask: Ask, end_ids: frozenset[int]) -> None:
        self.index, self._ahead = index, ask.ahead
        self._parser = ask.new_parser()
        self._end_ids = end_ids
        self._tokens: list[Token] = []
        self._called = False
        self.complete = False
        self.heard = Heard()

    def take(self, event: generation.Event) -> list[Event]:
        """The neutral events of one of the engine's.

        Raises: ApiError where the engine failed or the answer was cut off.
        """
        self.heard.take(event)
        if isinstance(event, generation.PromptEvent):
            return [Progress(self.index, event.done, event.total)]
        if isinstance(event, generation.TextEvent):
            if event.token is not None and event.token.id not in self._end_ids:
                self._tokens.append(event.token)
            if not event.text or self.complete:
                return []
            out = self._pieces(self._parser.push(event.text))
            self.complete = self._parser.complete
            return out
        return self._finish(event)

    def _pieces(self, found: list[OutputEvent]) -> list[Event]:
        out: list[Event] = []
        for what in found:
            self._called = self._called or isinstance(what, ToolCallStart)
            out.append(Piece(self.index, what, self._take_tokens()))
        return out

    def _finish(self, event: generation.FinishEvent) -> list[Event]:
        if event.error is not None:
            log.error("the engine failed on a request: %s", event.error)
            raise from_kinetic(event.error)
        ended = event.reason in ("end", "stop") or self.complete
        if event.reason == "cancelled" and not ended and not self._ahead:
            raise cut_off()
        out = self._pieces(self._parser.flush("stop" if ended else "length"))
        reason: FinishReason = "length"
        if ended:
            reason = "tool_calls" if self._called else "stop"
        elif event.reason == "cancelled":
            reason = "cancelled"  # a prompt that was run ahead made way
        tokens = self._take_tokens()
        out.append(
            Finish(
                *(self.index, reason, event.counts, event.seed, tokens),
                stop_text=event.stop_text,
                ended=event.reason == "end",
            )
        )
        return out

    def _take_tokens(self) -> tuple[Token, ...]:
        tokens, self._tokens = tuple(self._tokens), []
        return tokens


class Answers:
    """The answers to one request, `ask.n` of them."""

    def __init__(self, service: Service, ask: Ask) -> None:
        self.service, self.ask = service, ask
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, generation.Event]] = asyncio.Queue()
        ends = frozenset(service.model.tokenizer.end_ids)
        self._choices = [_Choice(i, ask, ends) for i in range(ask.n)]
        self._generations: list[generation.Generation] = []
        self._running = ask.n
        self._closed = False
        self.record = service.slots.open(ask)

    @classmethod
    async def start(cls, service: Service, ask: Ask) -> Answers:
        """Begin the answers; a prompt that is run ahead makes way for any other.

        Raises: ApiError where the request cannot be served.
        """
        service.refuse_if_stopping()
        service.need_text_model()
        if service.ahead is not None:
            service.ahead.close()
        answers = cls(service, ask)
        service.ahead = answers if ask.ahead else None
        service.answers.add(answers)
        try:
            for i in range(ask.n):
                request = ask.generation(i)
                started = await asyncio.to_thread(
                    service.model.start, request, partial(answers._hear, i)
                )
                answers._generations.append(started)
        except BaseException as error:
            answers.close()
            answers._ended()
            if isinstance(error, KineticError):
                raise from_kinetic(error) from error
            raise
        return answers

    # On the engine's thread.
    def _hear(self, choice: int, event: generation.Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._arrive, choice, event)

    def _arrive(self, choice: int, event: generation.Event) -> None:
        self.record.take(choice, event)
        if isinstance(event, generation.FinishEvent):
            self._running -= 1
            self.service.metrics.count(event)
            if self._running <= 0:
                self._ended()
        self._queue.put_nowait((choice, event))

    def _ended(self) -> None:
        self.record.close()
        self.service.answers.discard(self)

    def close(self) -> None:
        """End what still runs; at once, and any number of times."""
        self._closed = True
        for running in self._generations:
            running.cancel()

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events, to the end of the last choice.

        Raises: ApiError where the engine failed or the answer was cut off.
        """
        left = len(self._choices)
        while left:
            try:
                async with asyncio.timeout(self.service.options.keep_alive):
                    choice, event = await self._queue.get()
            except TimeoutError:
                yield Quiet()
                continue
            one = self._choices[choice]
            for made in one.take(event):
                left -= isinstance(made, Finish)
                yield made
            if one.complete and choice < len(self._generations):
                self._generations[choice].cancel()

    def heard(self, choice: int) -> Heard:
        """All tokens and text of a choice so far, unparsed."""
        return self._choices[choice].heard

    async def whole(self) -> list[Whole]:
        """All choices, gathered.

        Raises: ApiError where the engine failed or the answer was cut off.
        """
        out = [Whole() for _ in self._choices]
        async for event in self:
            if isinstance(event, Piece | Finish):
                out[event.choice].add(event)
        return out
