"""The scheduler: requests in, tokens out, on one thread of its own."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np

from kinetic.errors import ContextError, InternalError, KineticError
from kinetic.runtime.engine import Engine, Logits
from kinetic.runtime.request import Counts, Finish, Listener, Reason, Request, Token


class _Job:
    """A request on its way."""

    def __init__(self, request: Request, listener: Listener):
        self.request, self.listener = request, listener
        self.counts = Counts(prompt_tokens=len(request.prompt))
        self.cancelled = threading.Event()
        self.submitted = time.perf_counter()

    def cancel(self) -> None:
        """End the answer within one step."""
        self.cancelled.set()


class Scheduler:
    """Runs requests one after the other."""

    def __init__(self, engine: Engine, parallel: int = 1, queue_limit: int | None = None):
        self.engine, self.parallel, self.queue_limit = engine, parallel, queue_limit
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kinetic-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener) -> _Job:
        """Queue a request; its listener hears of it on the engine's thread.

        *Raises* `ContextError` where the prompt can never fit.
        """
        if len(request.prompt) > self.engine.n_ctx:
            raise ContextError(
                f"the prompt has {len(request.prompt)} tokens and the context holds "
                f"{self.engine.n_ctx}; shorten it or raise -c"
            )
        job = _Job(request, listener)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Finish what is queued and stop the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                reason, error = self._answer(job), None
            except KineticError as found:
                reason, error = "error", found
            except Exception as found:
                reason, error = "error", InternalError(f"{type(found).__name__}: {found}")
            job.listener.finish(Finish(reason, job.counts, error))

    def _answer(self, job: _Job) -> Reason:
        request, counts, sampler = job.request, job.counts, job.request.sampler
        counts.queue_seconds = time.perf_counter() - job.submitted
        sequence = self.engine.new_sequence()
        try:
            sampler.accept_all(request.prompt)
            started = time.perf_counter()
            logits = self.engine.prefill(sequence, list(request.prompt))
            counts.prompt_seconds = time.perf_counter() - started
            job.listener.prompt(counts.prompt_tokens, counts.prompt_tokens)
            started = time.perf_counter()
            while True:
                if job.cancelled.is_set():
                    return "cancelled"
                if request.deadline is not None and time.monotonic() > request.deadline:
                    return "deadline"
                if counts.generated_tokens == request.max_tokens:
                    return "length"
                constraint = request.constraint
                mask = None if constraint is None else constraint.mask()
                token = sampler.sample(logits, counts.generated_tokens, mask)
                sampler.accept(token)
                if constraint is not None and token not in request.end_ids:
                    constraint.accept(token)
                counts.generated_tokens += 1
                counts.generate_seconds = time.perf_counter() - started
                stop = job.listener.token(_token(request, token, logits))
                if token in request.end_ids:
                    return "end"
                if stop:
                    return "stop"
                if counts.generated_tokens == request.max_tokens:
                    return "length"
                if len(sequence) >= self.engine.n_ctx:
                    return "context"
                logits = self.engine.decode(sequence, token)
        finally:
            sequence.close()


def _token(request: Request, token: int, logits: Logits) -> Token:
    """The token with its log-probabilities, if they are asked for."""
    if request.logprobs is None:
        return Token(token)
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logs = wide - np.log(np.exp(wide).sum())
    best = np.argsort(-logits, kind="stable")[: request.logprobs]
    return Token(token, float(logs[token]), tuple((int(i), float(logs[i])) for i in best))
