"""Prompts that run ahead change no answer, and give way to whoever asks in earnest."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.answers import Heard, plain, random_tokens, request, tiny_engine

from kinetic.errors import QueueFull
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.scheduler import Scheduler


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("m")
    with tiny_engine(folder, arch=request.param, n_ctx=1024, n_pages=64, n_slots=16) as engine:
        yield engine


def ahead(prompt: list[int]):  # type: ignore[no-untyped-def]
    return request(prompt, max_tokens=0, ahead=True)


def test_the_prompt_that_was_typed_is_warm_and_the_answer_the_cold_one(engine: Engine) -> None:
    prompt = random_tokens(700, 1)
    expected = plain(engine, prompt)
    scheduler = Scheduler(engine, 1, cache=PromptCache(engine))
    for typed in (300, 520, 690):  # each goes on where the one before ended
        heard = Heard()
        scheduler.submit(ahead(prompt[:typed]), heard)
        assert heard.end.reason == "length" and heard.ids == []
    heard = Heard()
    ticket = scheduler.submit(request(prompt), heard)
    assert heard.end.reason == "length" and heard.ids == expected
    assert ticket.counts.cached_tokens >= 512
    scheduler.close()
    assert engine.pages.available == 64


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_request_waits_for_no_more_than_one_batch(
    engine: Engine, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, asked = random_tokens(1000, 2), random_tokens(200, 3)
    expected = plain(engine, asked, max_tokens=8)
    scheduler = Scheduler(engine, parallel, queue_limit=0, cache=PromptCache(engine))
    steps: list[list[tuple[int, int]]] = []
    first, go, real = threading.Event(), threading.Event(), engine.step

    def step(batch: list[Work], output: str = "logits"):  # type: ignore[no-untyped-def]
        steps.append([(work.tokens[0], len(work.tokens)) for work in batch])
        found = real(batch, output)
        if not first.is_set():
            first.set()
            assert go.wait(30)
        return found

    monkeypatch.setattr(engine, "step", step)
    running, heard = Heard(), Heard()
    scheduler.submit(ahead(typed), running)
    assert first.wait(30)
    scheduler.submit(request(asked, max_tokens=8), heard)  # it counts as nobody in the queue
    if parallel == 1:
        with pytest.raises(QueueFull):
            scheduler.submit(request(asked, max_tokens=8), Heard())
    go.set()
    assert heard.end.reason == "length" and heard.ids == expected
    assert running.end.reason == ("cancelled" if parallel == 1 else "length")
    ours = next(i for i, batch in enumerate(steps) if batch[0][0] == asked[0])
    assert ours == 1, "it waited for more than the batch under way"
    assert all(len(batch) == 1 for batch in steps), "no step is shared with what runs ahead"
    # What had been run before it gave way is not run again.
    again = Heard()
    ticket = scheduler.submit(request(typed, max_tokens=1), again)
    assert again.end.reason == "length"
    assert ticket.counts.cached_tokens >= (64 if engine.states is None else 0)
    scheduler.close()
    assert engine.pages.available == 64
