"""Each family that generates: branches are their paths alone, and nothing that makes answers fast
changes one. Batches, chunks and threads: `tests/codegen/test_conformance.py`, for each as well.

A new family is tested by its line in `ARCHS`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.answers import GREEDY, Heard, plain, random_tokens, request, tiny_engine
from support.guessing import Guessing
from support.tiny_models import ARCHS

from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.sampling import SamplingParams

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)


@pytest.fixture(scope="module", params=ARCHS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("m")
    with tiny_engine(folder, arch=request.param, n_slots=20, n_layers=4) as engine:
        yield engine


@pytest.fixture(autouse=True)
def all_comes_back(engine: Engine) -> Iterator[None]:
    """No page and no slot is lost, however an answer went."""
    before = engine.pages.available, engine.states and engine.states.available
    yield
    assert (engine.pages.available, engine.states and engine.states.available) == before


@pytest.mark.parametrize("past", [PAGE, 70])
def test_branches_of_a_tree_are_words_of_their_paths_alone(engine: Engine, past: int) -> None:
    prompt, chains = random_tokens(past), [[7, *random_tokens(4, seed)] for seed in range(3)]
    alone = []
    for chain in chains:
        sequence = engine.new_sequence()
        engine.prefill(sequence, prompt)
        alone.append(np.stack(list(engine.all_logits(sequence, chain))))
        sequence.close()
    trunk = engine.new_sequence()
    engine.prefill(trunk, prompt)
    paths = [trunk, *(engine.fork(trunk) for _ in chains[1:])]
    works = [Work(p, c, len(c), len(c) - 1) for p, c in zip(paths, chains, strict=True)]
    for got, expected in zip(engine.step(works), alone, strict=True):
        assert (got == expected).all()
    for path in paths:
        path.close()


@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_answers_with_guesses_prompt_states_and_neighbours_are_those_without(
    engine: Engine, params: SamplingParams
) -> None:
    prompts = [random_tokens(n, n) for n in (3, PAGE, 150)]
    prompts.append([*prompts[2][:140], 5, 6])  # begins like one before
    answers = [plain(engine, p, params, max_tokens=24) for p in prompts]
    scheduler = Guessing(engine, 3, cache=PromptCache(engine))
    scheduler.answers = {tuple(p): a for p, a in zip(prompts, answers, strict=True)}
    heard = [Heard() for _ in prompts]
    for prompt, one in zip(prompts, heard, strict=True):
        scheduler.submit(request(prompt, params, max_tokens=24), one)
    assert [one.end.reason for one in heard] == ["length"] * len(prompts)
    assert [one.ids for one in heard] == answers
    assert sum(one.end.counts.accepted for one in heard) > 10
    scheduler.close()
