"""Complaints that other engines got, as tests: prompt caches, contexts, guesses, sampling.

The names are those of the project's list of cases.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from kinetic.api import Model, SamplingParams
from kinetic.errors import ContextError, UsageError
from kinetic.generation import FinishEvent, GenerationRequest, TextEvent

CTX, VOCAB = 512, 320
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    sizes = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": VOCAB, "n_ctx": CTX}
    return tiny_model("llama", path, formats="Q8_0", **sizes)


@contextmanager
def loaded(path: Path, tmp_path: Path, **options: object) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINETIC_CACHE_DIR", str(tmp_path.parent / "kernels"))
        model = Model.load(path, threads=2, **options)  # type: ignore[arg-type]
    try:
        yield model
    finally:
        model.close()


def noise(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(count)]


def ask(model: Model, prompt: list[int], **options: object) -> tuple[list[int], FinishEvent]:
    """The answer's tokens and its end."""
    options = {"params": GREEDY, "max_tokens": 12, "ignore_eos": True} | options
    ids = []
    for event in model.start(GenerationRequest(prompt, **options)).events():  # type: ignore[arg-type]
        if isinstance(event, TextEvent) and event.token is not None:
            ids.append(event.token.id)
        elif isinstance(event, FinishEvent):
            return ids, event
    raise AssertionError("no end")


def test_pc_01_no_client_is_answered_with_anothers_conversation(path: Path, tmp_path: Path) -> None:
    """Two slots, both caches on, eight clients with a secret each, some cancel."""
    secrets = [noise(130, client) for client in range(8)]
    chats = [secrets[i % 8] + noise(5 + i % 40, 100 + i % 16) for i in range(16)]
    with loaded(path, tmp_path, off={"warm-start", "rad1", "convoy"}) as model:
        expected = [ask(model, chat)[0] for chat in chats]
    wrong: list[str] = []
    with loaded(path, tmp_path, parallel=2, cache_dir=tmp_path / "warm") as model:

        def client(number: int) -> None:
            rng = random.Random(number)
            for _ in range(20):
                i = number + 8 * rng.randrange(2)
                options = {"deadline": time.monotonic() + 0.002} if rng.random() < 0.2 else {}
                ids, end = ask(model, chats[i], salt=str(number % 3), **options)
                whole = expected[i] if end.reason == "length" else expected[i][: len(ids)]
                if ids != whole:
                    wrong.append(f"client {number}: {ids}, not {whole}")

        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_pc_03_equal_prompts_in_parallel_slots_give_one_text(path: Path, tmp_path: Path) -> None:
    prompt = noise(100, 1)
    with loaded(path, tmp_path, parallel=8) as model:
        alone, _ = ask(model, prompt)
        for others in (7, 0):
            asked = [prompt] * (8 - others) + [noise(20 + i, i) for i in range(others)]
            started = [
                model.start(GenerationRequest(p, GREEDY, 12, ignore_eos=True)) for p in asked
            ]
            for given, generation in zip(asked, started, strict=True):
                events = generation.events()
                ids = [e.token.id for e in events if isinstance(e, TextEvent) and e.token]
                assert given is not prompt or ids == alone


def test_pc_05_asking_a_then_b_then_a_again(path: Path, tmp_path: Path) -> None:
    a, b = noise(400, 1), noise(400, 2)
    with loaded(path, tmp_path) as model:
        ask(model, a)
        ask(model, b)
        assert ask(model, [*a, 5, 6, 7])[1].counts.cached_tokens >= 400


def test_pc_08_a_cut_in_the_middle_uses_only_what_came_before_it(
    path: Path, tmp_path: Path
) -> None:
    text = noise(300, 1)
    cut = text[:100] + text[150:]
    with loaded(path, tmp_path) as model, loaded(path, tmp_path, off={"warm-start"}) as cold:
        ask(model, text)
        ids, end = ask(model, cut)
        assert ids == ask(cold, cut)[0] and end.counts.cached_tokens == 100


def test_cx_01_and_03_a_full_context_is_said_and_every_answer_ends(
    path: Path, tmp_path: Path
) -> None:
    with loaded(path, tmp_path) as model:
        with pytest.raises(ContextError, match="1024 tokens and the context holds 512"):
            ask(model, noise(1024, 1))
        assert model.scheduler.running == model.scheduler.waiting == 0
        assert ask(model, noise(CTX - 4, 1), max_tokens=None)[1].reason == "context"
        assert ask(model, noise(CTX - 4, 1), max_tokens=10**9)[1].reason == "context"


def test_mm_01_the_context_asked_for_is_in_force_or_refused(path: Path, tmp_path: Path) -> None:
    with loaded(path, tmp_path, ctx_size=200, parallel=3) as model:
        assert model.n_ctx == 200 and model.engine.pages.total >= 3 * 4
    with (
        pytest.raises(ContextError, match=r"cache for 2 times 100000000000 .* -c or --parallel"),
        loaded(path, tmp_path, ctx_size=10**11, parallel=2),
    ):
        pass


def test_sp_01_greedy_answers_with_guesses_are_those_without(path: Path, tmp_path: Path) -> None:
    prompts = [noise(random.Random(i).randrange(1, 200), i % 20) for i in range(50)]
    with loaded(path, tmp_path, off={"rad1"}) as plain, loaded(path, tmp_path) as model:
        drafted = 0
        for prompt in prompts:
            ids, end = ask(model, prompt, max_tokens=100)
            assert ids == ask(plain, prompt, max_tokens=100)[0]
            drafted += end.counts.drafted
        assert drafted > 100


def test_sm_01_no_top_k_is_no_top_k(path: Path, tmp_path: Path) -> None:
    with loaded(path, tmp_path) as model:
        prompt = noise(5, 1)

        def answer(**settings: int) -> list[int]:
            return ask(model, prompt, params=SamplingParams(temperature=1.2, **settings))[0]

        assert len({tuple(answer(top_k=0)) for _ in range(20)}) > 1
        assert answer(top_k=0, seed=3) == answer(top_k=-1, seed=3) == answer(top_k=VOCAB, seed=3)


def test_sm_03_banned_tokens_never_come_out(path: Path, tmp_path: Path) -> None:
    with loaded(path, tmp_path) as model:
        prompt, banned = noise(30, 1) * 3, set[int]()
        for _ in range(4):
            params = SamplingParams(temperature=0, logit_bias=dict.fromkeys(banned, -100.0))
            ids, _ = ask(model, prompt, params=params, max_tokens=40)
            assert not banned & set(ids)
            banned |= set(ids)


def test_sm_10_a_seed_of_ones_own_each_time_and_told(path: Path, tmp_path: Path) -> None:
    with loaded(path, tmp_path) as model:
        ends = [ask(model, [5, 6], params=SamplingParams(temperature=1.5)) for _ in range(6)]
        assert len({end.seed for _, end in ends}) == 6
        again = SamplingParams(temperature=1.5, seed=ends[0][1].seed)
        assert ask(model, [5, 6], params=again)[0] == ends[0][0]


def test_switches_are_known_by_name(path: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="no speed technology 'rad2' to turn off; there are rad1"),
        loaded(path, tmp_path, off={"rad2"}),
    ):
        pass
    with (
        pytest.raises(UsageError, match="0 requests cannot run at once"),
        loaded(path, tmp_path, parallel=0),
    ):
        pass
