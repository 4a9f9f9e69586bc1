"""Zero Wait: the part of a prompt that stays is run on the model while the rest is typed.

    ahead = RunAhead(session)
    ahead.typed("Hello wor")     # with every change; returns at once
    ahead.stop()                 # the message is complete: its answer comes next

A request that asks for no token fills the prompt cache, and the answer starts behind it. It is
started once enough tokens are new to fill a batch, or the person pauses, and ended when the
text changes under it.
"""

from __future__ import annotations

import threading

from kinetic.cli.chat.session import Session
from kinetic.errors import KineticError
from kinetic.generation import Event, Generation, GenerationRequest

BATCH = 32
"""New tokens that are worth a step while the person goes on typing."""
PAUSE = 0.35
"""Seconds without a change after which any new token is."""


class RunAhead:
    """Follows one message as it is typed, on a thread of its own."""

    def __init__(self, session: Session, *, batch: int = BATCH, pause: float = PAUSE):
        self._session, self._batch, self._pause = session, batch, pause
        self._change = threading.Condition()
        self._text: str | None = None
        self._over = False
        self._running: Generation | None = None
        self._ids: list[int] = []
        """What is known to the prompt cache, or about to be."""
        self.requests = 0
        self._thread = threading.Thread(target=self._follow, name="kinetic-ahead", daemon=True)
        self._thread.start()

    def typed(self, text: str) -> None:
        """The message as it is now."""
        with self._change:
            self._text = text
            self._change.notify()

    def stop(self) -> None:
        """End what is running; nothing is started any more."""
        with self._change:
            self._over = True
            if self._running is not None:
                self._running.cancel()
            self._change.notify()
        self._thread.join()

    def _follow(self) -> None:
        paused: str | None = None
        while True:
            with self._change:
                if self._text is None and paused is None:
                    self._change.wait_for(lambda: self._over or self._text is not None)
                elif self._text is None:
                    self._change.wait_for(
                        lambda: self._over or self._text is not None, timeout=self._pause
                    )
                if self._over:
                    return
                text, self._text = self._text, None
            if text is not None:
                self._start(text, self._batch)
                paused = text
            elif paused is not None:
                self._start(paused, 1)
                paused = None

    def _start(self, text: str, enough: int) -> None:
        try:
            ids = self._session.conversation.prompt_so_far(text)
            same = _common(ids, self._ids)
            with self._change:
                if self._over:
                    return
                if same < len(self._ids) and self._running is not None:
                    self._running.cancel()  # the text it runs is no longer there
                if len(ids) - same < enough:
                    return
                request = GenerationRequest(ids, max_tokens=0, ahead=True)
                self._running = self._session.model.start(request, on_event=_ignore)
                self._ids, self.requests = ids, self.requests + 1
        except KineticError:
            return  # the answer will say it, if the message stays like that


def _common(one: list[int], two: list[int]) -> int:
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))


def _ignore(event: Event) -> None:
    pass
