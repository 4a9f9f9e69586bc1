"""Guesses of a model's own prediction block change no answer, and it is told what was kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.answers import GREEDY, Heard, plain, random_tokens, request

from kinetic.api import Model
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import build, build_draft
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.drafting.block import Follower, FromBlock, PredictionBlock
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.prompt_cache import PromptCache
from kinetic.runtime.sampling import SamplingParams
from kinetic.runtime.scheduler import Scheduler

CTX, PAGES, SLOTS = 512, 32, 24
SEEDED = SamplingParams(temperature=1.0, top_k=40, seed=7, repeat_penalty=1.1)
PROMPTS = [(1, GREEDY), (40, SEEDED), (100, GREEDY), (300, SEEDED), (64, GREEDY)]


@contextmanager
def with_block(path: Path) -> Iterator[tuple[Engine, PredictionBlock]]:
    with GGUFFile.open(path) as file:
        draft = build_draft(file)
        assert draft is not None
        cpu = CpuDevice(
            compile_graph(build(file), cpu_target(), max_rows=128, max_outputs=32),
            file,
            threads=2,
            n_ctx=CTX,
            n_pages=PAGES,
            n_slots=SLOTS,
        )
        beside = CpuDevice(
            compile_graph(draft, cpu_target(), max_rows=64, max_outputs=1),
            file,
            threads=2,
            n_ctx=CTX,
            n_pages=PAGES,
            beside=cpu,
        )
        yield Engine(cpu, CTX, PAGES), PredictionBlock(beside, CTX, PAGES)
        beside.close()
        cpu.close()


def hidden_of(engine: Engine, tokens: list[int]) -> np.ndarray:
    """What the model makes of each token, one at a time."""
    sequence, rows = engine.new_sequence(), []
    for token in tokens:
        engine.step([Work(sequence, [token])])
        rows.append(engine.device.output("hidden", 1)[0].copy())
    sequence.close()
    return np.array(rows)


def run_all(
    chances: list[list[float]], users: int, base: int, cost: object, most: int
) -> list[int]:
    """Every guess, whatever it may be worth, as far as there are rows."""
    lengths = []
    for of_one in chances:
        lengths.append(min(len(of_one), most))
        most -= lengths[-1]
    return lengths


@pytest.mark.parametrize("model", ["qwen35-mtp", "qwen35moe-mtp"])
@pytest.mark.parametrize("right", [0.0, 0.7])
def test_answers_are_those_without_guesses(
    shared_dir: Path, model: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block's own guesses, which are wrong in a model of noise, and some that are right."""
    told: dict[FromBlock, list[tuple[int, list[int], np.ndarray]]] = {}
    with with_block(shared_dir / "golden" / "models" / f"{model}.gguf") as (engine, block):
        vocab = engine.device.output("logits", 0).shape[1]
        prompts = [random_tokens(n, n, vocab) for n, _ in PROMPTS]
        expected = [
            plain(engine, p, params, max_tokens=30)
            for p, (_, params) in zip(prompts, PROMPTS, strict=True)
        ]
        texts = [p + answer for p, answer in zip(prompts, expected, strict=True)]
        rng = np.random.default_rng(0)
        real_follow, real_guess = FromBlock.follow, Follower.guess

        def follow(self, at, tokens, hidden, chosen):  # type: ignore[no-untyped-def]
            told.setdefault(self, []).append((at, list(tokens), hidden[: len(tokens)].copy()))
            real_follow(self, at, tokens, hidden, chosen)

        def guess(self, token, count):  # type: ignore[no-untyped-def]
            found = real_guess(self, token, count)
            so_far = [*self._sequence.tokens, token]
            for text in texts:
                if text[: len(so_far)] == so_far and rng.random() < right:
                    found[:] = text[len(so_far) : len(so_far) + len(found)]
            return found

        monkeypatch.setattr(FromBlock, "follow", follow)
        monkeypatch.setattr(Follower, "guess", guess)
        monkeypatch.setattr(Scheduler, "_worth", lambda self: 0.01)
        monkeypatch.setattr("kinetic.runtime.scheduler.draft_lengths", run_all)
        for parallel in (1, 4):
            scheduler = Scheduler(engine, parallel, block=block)
            heard = [Heard() for _ in prompts]
            for prompt, (_, params), one in zip(prompts, PROMPTS, heard, strict=True):
                scheduler.submit(request(prompt, params, max_tokens=30, vocab=vocab), one)
            for one, answer in zip(heard, expected, strict=True):
                assert one.end.reason == "length" and one.ids == answer
            counts = [one.end.counts for one in heard]
            assert sum(c.drafted for c in counts) > 0
            assert not right or sum(c.accepted for c in counts) > 30
            scheduler.close()
            assert block.pages.available == PAGES == engine.pages.available
            assert engine.states is not None and engine.states.available == SLOTS
        # Each answer's block hears of every row that was kept, in order, and of its own text's.
        words = [hidden_of(engine, text) for text in texts]
        for rows in told.values():
            tokens = [token for _, part, _ in rows for token in part]
            ends = np.cumsum([len(part) for _, part, _ in rows]).tolist()
            assert [at for at, _, _ in rows] == [0, *ends[:-1]]
            i = next(i for i, text in enumerate(texts) if text[: len(tokens)] == tokens)
            found = np.concatenate([hidden for _, _, hidden in rows])
            assert np.array_equal(found, words[i][: len(tokens)])


def test_a_warm_prompt_and_one_that_begins_anew(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "_worth", lambda self: 0.01)
    with with_block(shared_dir / "golden" / "models" / "qwen35-mtp.gguf") as (engine, block):
        vocab = engine.device.output("logits", 0).shape[1]
        prompt = random_tokens(300, 3, vocab)
        expected = plain(engine, prompt, max_tokens=20)
        scheduler = Scheduler(engine, 2, cache=PromptCache(engine), block=block)
        broken, real = [False], engine.step

        def step(batch: list[Work], output: str = "logits") -> list[np.ndarray]:
            found = real(batch, output)
            if broken[0] and batch[0].want:  # as if the step had broken off
                broken[0] = False
                for work in batch:
                    work.sequence.forget(0)
                raise RuntimeError("broken off")
            return found

        for warm, breaks in ((0, False), (256, False), (256, True)):
            monkeypatch.setattr(engine, "step", step)
            heard, broken[0] = Heard(), breaks
            ticket = scheduler.submit(request(prompt, max_tokens=20, vocab=vocab), heard)
            end = heard.end
            if breaks:
                assert end.reason in ("error", "length") and not broken[0]
            else:
                assert heard.ids == expected and ticket.counts.cached_tokens == warm
        scheduler.close()
        assert block.pages.available == PAGES


def test_memory_counts_the_block_and_shares_its_matrices(shared_dir: Path) -> None:
    path = shared_dir / "golden" / "models" / "qwen35-mtp.gguf"
    with_guesses = Model.load(path, threads=1, ctx_size=128)
    without = Model.load(path, threads=1, ctx_size=128, off=("rad1",))
    try:
        more = with_guesses.memory.weights - without.memory.weights
        draft = with_guesses.scheduler.draft
        assert draft is not None and without.scheduler.draft is None
        assert 0 < more < sum(weight.nbytes for weight in draft.packed)
        assert with_guesses.memory.cache > without.memory.cache
        prompt = random_tokens(30, 5, with_guesses.graph.meta.n_vocab)
        answers = [
            [piece.token_id for piece in model.generate(prompt, SEEDED, 30)]
            for model in (with_guesses, without)
        ]
        assert answers[0] == answers[1]
    finally:
        with_guesses.close()
        without.close()
