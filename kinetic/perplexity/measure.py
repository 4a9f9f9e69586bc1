"""Run a text through a model, window by window.

chunk = BOS in place of its first token, tokens 1 .. n_ctx - 1
first half        run for its keys and values alone
second half       logits -> scores, a few rows at a time
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinetic.errors import UsageError
from kinetic.perplexity.base_file import BaseReader, BaseWriter
from kinetic.perplexity.scores import (
    Comparison,
    Floats,
    PerplexitySums,
    Tokens,
    encode_rows,
    surprise,
)
from kinetic.runtime.engine import Engine, Work

LEAST_CHUNKS = 2
"""Windows a text must fill before its perplexity says anything."""


def cut(tokens: list[int], n_ctx: int, most: int | None) -> Tokens:
    """The tokens of whole windows, at most so many.

    *Raises* `UsageError` for a text that is too short.
    """
    if len(tokens) < LEAST_CHUNKS * n_ctx:
        raise UsageError(
            f"the text has {len(tokens)} tokens and windows of {n_ctx} need at least "
            f"{LEAST_CHUNKS * n_ctx}; give a longer text or a smaller -c."
        )
    chunks = len(tokens) // n_ctx
    chunks = chunks if most is None else min(chunks, most)
    return np.array(tokens[: chunks * n_ctx], np.int32)


def scored_logits(
    engine: Engine, chunk: Tokens, bos: int | None
) -> Iterator[tuple[Floats, Tokens]]:
    """Logits of a window's second half and the tokens that came, some rows at a time.

    The arrays are views that the next rows overwrite.
    """
    program = engine.device.program
    rows = [int(token) for token in chunk[:-1]]  # what follows the last token is not known
    if bos is not None:
        rows[0] = bos
    first = len(chunk) // 2
    sequence = engine.new_sequence()
    try:
        for start in range(0, first, program.max_rows):
            engine.step([Work(sequence, rows[start : min(first, start + program.max_rows)])])
        size = min(program.max_rows, program.max_outputs)
        for start in range(first, len(rows), size):
            part = rows[start : start + size]
            (logits,) = engine.step([Work(sequence, part, len(part))])
            yield logits, chunk[start + 1 : start + 1 + len(part)]
    finally:
        sequence.close()


def perplexity(
    engine: Engine,
    tokens: Tokens,
    n_ctx: int,
    bos: int | None,
    base: BaseWriter | None = None,
) -> Iterator[PerplexitySums]:
    """Score windows; after each, the sums so far. With `base`, log-probabilities go there."""
    sums = PerplexitySums()
    for chunk in tokens.reshape(-1, n_ctx):
        for logits, targets in scored_logits(engine, chunk, bos):
            sums.add(surprise(logits, targets))
            if base is not None:
                base.write(encode_rows(logits))
        yield sums


def compare(engine: Engine, base: BaseReader, bos: int | None) -> Iterator[Comparison]:
    """Score the windows of a base model's file; after each, the comparison so far."""
    found = Comparison()
    for chunk in base.tokens.reshape(-1, base.n_ctx):
        for logits, targets in scored_logits(engine, chunk, bos):
            found.add(logits, targets, base.read(len(targets)))
        yield found
