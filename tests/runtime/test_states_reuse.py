"""Recurrent models: guesses, forks and prompt states, none of which may change an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.answers import Heard, plain, random_tokens, request, tiny_engine
from support.guessing import Guessing

from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.prompt_cache import SNAPSHOT, PromptCache
from kinetic.runtime.prompt_store import PromptStore
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import Scheduler

CTX, PAGES, SLOTS = 16 * PAGE, 64, 20
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)


@pytest.fixture(scope="module", params=["lfm2", "qwen35", "falcon-h1"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("m")
    sizes = {"n_embd": 256, "n_ff": 256, "head_dim": 64}
    with tiny_engine(
        folder, arch=request.param, n_ctx=CTX, n_pages=PAGES, n_slots=SLOTS, **sizes
    ) as engine:
        assert engine.states is not None
        yield engine


@pytest.fixture(autouse=True)
def all_comes_back(engine: Engine) -> Iterator[None]:
    yield
    assert engine.states is not None
    assert (engine.pages.available, engine.states.available) == (PAGES, SLOTS)


def words(engine: Engine, prompt: list[int], rest: list[int]) -> np.ndarray:
    """The logits after each of the rest."""
    sequence = engine.new_sequence()
    engine.prefill(sequence, prompt)
    found = np.stack(list(engine.all_logits(sequence, rest)))
    sequence.close()
    return found


@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_a_state_is_that_of_the_guesses_that_were_right(engine: Engine, right: int) -> None:
    prompt, rest = random_tokens(70), random_tokens(9, 1)
    expected = words(engine, prompt, rest)
    sequence = engine.new_sequence()
    engine.prefill(sequence, prompt)
    guesses = [*rest[1 : 1 + right], *random_tokens(5 - right, 2)]
    (found,) = engine.step([Work(sequence, [rest[0], *guesses], 6, 5)])
    assert (found[: right + 1] == expected[: right + 1]).all()
    sequence.settle(70 + 1 + right)
    again = np.stack(list(engine.all_logits(sequence, rest[right + 1 :])))
    assert (again == expected[right + 1 :]).all()
    sequence.close()


def test_branches_are_words_of_their_paths_alone(engine: Engine) -> None:
    for past in (PAGE, 70):
        prompt, chains = random_tokens(past), [[7, *random_tokens(4, s)] for s in range(3)]
        alone = [words(engine, prompt, chain) for chain in chains]
        trunk = engine.new_sequence()
        engine.prefill(trunk, prompt)
        paths = [trunk, *(engine.fork(trunk) for _ in chains[1:])]
        found = engine.step(
            [Work(p, c, len(c), len(c) - 1) for p, c in zip(paths, chains, strict=True)]
        )
        assert all((got == want).all() for got, want in zip(found, alone, strict=True))
        for path in paths:
            path.close()


def test_answers_with_guesses_are_those_without(engine: Engine) -> None:
    prompts = [random_tokens(n, n) for n in (3, 64, 250, 100)]
    answers = [plain(engine, p, SEEDED, max_tokens=40) for p in prompts]
    for parallel, cache in ((1, None), (3, None), (3, PromptCache(engine))):
        scheduler = Guessing(engine, parallel, cache=cache)
        scheduler.answers = {tuple(p): a for p, a in zip(prompts, answers, strict=True)}
        heard = [Heard() for _ in prompts]
        for prompt, one in zip(prompts, heard, strict=True):
            scheduler.submit(request(prompt, SEEDED, max_tokens=40), one)
        assert [one.end.reason for one in heard] == ["length"] * 4
        assert [one.ids for one in heard] == answers
        assert sum(one.end.counts.accepted for one in heard) > 20
        scheduler.close()


@pytest.mark.parametrize(("shared", "cached"), [(700, 512), (512, 512), (513, 512), (255, 0)])
def test_a_prompt_goes_on_from_a_recorded_state(
    engine: Engine, tmp_path: Path, shared: int, cached: int
) -> None:
    first = random_tokens(700)
    second = [*first[:shared], *random_tokens(50, 3)]
    expected = [plain(engine, p, SEEDED) for p in (first, second)]
    # In another process each finds what it left itself.
    later = [(len(prompt) - 1) // SNAPSHOT * SNAPSHOT for prompt in (first, second)]
    for known in ([0, cached], later):
        cache = PromptCache(engine, store=PromptStore(tmp_path), identity="m")
        scheduler = Scheduler(engine, cache=cache)
        for i, prompt in enumerate((first, second)):
            heard = Heard()
            scheduler.submit(request(prompt, SEEDED), heard)
            assert heard.end.reason == "length" and heard.ids == expected[i]
            assert heard.end.counts.cached_tokens == known[i]
        scheduler.close()


def test_a_step_that_breaks_off_is_taken_again_from_the_start(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_tokens(90, i) for i in range(3)]
    expected = [plain(engine, p, SEEDED, max_tokens=12) for p in prompts]
    real, steps = engine.device.step, []

    def step(rows: object) -> None:
        steps.append(rows)
        if len(steps) in (4, 9):
            raise RuntimeError("broke off")
        real(rows)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.device, "step", step)
    scheduler = Scheduler(engine, 3)
    heard = [Heard() for _ in prompts]
    for prompt, one in zip(prompts, heard, strict=True):
        scheduler.submit(request(prompt, SEEDED, max_tokens=12), one)
    for one, answer in zip(heard, expected, strict=True):
        assert one.end.reason in ("length", "error")
        assert one.ids == answer[: len(one.ids)]
    assert sum(one.end.reason == "length" for one in heard) >= 2
    scheduler.close()
