"""The scheduler: whoever shares a step, an answer is the one that plain decoding gives."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.answers import GREEDY, VOCAB, Heard, plain, random_tokens, request, tiny_engine

from kinetic.errors import ContextError, InternalError, KineticError, QueueFull, UsageError
from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.request import Token
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import CHUNK, Scheduler

CTX, PAGES = 8 * PAGE, 36
SEEDED = SamplingParams(temperature=1.0, top_k=40, seed=7, repeat_penalty=1.1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("m")
    with tiny_engine(folder, n_ctx=CTX, n_pages=PAGES, max_outputs=24) as engine:
        yield engine


@pytest.fixture(autouse=True)
def all_pages_come_back(engine: Engine) -> Iterator[None]:
    yield
    assert engine.pages.available == PAGES


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Scheduler]:
    made = Scheduler(engine, parallel=4)
    yield made
    made.close(cancel=True)


def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Rows of each work of each step, as steps are taken."""
    steps: list[list[int]] = []
    real = engine.step

    def step(batch: list[Work], output: str = "logits") -> list[np.ndarray]:
        steps.append([len(work.tokens) for work in batch])
        return real(batch, output)

    monkeypatch.setattr(engine, "step", step)
    return steps


def test_answers_are_those_of_plain_decoding(engine: Engine) -> None:
    prompts = [random_tokens(n, n) for n in (1, 2, 63, 64, 65, 200, 300, 7)]
    every = [SEEDED if i % 2 else GREEDY for i in range(len(prompts))]
    expected = [plain(engine, p, params) for p, params in zip(prompts, every, strict=True)]
    for parallel in (1, 3, 4):
        scheduler = Scheduler(engine, parallel)
        heard = [Heard() for _ in prompts]
        for prompt, params, one in zip(prompts, every, heard, strict=True):
            scheduler.submit(request(prompt, params), one)
        for one, answer in zip(heard, expected, strict=True):
            assert one.end.reason == "length" and one.ids == answer
        scheduler.close()


def test_counts_and_progress(scheduler: Scheduler) -> None:
    heard = Heard()
    scheduler.submit(request(random_tokens(300), max_tokens=5), heard)
    counts = heard.end.counts
    assert (counts.prompt_tokens, counts.generated_tokens, counts.cached_tokens) == (300, 5, 0)
    assert heard.prompts == [(128, 300), (256, 300), (300, 300)]
    assert counts.prompt_seconds > 0 and counts.generate_seconds > 0


@pytest.mark.parametrize(
    ("options", "reason", "length"),
    [
        ({"max_tokens": 5}, "length", 5),
        ({"max_tokens": 0}, "length", 0),
        ({"max_tokens": None}, "context", CTX - 20 + 1),
        ({"max_tokens": 10**9}, "context", CTX - 20 + 1),
        ({"max_tokens": 9, "end_ids": frozenset(range(VOCAB))}, "end", 1),
    ],
)
def test_answers_end_for_a_reason(
    scheduler: Scheduler, options: dict[str, object], reason: str, length: int
) -> None:
    heard = Heard()
    scheduler.submit(request(random_tokens(20), **options), heard)  # type: ignore[arg-type]
    assert heard.end.reason == reason and len(heard.ids) == length


def test_a_listener_may_stop_the_answer(scheduler: Scheduler) -> None:
    heard = Heard(stop_at=3)
    scheduler.submit(request(random_tokens(20)), heard)
    assert heard.end.reason == "stop" and len(heard.ids) == 3


def test_a_full_context_from_the_start_gives_one_token(
    engine: Engine, scheduler: Scheduler
) -> None:
    prompt = random_tokens(CTX)
    heard = Heard()
    scheduler.submit(request(prompt, max_tokens=None), heard)
    assert heard.end.reason == "context" and heard.ids == plain(engine, prompt, max_tokens=1)


def test_what_cannot_fit_is_refused_with_both_numbers(engine: Engine, scheduler: Scheduler) -> None:
    with pytest.raises(ContextError, match=r"has 513 tokens and the context holds 512; .* -c"):
        scheduler.submit(request(random_tokens(CTX + 1)), Heard())
    with pytest.raises(UsageError, match="no tokens"):
        scheduler.submit(request([]), Heard())
    with pytest.raises(UsageError, match="25 requests cannot run at once; give --parallel 1 to 24"):
        Scheduler(engine, 25)


def test_requests_wait_for_pages_rather_than_fail(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Four slots, but pages for two whole contexts: nobody runs out in the middle."""
    with tiny_engine(tmp_path_factory.mktemp("few"), n_ctx=CTX, n_pages=17) as engine:
        scheduler = Scheduler(engine, 4)
        heard = [Heard() for _ in range(5)]
        for i, one in enumerate(heard):
            scheduler.submit(request(random_tokens(30, i), max_tokens=None), one)
        assert [one.end.reason for one in heard] == ["context"] * 5
        scheduler.close()
        assert engine.pages.available == 17


def test_the_queue_is_bounded(engine: Engine) -> None:
    scheduler = Scheduler(engine, 1, queue_limit=2)
    gate, heard = threading.Event(), [Heard() for _ in range(4)]

    class Waiting(Heard):
        def token(self, token: Token) -> bool:
            gate.wait(30)
            return super().token(token)

    first = Waiting()
    scheduler.submit(request([1, 2, 3]), first)
    for one in heard[:2]:
        scheduler.submit(request([4, 5]), one)
    with pytest.raises(QueueFull, match="1 request is running and 2 are waiting"):
        scheduler.submit(request([6]), heard[2])
    assert issubclass(QueueFull, KineticError)
    gate.set()
    assert first.end.reason == heard[1].end.reason == "length"
    scheduler.submit(request([6]), heard[3])
    assert heard[3].end.reason == "length"
    scheduler.close()


def test_a_long_prompt_stalls_nobody_by_more_than_a_chunk(
    engine: Engine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(engine, monkeypatch)
    talking, long = Heard(), Heard()

    class Starts(Heard):
        def token(self, token: Token) -> bool:
            if len(self.tokens) == 3:
                scheduler.submit(request(random_tokens(450, 5), max_tokens=2), long)
            return super().token(token)

    talking = Starts()
    scheduler.submit(request(random_tokens(10), max_tokens=60), talking)
    assert talking.end.reason == long.end.reason == "length"
    shared = [rows for rows in steps if len(rows) == 2]
    assert len(shared) >= 450 // CHUNK and all(sum(rows) <= CHUNK + 30 for rows in shared)
    assert max(sum(rows) for rows in steps) <= CHUNK + 30


def test_prompts_take_turns(
    engine: Engine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short prompt behind a long one is not kept waiting for all of it."""
    order: list[str] = []

    class Named(Heard):
        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def token(self, token: Token) -> bool:
            order.append(self.name)
            return super().token(token)

    together = threading.Event()
    scheduler_call = threading.Thread(target=scheduler.call, args=(lambda: together.wait(10),))
    scheduler_call.start()
    long, short = Named("long"), Named("short")
    scheduler.submit(request(random_tokens(500), max_tokens=1), long)
    scheduler.submit(request(random_tokens(100, 1), max_tokens=1), short)
    together.set()
    assert long.end.reason == short.end.reason == "length"
    assert order == ["short", "long"]
    scheduler_call.join()


def test_one_who_fails_leaves_the_others_alone(engine: Engine, scheduler: Scheduler) -> None:
    class Raises(Heard):
        def token(self, token: Token) -> bool:
            super().token(token)
            raise ValueError("a bug of the listener")

    banned = SamplingParams(temperature=0, logit_bias={i: float("-inf") for i in range(VOCAB)})
    good, prompt = Heard(), random_tokens(50)
    bad = [Raises(), Heard(), Heard()]
    scheduler.submit(request(prompt, SEEDED, max_tokens=40), good)
    scheduler.submit(request(random_tokens(20)), bad[0])
    scheduler.submit(request(random_tokens(20), banned), bad[1])
    scheduler.submit(request([1, 2, VOCAB]), bad[2])
    assert good.end.reason == "length" and good.ids == plain(engine, prompt, SEEDED, max_tokens=40)
    errors = [one.end.error for one in bad]
    assert [one.end.reason for one in bad] == ["error"] * 3
    assert isinstance(errors[0], InternalError) and "a bug of the listener" in str(errors[0])
    assert isinstance(errors[1], UsageError) and isinstance(errors[2], InternalError)


def test_a_step_that_breaks_off_is_taken_again_by_each_alone(
    engine: Engine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_tokens(20, i) for i in range(3)]
    expected = [plain(engine, p, SEEDED, max_tokens=30) for p in prompts]
    real = engine.step

    def step(batch: list[Work], output: str = "logits") -> list[np.ndarray]:
        if any(
            len(work.sequence) > 30 and work.sequence.tokens[:20] == prompts[1] for work in batch
        ):
            raise InternalError("the second one breaks steps")
        return real(batch, output)

    monkeypatch.setattr(engine, "step", step)
    heard = [Heard() for _ in prompts]
    for prompt, one in zip(prompts, heard, strict=True):
        scheduler.submit(request(prompt, SEEDED, max_tokens=30), one)
    assert [one.end.reason for one in heard] == ["length", "error", "length"]
    assert heard[0].ids == expected[0] and heard[2].ids == expected[2]
    assert heard[1].ids == expected[1][: len(heard[1].ids)] and "breaks steps" in str(
        heard[1].end.error
    )


def test_cancel_and_deadline(engine: Engine) -> None:
    scheduler = Scheduler(engine, 1)

    class Slow(Heard):
        def token(self, token: Token) -> bool:
            time.sleep(0.002)
            return super().token(token)

    running, queued, late, last = Slow(), Heard(), Heard(), Slow()
    ticket = scheduler.submit(request(random_tokens(9), max_tokens=400), running)
    waiting = scheduler.submit(request(random_tokens(9)), queued)
    scheduler.submit(request(random_tokens(9), deadline=time.monotonic() - 1), late)
    waiting.cancel()
    assert queued.end.reason == "cancelled" and queued.ids == []
    assert late.end.reason == "deadline" and not running.over.is_set()
    ticket.cancel()
    ticket.cancel()
    assert running.end.reason == "cancelled" and len(running.ids) < 400
    scheduler.submit(
        request(random_tokens(9), max_tokens=400, deadline=time.monotonic() + 0.05), last
    )
    assert last.end.reason == "deadline"
    scheduler.close()


def test_a_storm_of_cancels_leaks_nothing_and_harms_nobody(engine: Engine) -> None:
    rng = random.Random(3)
    scheduler = Scheduler(engine, 4)
    prompts = [random_tokens(rng.randrange(1, 150), i) for i in range(6)]
    expected = [plain(engine, p, SEEDED, max_tokens=20) for p in prompts]
    heard, tickets = [], []
    for i in range(60):
        heard.append(Heard())
        tickets.append(scheduler.submit(request(prompts[i % 6], SEEDED, max_tokens=20), heard[-1]))
        if rng.random() < 0.5:
            rng.choice(tickets).cancel()
        time.sleep(rng.random() / 300)
    for i, one in enumerate(heard):
        assert one.end.reason in ("length", "cancelled")
        whole = expected[i % 6]
        assert one.ids == whole[: len(one.ids)]
        assert one.end.reason == "cancelled" or one.ids == whole
    scheduler.close()


def test_calls_run_between_steps_on_the_engines_thread(scheduler: Scheduler) -> None:
    assert scheduler.call(lambda: threading.current_thread().name) == "kinetic-engine"
    assert scheduler.call(lambda: scheduler.call(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        scheduler.call(lambda: 1 // 0)


def test_an_idle_scheduler_sleeps(scheduler: Scheduler) -> None:
    heard = Heard()
    scheduler.submit(request([1, 2]), heard)
    assert heard.end
    time.sleep(0.05)  # workers spin for a moment after a step
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.1


def test_a_closed_scheduler_takes_nothing(engine: Engine) -> None:
    scheduler = Scheduler(engine, 2)
    heard = [Heard() for _ in range(5)]
    for one in heard:
        scheduler.submit(request(random_tokens(5)), one)
    scheduler.close()
    assert [one.end.reason for one in heard] == ["length"] * 5
    with pytest.raises(UsageError, match="closed"):
        scheduler.submit(request([1]), Heard())
    with pytest.raises(UsageError, match="closed"):
        scheduler.call(lambda: None)


def test_log_probabilities_are_those_of_the_raw_logits(
    engine: Engine, scheduler: Scheduler
) -> None:
    heard, prompt = Heard(), random_tokens(20)
    scheduler.submit(request(prompt, SEEDED, max_tokens=3, logprobs=5), heard)
    assert heard.end.reason == "length"
    sequence = engine.new_sequence()
    logits = engine.prefill(sequence, prompt).astype(np.float64)
    sequence.close()
    logs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    token = heard.tokens[0]
    assert token.logprob == pytest.approx(logs[token.id], abs=1e-5)
    assert [i for i, _ in token.top] == np.argsort(-logits, kind="stable")[:5].tolist()
    assert all(value <= 0 for _, value in token.top)
    assert [v for _, v in token.top] == pytest.approx(sorted(logs)[:-6:-1], abs=1e-5)


def test_without_convoy_requests_take_turns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(engine, monkeypatch)
    scheduler = Scheduler(engine, 3, off={"convoy", "rad1"})
    prompts, heard = [random_tokens(20, i) for i in range(3)], [Heard() for _ in range(3)]
    for prompt, one in zip(prompts, heard, strict=True):
        scheduler.submit(request(prompt), one)
    answers = [one.end and one.ids for one in heard]
    scheduler.close()
    assert {len(rows) for rows in steps} == {1} and max(max(rows) for rows in steps) == 20
    assert answers == [plain(engine, p) for p in prompts]
