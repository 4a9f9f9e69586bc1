"""Guesses: their parts alone, and that no guess, right or wrong, ever changes an answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.answers import GREEDY, Heard, plain, random_tokens, request, tiny_engine
from support.guessing import Guessing, Told

from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.drafting import (
    Drafter,
    Earlier,
    FromContext,
    StepCost,
    accept,
    draft_lengths,
)
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import Scheduler

CTX, PAGES = 8 * PAGE, 24


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("m"), n_ctx=CTX, n_pages=PAGES) as engine:
        yield engine


@pytest.fixture(autouse=True)
def all_pages_come_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        assert request.getfixturevalue("engine").pages.available == PAGES


# -- accept ----------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_a_chain_survives_as_far_as_it_is_what_was_drawn(
    draft: list[int], drawn: list[int]
) -> None:
    asked: list[int] = []

    def draw(chain: int, place: int) -> int:
        asked.append(place)
        return drawn[place]

    right = next((i for i, d in enumerate(draft) if d != drawn[i]), len(draft))
    assert list(accept([draft], draw)) == drawn[: right + 1]
    assert asked == list(range(right + 1))


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_a_tree_keeps_its_best_branch(chains: list[list[int]], drawn: list[int]) -> None:
    def draw(chain: int, place: int) -> int:
        assert chains[chain][:place] == drawn[:place]
        return drawn[place]

    def right(chain: list[int]) -> int:
        return next((i for i, d in enumerate(chain) if d != drawn[i]), len(chain))

    assert list(accept(chains, draw)) == drawn[: max(map(right, chains)) + 1]


# -- sources ---------------------------------------------------------------------------------
def test_the_context_is_followed_where_it_repeats() -> None:
    prompt = [*range(10, 30), 99, 12, 13]
    source = FromContext(prompt)
    assert source.guess(4) == [14, 15, 16, 17] and source.match == 2
    tokens = [*prompt, 14]
    source.push(tokens)
    assert source.next() == 15 and source.match == 3
    tokens.append(77)  # one token in another's place: read on behind it
    source.push(tokens)
    assert source.next() == 16 and source.match == 0
    tokens.append(16)
    source.push(tokens)
    assert source.guess(2) == [17, 18] and source.match == 1


def test_a_loop_is_guessed_as_long_as_one_likes() -> None:
    assert FromContext([1, 2, 3, 1, 2, 3, 1]).guess(7) == [2, 3, 1, 2, 3, 1, 2]


def test_the_last_occurrence_counts() -> None:
    assert FromContext([5, 6, 1, 9, 5, 6, 2, 9, 5, 6]).guess(2) == [2, 9]


@given(st.lists(st.integers(0, 5), max_size=60))
def test_following_token_by_token_is_reading_the_whole(tokens: list[int]) -> None:
    """The index lets no token find itself, and guesses are what stood there."""
    source = FromContext(tokens[:1])
    for n in range(2, len(tokens) + 1):
        source.push(tokens[:n])
        guess = source.next()
        if guess is not None and source.match >= 2:
            last = tokens[n - 2 : n]
            assert any(tokens[i : i + 2] == last and tokens[i + 2] == guess for i in range(n - 2))
    assert source.text.tokens == tokens


def test_earlier_requests_are_remembered_for_their_own_salt_and_within_bounds() -> None:
    earlier = Earlier(limit=200)
    assert earlier.source("a", [1, 2, 3, 4]) is None
    earlier.add("a", list(range(50)))
    source = earlier.source("a", [9, 9, 20, 21, 22, 23])
    assert source is not None and source.guess(3) == [24, 25, 26] and source.match == 4
    assert earlier.source("b", [20, 21, 22, 23]) is None
    for i in range(40):
        earlier.add("abc"[i % 3], random_tokens(70, i))
        assert len(earlier) <= 200
    forgotten = earlier.source("a", [20, 21, 22, 23])
    assert forgotten is None or forgotten.next() is None


def test_the_source_that_was_right_lately_is_believed() -> None:
    rng = random.Random(1)
    answer = random_tokens(100)
    bad, good = Told(answer, 0, rng, 0.9), Told(answer, 0, rng, 0.0)
    drafter = Drafter([bad, good])
    for n in range(1, 30):
        drafter.push(answer[:n])
    (draft,) = drafter.draft(5)
    tokens, chances = draft
    assert tokens == answer[29:34]
    assert all(a >= b for a, b in itertools.pairwise(chances)) and chances[0] > 0.9


# -- how many --------------------------------------------------------------------------------
def test_sure_guesses_are_run_and_unlikely_ones_are_not() -> None:
    cost = StepCost()
    sure, unsure = [0.99**i for i in range(1, 25)], [0.1**i for i in range(1, 25)]
    assert draft_lengths([sure], 1, 1, cost, 24)[0] >= 12
    assert draft_lengths([unsure], 1, 1, cost, 24) == [0]
    both = draft_lengths([sure, unsure], 2, 2, cost, 60)
    assert both[0] >= 12 and both[1] == 0
    assert draft_lengths([sure, sure], 2, 2, cost, 3) in ([2, 1], [1, 2])
    assert draft_lengths([], 1, 1, cost, 5) == [] and draft_lengths([[]], 1, 1, cost, 0) == [0]


def test_costs_are_learned() -> None:
    cost, noise = StepCost(), random.Random(2)
    for _ in range(100):
        for rows in (1, 2, 3, 4, 8, 16):  # nothing gained by sharing a step
            cost.observe(rows, 0.01 * rows * noise.choice((1, 1, 1, 3)))
    assert cost(16) > 8 * cost(1) and cost(4) > 2.2 * cost(1)
    assert draft_lengths([[0.4, 0.2, 0.1]], 1, 1, cost, 24) == [0]
    for _ in range(100):
        for rows in (1, 2, 3, 4, 8, 16):  # rows are free
            cost.observe(rows, 0.01 * noise.choice((1, 1, 1, 3)))
    assert draft_lengths([[0.9, 0.6, 0.3]], 1, 1, cost, 24) == [3]
    assert all(cost(n) <= cost(n + 1) for n in range(1, 600))


def test_text_that_cannot_be_guessed_is_not_guessed_at() -> None:
    """Two tokens in a row come again by chance, and what follows differs."""
    tokens, cost, run = random_tokens(2000, 1, 40), StepCost(), 0
    drafter = Drafter([FromContext(tokens[:500])])
    for n in range(501, 2001):
        run += sum(draft_lengths([d.chances for d in drafter.draft(24)], 1, 1, cost, 24))
        drafter.push(tokens[:n])
    assert run < 0.03 * 1500


# -- answers ---------------------------------------------------------------------------------
samplings = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.7, 1.0, 1.5]), "seed": st.integers(0, 2**40)},
    optional={
        "top_k": st.sampled_from([0, 5, 40]),
        "top_p": st.floats(0.3, 1),
        "min_p": st.floats(0, 0.2),
        "typical_p": st.floats(0.3, 1),
        "top_n_sigma": st.sampled_from([-1.0, 1.5]),
        "xtc_probability": st.sampled_from([0.0, 0.6]),
        "repeat_penalty": st.floats(0.8, 1.4),
        "presence_penalty": st.floats(-1, 1),
        "frequency_penalty": st.floats(-1, 1),
        "dry_multiplier": st.sampled_from([0.0, 0.8]),
        "mirostat": st.sampled_from([0, 1, 2]),
        "logit_bias": st.just({3: 2.0, 5: float("-inf")}),
    },
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(samplings, st.integers(1, 90), st.integers(0, 9), st.floats(0, 0.5), st.integers(1, 3))
def test_a_seeded_answer_is_the_same_with_guesses(
    engine: Engine, chosen: dict[str, object], length: int, seed: int, wrong: float, users: int
) -> None:
    params = SamplingParams(**chosen)  # type: ignore[arg-type]
    prompts = [random_tokens(length + i, seed + i) for i in range(users)]
    answers = [plain(engine, p, params, max_tokens=14) for p in prompts]
    scheduler = Guessing(engine, users)
    scheduler.answers = {tuple(p): a for p, a in zip(prompts, answers, strict=True)}
    scheduler.wrong, scheduler.seed = wrong, seed
    heard = [Heard() for _ in prompts]
    for prompt, one in zip(prompts, heard, strict=True):
        scheduler.submit(request(prompt, params, max_tokens=14), one)
    assert [one.end.reason for one in heard] == ["length"] * users
    assert [one.ids for one in heard] == answers
    scheduler.close()
    counts = [one.end.counts for one in heard]
    assert all(c.accepted <= c.drafted and c.generated_tokens == 14 for c in counts)


def test_guesses_are_run_and_save_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model's greedy answer soon repeats itself."""
    prompt, heard, steps = random_tokens(20), Heard(), []
    monkeypatch.setattr(StepCost, "observe", lambda *_: None)  # the machine is busy at times
    expected = plain(engine, prompt, GREEDY, max_tokens=200)
    real = engine.step

    def step(batch: list[Work], output: str = "logits") -> list[np.ndarray]:
        steps.append(batch)
        return real(batch, output)

    monkeypatch.setattr(engine, "step", step)
    scheduler = Scheduler(engine)
    scheduler.submit(request(prompt, max_tokens=200), heard)
    assert heard.end.reason == "length" and heard.ids == expected
    counts = heard.end.counts
    assert counts.accepted > 0 and len(steps) == 200 - counts.accepted
    plainly = Heard()
    off = Scheduler(engine, off={"rad1"})
    off.submit(request(prompt, max_tokens=200), plainly)
    assert plainly.ids == expected if plainly.end else False
    assert plainly.end.counts.drafted == 0
    scheduler.close()
    off.close()


def test_of_two_branches_the_right_one_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sources that are each wrong at times: together they save more steps than one."""
    prompts = [random_tokens(n, n) for n in (50, 64, 127)]
    answers = [plain(engine, p, GREEDY, max_tokens=60) for p in prompts]
    monkeypatch.setattr(StepCost, "observe", lambda *_: None)
    monkeypatch.setattr(Drafter, "push", lambda self, t: [r.source.push(t) for r in self._records])
    steps, forks, real, fork = {1: 0, 2: 0}, [], engine.step, engine.fork

    def step(batch: list[Work], output: str = "logits") -> list[np.ndarray]:
        steps[sources] += 1
        return real(batch, output)

    monkeypatch.setattr(engine, "step", step)
    monkeypatch.setattr(engine, "fork", lambda s: forks.append(s) or fork(s))
    for sources in (1, 2):
        scheduler = Guessing(engine, 1)
        scheduler.answers = {tuple(p): a for p, a in zip(prompts, answers, strict=True)}
        scheduler.sources, scheduler.wrong, scheduler.match = sources, 0.4, 4
        heard = [Heard() for _ in prompts]
        for prompt, one in zip(prompts, heard, strict=True):
            scheduler.submit(request(prompt, max_tokens=60), one)
        assert [one.end.reason for one in heard] == ["length"] * 3
        assert [one.ids for one in heard] == answers
        scheduler.close()
        assert bool(forks) == (sources == 2)
    assert steps[2] < steps[1]


def test_an_answer_ends_inside_a_draft(engine: Engine) -> None:
    prompt = random_tokens(20)
    answer = plain(engine, prompt, GREEDY, max_tokens=100)
    ends = frozenset({answer[-1]})
    expected = plain(engine, prompt, GREEDY, max_tokens=100, end_ids=ends)
    scheduler = Guessing(engine, 1)
    scheduler.answers, scheduler.wrong = {tuple(prompt): answer}, 0.0
    for options, reason, length in (
        ({"end_ids": ends}, "end", len(expected)),
        ({"max_tokens": 9}, "length", 9),
    ):
        heard = Heard()
        scheduler.submit(request(prompt, **({"max_tokens": 100} | options)), heard)
        assert heard.end.reason == reason and heard.ids == answer[:length]
    stopped = Heard(stop_at=4)
    scheduler.submit(request(prompt), stopped)
    assert stopped.end.reason == "stop" and stopped.ids == answer[:4]
    scheduler.close()


def test_guesses_fill_the_context_and_no_more(engine: Engine) -> None:
    prompt = random_tokens(CTX - 30)
    answer = plain(engine, prompt, GREEDY, max_tokens=100)
    scheduler, heard = Guessing(engine, 1), Heard()
    scheduler.answers, scheduler.wrong = {tuple(prompt): answer}, 0.0
    scheduler.submit(request(prompt, max_tokens=None), heard)
    assert heard.end.reason == "context" and heard.ids == answer and len(answer) == 31
    scheduler.close()


# -- words -----------------------------------------------------------------------------------
def test_what_was_rolled_back_was_never_there(engine: Engine) -> None:
    prompt, wrong = random_tokens(61), random_tokens(9, 1)
    plainly = engine.new_sequence()
    engine.prefill(plainly, prompt)
    expected = np.stack(list(engine.all_logits(plainly, [1, 2, 3])))
    drafted = engine.new_sequence()
    engine.prefill(drafted, prompt)
    (first,) = engine.step([Work(drafted, [1, *wrong], 10, 9)])
    assert (first[0] == expected[0]).all()
    drafted.settle(62)
    (rest,) = engine.step([Work(drafted, [2, 3, *wrong], 11, 9)])
    assert (rest[:2] == expected[1:]).all()
    drafted.settle(64)
    assert drafted.tokens == [*prompt, 1, 2, 3]
    plainly.close()
    drafted.close()


@pytest.mark.parametrize("past", [1, 60, 64, 100])
def test_branches_of_a_tree_are_words_of_their_paths_alone(engine: Engine, past: int) -> None:
    prompt = random_tokens(past)
    chains = [[7, *random_tokens(5, seed)] for seed in range(4)]
    alone = []
    for chain in chains:
        sequence = engine.new_sequence()
        engine.prefill(sequence, prompt)
        alone.append(np.stack(list(engine.all_logits(sequence, chain))))
        sequence.close()
    trunk = engine.new_sequence()
    engine.prefill(trunk, prompt)
    paths = [trunk, *(engine.fork(trunk) for _ in chains[1:])]
    found = engine.step([Work(p, c, len(c)) for p, c in zip(paths, chains, strict=True)])
    for got, expected in zip(found, alone, strict=True):
        assert (got == expected).all()
    for path in paths:
        path.close()


def test_a_fork_goes_its_own_way(engine: Engine) -> None:
    prompt = random_tokens(100)
    trunk = engine.new_sequence()
    engine.prefill(trunk, prompt)
    twin = engine.fork(trunk)
    assert twin.pages[0] == trunk.pages[0] and twin.pages[1] != trunk.pages[1]
    engine.prefill(twin, random_tokens(80, 1))
    expected = engine.decode(trunk, 5).copy()
    trunk.close()
    engine.prefill(twin, [1])
    twin.close()
    again = engine.new_sequence()
    engine.prefill(again, prompt)
    assert (engine.decode(again, 5) == expected).all()
    again.close()
