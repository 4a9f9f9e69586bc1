"""What a model makes of a prompt's own tokens, for `echo` with `logprobs`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from kinetic.errors import ContextError
from kinetic.runtime.logprobs import likeliest, logprobs
from kinetic.runtime.request import Token
from kinetic.server.errors import ApiError
from kinetic.server.service import Service

LONGEST = 4096
"""Other answers wait while a prompt is scored, in one go: a place in the queue or pages of the
cache that it held for longer would be missing elsewhere."""


async def score(service: Service, prompt: Sequence[int], top: int) -> tuple[Token, ...]:
    """Each token of a prompt with its log-probability after those before it, and the `top`
    likeliest in its place; the first has neither.

    Raises: ApiError for a prompt that is too long, or where the cache is full just now.
    """
    service.refuse_if_stopping()
    service.need_text_model()
    if len(prompt) > LONGEST:
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens, and log-probabilities are given for at most "
            f"{LONGEST}; shorten it, or leave out echo or logprobs",
            "echo",
        )
    try:
        return await asyncio.to_thread(
            service.model.scheduler.call, lambda: _run(service, prompt, top)
        )
    except ContextError:
        raise ApiError(
            503, "the cache is full of running answers; send the request again", retry_after=5
        ) from None


def _run(service: Service, prompt: Sequence[int], top: int) -> tuple[Token, ...]:
    engine = service.model.engine
    found = [Token(prompt[0])]
    with contextlib.closing(engine.new_sequence()) as sequence:
        rows = engine.all_logits(sequence, list(prompt[:-1]))
        for token, logits in zip(prompt[1:], rows, strict=True):
            logs = logprobs(logits)
            best = tuple((i, float(logs[i])) for i in likeliest(logits, top))
            found.append(Token(token, float(logs[token]), best))
    return tuple(found)
