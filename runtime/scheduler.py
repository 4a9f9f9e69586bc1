"""The scheduler: requests in, tokens out, on one thread of its own.

    admit     give free slots to those who wait longest
    choose    the next token of every answer and its guesses, then chunks of prompts
    step      one pass over the weights for all of them
    emit      draw, verify, tell
    retire    give back what finished answers held

What a row computes does not depend on its neighbours, so who shares a step with whom changes
when an answer comes, never what it says.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from kinetic.errors import ContextError, QueueFull, UsageError
from kinetic.ir.program import Program
from kinetic.runtime.answer import Answer
from kinetic.runtime.drafting import (
    Draft,
    Drafter,
    Earlier,
    FromBlock,
    FromContext,
    PredictionBlock,
    Source,
    StepCost,
    draft_lengths,
)
from kinetic.runtime.drafting.block import Vectors
from kinetic.runtime.engine import Engine, Logits, Work
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.request import Listener, Request
from kinetic.runtime.sequence import Sequence

CHUNK = 64
"""Rows of prompts in a step beside answers under way: what those wait for at most."""
BRANCHES = 2
"""Branches of guesses, where sources disagree."""
_FORK_PAGES = 3
"""Pages that a branch takes at most: a copied one, and those its guesses reach into."""
DRAFTING, SHARED_STEPS = "rad1", "convoy"
"""What may be turned off."""
T = TypeVar("T")


@dataclass(frozen=True)
class _Turn:
    """What an answer runs in one step: one work, or one for each of several branches of
    guesses. `chains` are the guesses at the works' ends."""

    answer: Answer
    works: list[Work]
    chains: list[list[int]] = field(default_factory=lambda: [[]])


class Scheduler:
    """Runs up to `parallel` requests at once; more wait, up to `queue_limit` of them.

    `off` names what is not to be used: `rad1` (guesses), `convoy` (steps that requests share).
    `cache` keeps what prompts left behind for those that begin alike; it is used on the
    scheduler's thread alone, and closed with it. `block` is the model's own prediction block,
    with pages for as many whole contexts as requests run at once.

    *Raises* `UsageError` for more requests at once than a step can answer.
    """

    def __init__(
        self,
        engine: Engine,
        parallel: int = 1,
        queue_limit: int | None = None,
        *,
        off: Collection[str] = (),
        cache: PromptCache | None = None,
        block: PredictionBlock | None = None,
    ):
        most = engine.device.program.max_outputs
        if not 1 <= parallel <= most:
            raise UsageError(f"{parallel} requests cannot run at once; give --parallel 1 to {most}")
        self.engine, self.parallel, self.queue_limit, self.off = engine, parallel, queue_limit, off
        self._change = threading.Condition()
        self._queue: deque[Answer] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._active: list[Answer] = []
        self._closing = False
        self._cost, self._earlier, self._cache = StepCost(), Earlier(), cache
        self._block = None if DRAFTING in off else block
        self._thread = threading.Thread(target=self._loop, name="kinetic-engine", daemon=True)
        self._thread.start()

    # -- from any thread -----------------------------------------------------------------
    def submit(self, request: Request, listener: Listener) -> Answer:
        """Queue a request; its listener hears of it on the engine's thread.

        *Raises* `ContextError` where the prompt can never fit, `QueueFull` where too many wait,
        `UsageError` for a prompt without tokens.
        """
        if not request.prompt:
            raise UsageError("the prompt has no tokens; give some text")
        answer = Answer(request, listener)
        answer.pages = self._pages_for(request)
        with self._change:
            if self._closing:
                raise UsageError("the model is closed; load it again")
            earnest = sum(not other.request.ahead for other in (*self._queue, *self._active))
            waiting, limit = earnest - self.parallel, self.queue_limit
            if limit is not None and waiting >= limit and not request.ahead:
                raise QueueFull(
                    f"{_are(self.parallel, 'request')} running and {_are(limit)} waiting, "
                    "which is as many as may; try again later, or raise --parallel"
                )
            self._queue.append(answer)
            self._change.notify()
        return answer

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, run on the engine's thread between two steps: for work
        that uses the engine beside requests."""
        if threading.current_thread() is self._thread:
            return function()
        done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((function(), None))
            except BaseException as error:
                done.put((None, error))

        with self._change:
            if self._closing:
                raise UsageError("the model is closed; load it again")
            self._calls.append(run)
            self._change.notify()
        result, error = done.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def close(self, *, cancel: bool = False) -> None:
        """Finish what is queued, or end it with `cancel`, and stop the thread."""
        with self._change:
            self._closing = True
            if cancel:
                for answer in (*self._queue, *self._active):
                    answer.cancel()
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def draft(self) -> Program | None:
        """The program of the prediction block, where one guesses."""
        return None if self._block is None else self._block.device.program

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def free_pages(self) -> int:
        """Pages that answers may take: those nobody holds, or only the prompt cache."""
        kept = 0 if self._cache is None else self._cache.spare_pages
        return self.engine.pages.available + kept

    def _pages_for(self, request: Request) -> int:
        """Pages to set aside for a request.

        *Raises* `ContextError` where it can never fit.
        """
        n_ctx, prompt, pages = self.engine.n_ctx, len(request.prompt), self.engine.pages
        if prompt > n_ctx:
            raise ContextError(
                f"the prompt has {prompt} tokens and the context holds {n_ctx}; shorten it or "
                "raise -c"
            )
        if Engine.pages_for(prompt) > pages.total:
            raise ContextError(
                f"the prompt has {prompt} tokens and the cache holds {pages.positions}; shorten "
                "it or raise -c"
            )
        longest = n_ctx if request.max_tokens is None else min(n_ctx, prompt + request.max_tokens)
        return min(Engine.pages_for(longest), pages.total)

    # -- the engine's thread -------------------------------------------------------------
    def _loop(self) -> None:
        while self._wait():
            try:
                self._admit()
                for turns in self._choose():
                    self._step(turns)
            except Exception as error:  # a bug: whoever was there is told, others may come
                for answer in self._active:
                    answer.fail(error)
            self._retire()
        if self._cache is not None:
            self._cache.close()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False once closed and done."""
        while True:
            more = self._cache is not None and self._cache.save_some()
            with self._change:
                if self._active or self._queue or self._calls:
                    return True
                if self._closing:
                    return False
                if not more:
                    self._change.wait()

    def _admit(self) -> None:
        while self._calls:
            self._calls.popleft()()
        with self._change:
            over = [answer for answer in self._queue if answer.interrupted()]
            for answer in over:
                self._queue.remove(answer)
            # Those that run ahead come last, and make room for everybody else.
            self._queue = deque(sorted(self._queue, key=lambda answer: answer.request.ahead))
            begun = []
            while self._queue and self._fits(self._queue[0]):
                begun.append(self._queue.popleft())
                self._active.append(begun[-1])
            if self._queue and not self._queue[0].request.ahead:
                for answer in self._active:
                    if answer.request.ahead:
                        answer.cancel()
        for answer in over:
            answer.finish()
        for answer in begun:
            answer.sequence = self.engine.new_sequence()
            try:
                if self._cache is not None:
                    self._cache.restore(answer.sequence, answer.tokens, answer.request.salt)
                answer.begin(self._drafter(answer))
            except Exception as error:
                answer.fail(error)

    def _fits(self, answer: Answer) -> bool:
        taken = sum(other.pages for other in self._active)
        enough = taken + answer.pages <= self.engine.pages.total
        return len(self._active) < self.parallel and enough

    def _choose(self) -> list[list[_Turn]]:
        """The steps to take next: one for all, but for those who must be alone."""
        going = [answer for answer in self._active if not answer.interrupted()]
        earnest = [answer for answer in going if not answer.request.ahead]
        going = earnest or going
        decoding = [answer for answer in going if answer.left == 1]
        limit = self.engine.device.program.max_rows - len(decoding)
        budget = min(CHUNK, limit) if decoding else limit
        turns, served = [], set()
        for answer in going:
            if answer.left > 1 and budget > 0:
                done = len(answer.sequence)
                count = min(answer.left, budget, self._to_snapshot(done))
                tokens = answer.tokens[done : done + count]
                work = Work(answer.sequence, tokens, int(count == answer.left))
                turns.append(_Turn(answer, [work]))
                budget -= count
                served.add(answer)
        # Whoever was served goes behind the others, so that prompts take turns.
        self._active = sorted(self._active, key=served.__contains__)
        rows = len(decoding) + sum(len(turn.works[0].tokens) for turn in turns)
        turns += map(self._decode, decoding, self._drafts(decoding, rows))
        together = SHARED_STEPS not in self.off
        shared = [turn for turn in turns if together and not turn.answer.alone]
        single = [[turn] for turn in turns if not together or turn.answer.alone]
        return [shared, *single] if shared else single

    def _step(self, turns: list[_Turn]) -> None:
        started = time.perf_counter()
        works = [work for turn in turns for work in turn.works]
        try:
            outputs = iter(self.engine.step(works))
        except Exception as error:
            # One of them is at fault, and the next steps, each its own, will tell which.
            for turn in turns:
                turn.answer.alone = True
                _close_branches(turn, turn.answer.sequence)
            if len(turns) == 1:
                turns[0].answer.fail(error)
            return
        if all(work.want == len(work.tokens) for work in works):
            rows = sum(len(work.tokens) for work in works)
            self._cost.observe(rows, time.perf_counter() - started)
        hidden: Vectors | None = None
        if self._block is not None:
            count = sum(len(work.tokens) for work in works)
            hidden = self.engine.device.output("hidden", count)
        for turn in turns:
            self._emit(turn, [next(outputs) for _ in turn.works], hidden)
            if hidden is not None:
                hidden = hidden[sum(len(work.tokens) for work in turn.works) :]

    def _emit(self, turn: _Turn, outputs: list[Logits], hidden: Vectors | None) -> None:
        """Take one turn's outputs; `hidden` begins with what the model made of its rows."""
        answer, first = turn.answer, turn.works[0]
        start = len(first.sequence) - len(first.tokens)
        answer.alone = False
        run = len(answer.tokens)
        try:
            if turn.works[0].want:
                answer.take(outputs, turn.chains)
            else:
                answer.ran()
            if turn.chains != [[]]:
                kept = answer.tokens[run:-1]
                best = max(
                    range(len(turn.chains)), key=lambda c: turn.chains[c][: len(kept)] == kept
                )
                _close_branches(turn, turn.works[best].sequence)
                answer.sequence = turn.works[best].sequence
                answer.sequence.settle(run + len(kept))
            if answer.block is not None and hidden is not None and answer.reason is None:
                # A model with a block has recurrent layers, so there is but one branch.
                end = len(answer.sequence)
                chosen = answer.tokens[-1] if answer.left == 1 else None
                answer.block.follow(start, answer.tokens[start:end], hidden, chosen)
            self._keep(answer)
        except Exception as error:
            _close_branches(turn, answer.sequence)
            answer.fail(error)

    def _retire(self) -> None:
        over = [answer for answer in self._active if answer.interrupted()]
        for answer in over:
            with self._change:
                self._active = [a for a in self._active if a is not answer]
            if self._cache is not None and answer.reason != "error":
                self._cache.keep(answer.sequence, answer.request.salt)
            answer.sequence.close()
            if answer.block is not None:
                answer.block.close()
            if DRAFTING not in self.off:
                # What was warm has been said before.
                self._earlier.add(answer.request.salt, answer.tokens[answer.counts.cached_tokens :])
            answer.finish()

    # -- what prompts leave behind ---------------------------------------------------------
    def _to_snapshot(self, done: int) -> int:
        """Tokens until the next place where a state is recorded."""
        if self._cache is None or self.engine.states is None:
            return self.engine.n_ctx
        return self._cache.interval - done % self._cache.interval

    def _keep(self, answer: Answer) -> None:
        """Remember a prompt that has just been run, and states where they are recorded."""
        if self._cache is None or answer.reason is not None:
            return
        sequence, length = answer.sequence, len(answer.sequence)
        if self.engine.states is None:
            if answer.counts.generated_tokens == 1:
                self._cache.keep(sequence, answer.request.salt, whole_pages=True)
        elif length % self._cache.interval == 0 and sequence.slot is not None:
            states = {length: self.engine.device.read_state(sequence.slot)}
            self._cache.keep(sequence, answer.request.salt, states, whole_pages=True)

    # -- guesses -------------------------------------------------------------------------
    def _drafter(self, answer: Answer) -> Drafter | None:
        request = answer.request
        if DRAFTING in self.off:
            return None
        sources: list[Source] = [FromContext(request.prompt)]
        earlier = self._earlier.source(request.salt, request.prompt)
        if earlier is not None:
            sources.append(earlier)
        if self._block is not None:
            answer.block = FromBlock(self._block, self._worth)
            sources.append(answer.block)
        return Drafter(sources)

    def _worth(self) -> float:
        """The chance from which on a guess by the block gains more than it takes: a pass of the
        block and a row of the next step, in steps of one row."""
        block = None if self._block is None else self._block.seconds
        step = self._cost.seconds
        price = 0.0 if block is None or step is None else block / step
        return price + self._cost(2) - self._cost(1)

    def _drafts(self, decoding: list[Answer], rows: int) -> list[list[Draft]]:
        """Branches of guesses for each answer, with as many guesses as are worth their rows."""
        found = [self._guesses(answer) for answer in decoding]
        flat = [(i, draft) for i, drafts in enumerate(found) for draft in drafts]
        if not flat:
            return found
        program, states = self.engine.device.program, self.engine.states
        most = min(program.max_rows - rows, program.max_outputs - len(self._active))
        # A branch runs the last token once more.
        most -= len(flat) - sum(1 for drafts in found if drafts)
        if states is not None:
            # A state is kept for each guess; answers that begin in this step need one too.
            most = min(most, states.available - len(self._active))
        chances = [draft.chances for _, draft in flat]
        lengths = draft_lengths(chances, len(decoding), rows, self._cost, max(0, most))
        chosen: list[list[Draft]] = [[] for _ in found]
        for (i, draft), length in zip(flat, lengths, strict=True):
            if length:
                chosen[i].append(draft.first(length))
        return chosen

    def _guesses(self, answer: Answer) -> list[Draft]:
        if answer.drafter is None:
            return []
        room = min(answer.room, self._to_snapshot(len(answer.sequence)) - 1)
        # A fork copies the state, which is large, and takes pages that are set aside for nobody.
        taken = sum(other.pages for other in self._active)
        spare = self.engine.pages.total - taken >= _FORK_PAGES * self.parallel
        return answer.drafter.draft(room, BRANCHES if spare and self.engine.states is None else 1)

    def _decode(self, answer: Answer, drafts: list[Draft]) -> _Turn:
        """The last token and its guesses; every branch but the first on a fork."""
        chains = [draft.tokens for draft in drafts] or [[]]
        paths = [answer.sequence]
        for _ in chains[1:]:
            try:
                paths.append(self.engine.fork(answer.sequence))
            except ContextError:  # the pages went elsewhere: fewer branches do too
                break
        chains = chains[: len(paths)]
        works = [
            Work(path, [answer.tokens[-1], *chain], 1 + len(chain), len(chain))
            for path, chain in zip(paths, chains, strict=True)
        ]
        return _Turn(answer, works, chains)


def _are(n: int, noun: str = "") -> str:
    """So many of something, with the verb."""
    return f"{n} {noun}{'s' if noun and n != 1 else ''}".rstrip() + (" is" if n == 1 else " are")


def _close_branches(turn: _Turn, but: Sequence) -> None:
    """Give back what the branches hold that were not taken."""
    for work in turn.works:
        if work.sequence is not but:
            work.sequence.close()
