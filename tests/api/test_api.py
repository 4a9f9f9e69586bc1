"""The Python API: answers end as they should, and wrong calls are told why."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import tiny_model

from kinetic.api import Model, SamplingParams, show, show_names
from kinetic.errors import ContextError, ModelFileError, UnsupportedError, UsageError
from kinetic.generation import StopText

GREEDY = SamplingParams(temperature=0)
CTX = 96


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return tiny_model(
        "llama", path, formats="Q8_0", n_embd=64, n_ff=96, head_dim=16, n_vocab=320, n_ctx=CTX
    )


@pytest.fixture(scope="module")
def model(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    os.environ["KINETIC_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    try:
        loaded = Model.load(path, threads=2)
    finally:
        del os.environ["KINETIC_CACHE_DIR"]
    yield loaded
    loaded.close()


def ids(model: Model, prompt: list[int], **options: object) -> list[int]:
    return [p.token_id for p in model.generate(prompt, GREEDY, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "limit", "words"),
    [
        ("hi", 3, "encode_prompt"),
        (None, 3, "encode_prompt"),
        ([1.5], 3, "token ids"),
        (["a"], 3, "token ids"),
        ([1], 1.5, "whole number, or None"),
        ([1], "3", "whole number, or None"),
        ([1], True, "whole number, or None"),
        ([1], -1, "0 or more, or None"),
    ],
)
def test_what_is_no_prompt_or_limit_is_refused(
    model: Model, prompt: object, limit: object, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        list(model.generate(prompt, GREEDY, limit))  # type: ignore[arg-type]


def test_close_ends_an_answer_under_way(path: Path) -> None:
    model = Model.load(path, threads=1)
    step, made = model.engine.step, []

    def slow(*arguments: Any, **named: Any) -> Any:
        made.append(1)
        time.sleep(0.02)
        return step(*arguments, **named)

    model.engine.step = slow  # type: ignore[method-assign]
    answer = model.generate([1, 2, 3], SamplingParams(temperature=1.5, seed=1))
    next(answer)
    model.close()
    steps = len(made)
    rest = list(answer)
    assert len(made) == steps < CTX // 2 and len(rest) <= steps
    with pytest.raises(UsageError, match="closed"):
        list(model.generate([1], GREEDY, 1))


def test_greedy_is_the_largest_logit_each_time(model: Model) -> None:
    prompt = model.encode_prompt("hello", raw=True)
    got = ids(model, prompt, max_tokens=12)
    sequence, expected = model.engine.new_sequence(), []
    logits = model.engine.prefill(sequence, prompt)
    for _ in got:
        expected.append(int(logits.argmax()))
        logits = model.engine.decode(sequence, expected[-1])
    sequence.close()
    assert got == expected and len(got) == 12
    stats = model.last_stats
    assert stats is not None and stats.stop_reason == "length"
    assert (stats.prompt_tokens, stats.generated_tokens) == (len(prompt), 12)


def test_threads_classes_and_caches_do_not_change_an_answer(model: Model, path: Path) -> None:
    params = SamplingParams(temperature=1.2, seed=7)
    expected = [p.token_id for p in model.generate([5, 6, 7], params, 30)]
    for threads, device_class in ((1, None), (3, "cpu-x86_64-scalar")):
        other = Model.load(path, threads=threads, device_class=device_class)
        assert [p.token_id for p in other.generate([5, 6, 7], params, 30)] == expected
        other.close()


def test_two_answers_may_be_read_in_turns(model: Model) -> None:
    alone = [ids(model, [i, i + 1, 9], max_tokens=10) for i in (3, 40)]
    both = [model.generate([i, i + 1, 9], GREEDY, 10) for i in (3, 40)]
    turns = list(zip(*both, strict=True))
    assert [[p.token_id for p in answer] for answer in zip(*turns, strict=True)] == alone


def test_measuring_takes_turns_with_an_answer(model: Model) -> None:
    prompt = model.encode_prompt("ab", raw=True)
    alone = ids(model, prompt, max_tokens=20)
    answer = model.generate(prompt, SamplingParams(temperature=0), 20)
    heard = [next(answer).token_id]
    for piece in answer:
        assert model.bench_prefill(20) > 0 and model.bench_decode(2) > 0
        heard.append(piece.token_id)
    assert heard == alone


def test_an_answer_that_is_dropped_gives_its_pages_back(model: Model) -> None:
    before = model.scheduler.free_pages
    for _ in range(5):
        answer = model.generate([1, 2, 3], GREEDY)
        next(answer)
        answer.close()
        assert model.scheduler.free_pages == before


def test_a_full_context_ends_the_answer(model: Model) -> None:
    # At random, so that the answer does not end before.
    for seed in itertools.count():
        params = SamplingParams(temperature=1.5, seed=seed)
        got = list(model.generate([7] * (CTX - 4), params))
        if model.last_stats and model.last_stats.stop_reason != "end":
            break
    assert model.last_stats is not None and model.last_stats.stop_reason == "context"
    assert model.last_stats.generated_tokens == 5 and len(got) >= 5


def test_a_stop_text_ends_the_answer_and_is_not_shown(model: Model) -> None:
    whole = "".join(p.text for p in model.generate([3, 4], GREEDY, 30))
    stop = whole[8:11]
    got = "".join(p.text for p in model.generate([3, 4], GREEDY, 30, stop=[stop]))
    assert got == whole[: whole.index(stop)]
    assert model.last_stats is not None and model.last_stats.stop_reason == "stop"


def test_no_tokens_asked_no_tokens_given(model: Model) -> None:
    assert list(model.generate([1], GREEDY, 0)) == []


@pytest.mark.parametrize(
    "prompt, error, message",
    [
        ([], UsageError, "the prompt has no tokens"),
        ([0] * (CTX + 1), ContextError, "97 tokens and the context holds 96"),
        ([5, 320], UsageError, "320 is no token of this model; its tokens are 0 to 319"),
        ([-1], UsageError, "-1 is no token of this model"),
        ([1, 2**40], UsageError, "1099511627776 is no token"),
    ],
)
def test_prompts_that_cannot_be_run(
    model: Model, prompt: list[int], error: type[Exception], message: str
) -> None:
    before = model.scheduler.free_pages
    with pytest.raises(error, match=message):
        list(model.generate(prompt, GREEDY))
    assert model.scheduler.free_pages == before


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"device": "cuda"}, UnsupportedError, "--device cuda is not supported yet"),
        ({"device_class": "cpu-arm"}, UnsupportedError, "device class cpu-arm is not known"),
        ({"kv_type": "q8_0"}, UnsupportedError, "a q8_0 cache is not supported"),
        ({"threads": 0}, UsageError, "0 threads cannot run a model"),
        ({"threads": -3}, UsageError, "-3 threads"),
        ({"ctx_size": -1}, UsageError, "a context of -1 tokens makes no sense"),
        ({"repack": False}, UnsupportedError, "--no-repack is not supported: kernels"),
    ],
)
def test_loads_that_cannot_be(
    path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Model.load(path, **options)  # type: ignore[arg-type]


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    for name in ("text.gguf", "absent.gguf"):
        with pytest.raises(ModelFileError):
            Model.load(tmp_path / name)


def test_show(path: Path) -> None:
    assert "attention(" in show(path) and "rope_write(" not in show(path)
    assert "rope_write(" in show(path, after="fuse-attention")
    plan = show(path, plan=True)
    assert "| barrier" in plan and "matmul_q8_0_add(" in plan
    names = show_names(path)
    assert "fuse-residual" in names and "matmul_q8_0" in names
    assert "matmul_q8_0:" in show(path, asm="matmul_q8_0")
    with pytest.raises(UsageError, match="no kernel of this model is called 'x'"):
        show(path, asm="x")
    with pytest.raises(UsageError, match="no pass is called 'x'"):
        show(path, after="x")


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 5), max_size=30),
)
def test_stop_texts_end_where_the_whole_text_would(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """However the text arrives, what is shown ends before the first stop text to be complete."""
    held, shown, at = StopText(stops), "", 0
    for cut in [*cuts, len(text)]:
        shown += held.push(text[at : at + cut])
        at += cut
        if held.found or at >= len(text):
            break
        assert not any(s in shown for s in stops)
    if not held.found:
        shown += held.flush()
    hits = [text.index(s) for s in stops if s in text]
    assert (held.found is not None) == bool(hits) or not text
    if hits:
        assert text.startswith(shown) and not any(s in shown for s in stops)
    else:
        assert shown == text
