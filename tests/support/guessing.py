"""A scheduler whose guesses are what it was told the answers will be, some of them wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.answers import VOCAB

from kinetic.runtime.answer import Answer
from kinetic.runtime.drafting import Drafter
from kinetic.runtime.scheduler import Scheduler


class Told:
    """A source that guesses what it was told, some of it wrong."""

    def __init__(self, answer: Sequence[int], prompt: int, rng: random.Random, wrong: float):
        self.answer = [(t + 1) % VOCAB if rng.random() < wrong else t for t in answer]
        self.at, self.start, self.match = 0, prompt, 16

    def next(self) -> int | None:
        return self.answer[self.at] if self.at < len(self.answer) else None

    def guess(self, count: int) -> list[int]:
        return self.answer[self.at : self.at + count]

    def push(self, tokens: Sequence[int]) -> None:
        self.at = len(tokens) - self.start


class Guessing(Scheduler):
    """Guesses what it was told the answers will be, some of it wrong, and often."""

    wrong, seed, sources, match = 0.2, 0, 2, 5
    answers: dict[tuple[int, ...], list[int]] = {}  # noqa: RUF012

    def _drafter(self, answer: Answer) -> Drafter | None:
        rng, prompt = random.Random(self.seed), tuple(answer.request.prompt)
        told = [Told(self.answers[prompt], len(prompt), rng, self.wrong) for _ in range(2)]
        for source in told:
            source.match = self.match
        return Drafter(told[: self.sources])
