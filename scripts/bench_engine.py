#!/usr/bin/env python3
"""What each speed technology of the engine is worth: one model, one run, in turns.

    python scripts/bench_engine.py MODEL.gguf [-t THREADS] [-r REPETITIONS]

Guesses on an edit and on text that cannot be guessed, on and off; the first token behind a shared
beginning of 2,000 tokens, cold, warm from memory, and warm from disk in a second load; four users
against one; the first token after a pasted document with and without run-ahead; and the share of
a decode step that passes outside native code. Each line has the best and the median of all
repetitions, and the ratio of the bests. It exits with 1 where an answer differs from plain
decoding. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from _bench import machine, table

from kinetic.api import Model, SamplingParams
from kinetic.cli.bench_edit import EDIT_TOKENS, edit_prompt
from kinetic.generation import FinishEvent, GenerationRequest, TextEvent

PREFIX, QUESTION, CTX, USERS, TOKENS = 2000, 30, 2560, 4, 96
GREEDY = SamplingParams(temperature=0)


class Run:
    """One answer: its tokens, seconds to the first one, seconds from there to the last one."""

    def __init__(self, model: Model, request: GenerationRequest):
        self.tokens: list[int] = []
        started = time.perf_counter()
        self.first = 0.0
        for event in model.start(request).events():
            if isinstance(event, TextEvent) and event.token is not None:
                self.first = self.first or time.perf_counter() - started
                self.tokens.append(event.token.id)
            elif isinstance(event, FinishEvent):
                if event.error is not None:
                    raise event.error
                self.rest, self.cached = event.counts.generate_seconds, event.counts.cached_tokens
        self.speed = (len(self.tokens) - 1) / self.rest if self.rest else 0.0


class Bench:
    """A model and what has been measured of it, by name."""

    def __init__(self, model: Model):
        self.model = model
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        rng = random.Random(0)
        n = model.graph.meta.n_vocab
        # Tokens of no text: nothing repeats, and every tokenizer has them.
        self.document = [rng.randrange(n // 4, n // 2) for _ in range(PREFIX)]
        self.questions = [[rng.randrange(n // 4, n // 2) for _ in range(QUESTION)] for _ in "123"]

    def ask(
        self, prompt: list[int], tokens: int, salt: str, params: SamplingParams = GREEDY
    ) -> Run:
        """One answer of exactly so many tokens."""
        return Run(self.model, request(prompt, tokens, salt, params))

    @contextmanager
    def off(self, *names: str) -> Iterator[None]:
        """Requests that begin in here go without these technologies."""
        scheduler, before = self.model.scheduler, self.model.scheduler.off
        scheduler.off = (*before, *names)
        try:
            yield
        finally:
            scheduler.off = before

    def pair(self, name: str, number: int, ask: Callable[[str], Run]) -> None:
        """The same answer with guesses and without, which begins first in turns."""
        found = {}
        for on in (True, False) if number % 2 else (False, True):
            salt = f"{name} {number} {on}"
            with self.off(*(() if on else ("rad1",))):
                found[on] = ask(salt)
            self.samples[f"{name} {'on' if on else 'off'}"].append(found[on].speed)
        if found[True].tokens != found[False].tokens:
            self.wrong.append(f"{name} {number}: guesses changed the answer")

    def repetition(self, number: int) -> None:
        """Each test once."""
        edit = edit_prompt(self.model)
        free = self.model.encode_prompt("Tell me a story that nobody has told before.")
        sampled = SamplingParams(temperature=1.5, seed=number)
        self.pair("edit", number, lambda salt: self.ask(edit, EDIT_TOKENS, salt))
        self.pair("free", number, lambda salt: self.ask(free, TOKENS, salt, params=sampled))
        self.prefix(number)
        self.users(number)
        self.run_ahead(number)
        self.samples["python"].append(self.outside_native())

    def prefix(self, number: int) -> None:
        """The first token behind a beginning that nobody, or another request, has run."""
        salt, found = f"kept {number}", []
        for kind, question in (("cold", 0), ("memory", 1)):
            found.append(self.ask(self.document + self.questions[question], 2, salt))
            self.samples[f"prefix {kind}"].append(found[-1].first)
        if found[0].cached or found[1].cached < PREFIX // 2:
            self.wrong.append(f"prefix {number}: {found[0].cached}, {found[1].cached} were warm")

    def users(self, number: int) -> None:
        """Tokens a second of one user and of several, nothing guessed."""
        prompts = [self.model.encode_prompt(f"Count from {i} to a thousand.") for i in range(USERS)]
        with self.off("rad1"):
            alone = self.ask(prompts[0], TOKENS, f"alone {number}")
            generations = [
                self.model.start(request(prompt, TOKENS, f"user {number} {i}"))
                for i, prompt in enumerate(prompts)
            ]
            answers, seconds = [], []
            for generation in generations:
                tokens: list[int] = []
                for event in generation.events():
                    if isinstance(event, TextEvent) and event.token is not None:
                        tokens.append(event.token.id)
                    elif isinstance(event, FinishEvent):
                        seconds.append(event.counts.generate_seconds)
                answers.append(tokens)
        self.samples["users one"].append(alone.speed)
        self.samples["users several"].append(USERS * (TOKENS - 1) / max(seconds))
        if answers[0] != alone.tokens:
            self.wrong.append(f"users {number}: neighbours changed an answer")

    def run_ahead(self, number: int) -> None:
        """The first token after Enter, behind a pasted document."""
        whole = self.document[::-1] + self.questions[0]
        found = {}
        for on in (True, False) if number % 2 else (False, True):
            salt = f"typed {number} {on}"
            if on:
                Run(self.model, request(whole[:-5], 0, salt, ahead=True))
            found[on] = self.ask(whole, 8, salt)
            self.samples[f"zero wait {'on' if on else 'off'}"].append(found[on].first)
        if found[True].tokens != found[False].tokens:
            self.wrong.append(f"zero wait {number}: run-ahead changed the answer")

    def outside_native(self) -> float:
        """The share of plain decoding that does not pass in the native step."""
        native = 0.0
        pool = self.model.engine.device._pool  # type: ignore[attr-defined]
        run = pool.run

        def timed(plan: object) -> None:
            nonlocal native
            started = time.perf_counter()
            run(plan)
            native += time.perf_counter() - started

        prompt = self.model.encode_prompt("Count to a thousand.")
        with self.off("rad1"):
            self.ask(prompt, 1, "python")  # its prompt is warm from here on, but for one token
            pool.run = timed
            try:
                started = time.perf_counter()
                self.ask(prompt, TOKENS, "python")
                whole = time.perf_counter() - started
            finally:
                pool.run = run
        return 1 - native / whole


def request(
    prompt: list[int],
    tokens: int,
    salt: str,
    params: SamplingParams = GREEDY,
    ahead: bool = False,
) -> GenerationRequest:
    """A request for so many tokens."""
    return GenerationRequest(prompt, params, tokens, salt=salt, ignore_eos=True, ahead=ahead)


def line(what: str, unit: str, one: list[float], other: list[float], goal: str) -> list[str]:
    """A row of the table: what is measured, the technology's own figures, those without it."""
    best = max if unit == "t/s" else min
    scale, shown = (1, "t/s") if unit == "t/s" else (1000, "ms")
    cells = [f"{best(s) * scale:.1f} / {median(s) * scale:.1f} {shown}" for s in (one, other)]
    ratio = best(one) / best(other)
    return [what, *cells, f"{ratio:.3f}x" if unit == "t/s" else f"{100 * ratio:.1f}%", goal]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    options = parser.parse_args()
    started = time.perf_counter()
    print(f"{options.model.name} on {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:

        def load() -> Model:
            return Model.load(
                options.model,
                threads=options.threads,
                ctx_size=CTX,
                parallel=USERS,
                cache_dir=folder,
            )

        model = load()
        bench = Bench(model)
        try:
            model.bench_decode(2)
            for number in range(options.repetitions):
                bench.repetition(number)
        finally:
            model.close()
        bench.model = model = load()
        try:
            model.bench_decode(2)
            bench.ask(bench.questions[2], 2, "warm-up")
            for number in range(options.repetitions):
                prompt = bench.document + bench.questions[2]
                again = bench.ask(prompt, 2, f"kept {number}")
                bench.samples["prefix disk"].append(again.first)
                if again.cached < PREFIX // 2:
                    bench.wrong.append(f"prefix {number}: {again.cached} were warm from disk")
                with bench.off("rad1"):
                    if again.tokens != bench.ask(prompt, 2, f"cold {number}").tokens:
                        bench.wrong.append(f"prefix {number}: disk changed the answer")
        finally:
            model.close()
    s = bench.samples
    rows = [
        line("edit256, guesses on / off", "t/s", s["edit on"], s["edit off"], ">= 3.0x"),
        line("free text, guesses on / off", "t/s", s["free on"], s["free off"], ">= 0.97x"),
        line("2,000 shared, memory / cold", "s", s["prefix memory"], s["prefix cold"], "<= 2%"),
        line("2,000 shared, disk / cold", "s", s["prefix disk"], s["prefix cold"], "<= 5%"),
        line("4 users / 1", "t/s", s["users several"], s["users one"], ">= 2.2x"),
        line("Zero Wait on / off", "s", s["zero wait on"], s["zero wait off"], "<= 10%"),
    ]
    head = ["what", "best / median with", "best / median without", "ratio of bests", "goal"]
    print(table(head, rows))
    outside = s["python"]
    print(
        f"outside native code: {100 * min(outside):.1f}% of a decode step at best, median "
        f"{100 * median(outside):.1f}% (goal: under 3%)"
    )
    print(f"{options.repetitions} repetitions in {time.perf_counter() - started:.0f} s")
    print("\n".join(bench.wrong) or "every answer is the one of plain decoding")
    return bool(bench.wrong)


if __name__ == "__main__":
    sys.exit(main())
