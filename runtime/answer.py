"""One request being answered: its tokens so far, and what a step's outputs make of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence as Items

from kinetic.errors import InternalError, KineticError
from kinetic.runtime.drafting import Drafter, FromBlock, accept
from kinetic.runtime.engine import Logits
from kinetic.runtime.logprobs import likeliest, logprobs
from kinetic.runtime.request import Counts, Finish, Listener, Reason, Request, Token
from kinetic.runtime.sequence import Sequence


class Answer:
    """A request on its way: queued, then running, then over.

    `tokens` are the prompt and the answer; those past the length of `sequence` have not been
    run. Running them is all there is to do, be they a prompt, a part of one, one token just
    drawn, or everything again after a step that broke off.
    """

    def __init__(self, request: Request, listener: Listener):
        self.request, self.listener = request, listener
        self.tokens = list(request.prompt)
        self.counts = Counts(prompt_tokens=len(self.tokens))
        self.reason: Reason | None = None
        self.error: Exception | None = None
        self.sequence: Sequence
        self.drafter: Drafter | None = None
        self.block: FromBlock | None = None
        """The source among the drafter's that must be told what the model made of each row."""
        self.pages = 0
        """Pages set aside for it."""
        self.alone = False
        """Whether a step it took part in broke off, so that its next one is its own."""
        self._cancelled = threading.Event()
        self._submitted = self._started = time.perf_counter()

    # -- for whoever asked ---------------------------------------------------------------
    def cancel(self) -> None:
        """End the answer within one step; from any thread, any number of times."""
        self._cancelled.set()

    # -- for the scheduler ---------------------------------------------------------------
    @property
    def left(self) -> int:
        """Tokens still to be run."""
        return len(self.tokens) - len(self.sequence)

    @property
    def room(self) -> int:
        """Tokens that the answer may still grow by, after the next one."""
        most = self.sequence.n_ctx - len(self.tokens)
        if self.request.max_tokens is not None:
            most = min(most, self.request.max_tokens - self.counts.generated_tokens - 1)
        return max(0, most)

    def begin(self, drafter: Drafter | None) -> None:
        """It has a slot from now on; `sequence` may hold a part of the prompt already."""
        now = time.perf_counter()
        self.counts.queue_seconds, self._started = now - self._submitted, now
        self.counts.cached_tokens = len(self.sequence)
        self.drafter = drafter
        self.request.sampler.accept_all(self.tokens)

    def interrupted(self) -> bool:
        """Whether it is to end at once, whatever it was doing; sets the reason."""
        if self.reason is None:
            deadline = self.request.deadline
            if self._cancelled.is_set():
                self.reason = "cancelled"
            elif deadline is not None and time.monotonic() > deadline:
                self.reason = "deadline"
        return self.reason is not None

    def ran(self) -> None:
        """Rows of it were run, and no output was wanted of them."""
        self._tell_prompt()

    def take(self, outputs: Items[Logits], chains: Items[Items[int]]) -> None:
        """Draw the next tokens; one at least, unless the answer is over.

        `outputs` are those of the last token and of the guesses after it, for each chain of
        guesses.
        """
        if self.counts.generated_tokens == 0:
            self.counts.prompt_seconds = time.perf_counter() - self._started
            self._started = time.perf_counter()
            self._tell_prompt()
            if self.request.max_tokens == 0:
                self.reason = "length"
        if self.interrupted():
            return
        self.counts.drafted += sum(map(len, chains))
        logits = outputs[0][0]

        def draw(chain: int, place: int) -> int:
            nonlocal logits
            logits = outputs[chain][place]
            return self._draw(logits)

        for place, token in enumerate(accept(chains, draw)):
            self.counts.accepted += place > 0
            self._append(token, logits)
            if self.reason is not None:
                return

    def fail(self, error: Exception) -> None:
        """It cannot go on."""
        self.reason, self.error = "error", error

    def finish(self) -> None:
        """Tell the listener how it ended; the last thing that happens to an answer."""
        error = self.error
        if error is not None and not isinstance(error, KineticError):
            error = InternalError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(Exception):  # nobody is left to tell
            self.listener.finish(Finish(self.reason or "cancelled", self.counts, error))

    # -- one token -----------------------------------------------------------------------
    def _draw(self, logits: Logits) -> int:
        request = self.request
        mask = None if request.constraint is None else request.constraint.mask()
        return request.sampler.sample(logits, self.counts.generated_tokens, mask)

    def _append(self, token: int, logits: Logits) -> None:
        """Take a drawn token into everything that follows the answer, and tell it."""
        request, counts = self.request, self.counts
        ends = token in request.end_ids
        request.sampler.accept(token)
        if request.constraint is not None and not ends:
            request.constraint.accept(token)
        self.tokens.append(token)
        if self.drafter is not None:
            self.drafter.push(self.tokens)
        counts.generated_tokens += 1
        counts.generate_seconds = time.perf_counter() - self._started
        stop = self.listener.token(self._described(token, logits))
        if ends:
            self.reason = "end"
        elif stop:
            self.reason = "stop"
        elif counts.generated_tokens == request.max_tokens:
            self.reason = "length"
        elif len(self.tokens) > self.sequence.n_ctx:
            self.reason = "context"
        else:
            self.interrupted()

    def _described(self, token: int, logits: Logits) -> Token:
        """The token with its log-probabilities, if they are asked for."""
        count = self.request.logprobs
        if count is None:
            return Token(token)
        logs = logprobs(logits)
        top = tuple((i, float(logs[i])) for i in likeliest(logits, count))
        return Token(token, float(logs[token]), top)

    def _tell_prompt(self) -> None:
        total = self.counts.prompt_tokens
        if self.counts.generated_tokens == 0:
            self.listener.prompt(min(len(self.sequence), total), total)
