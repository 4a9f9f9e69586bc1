"""The engine's step: what it refuses leaves no trace, what it gives belongs to whom it should."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.tiny_models import tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.errors import ContextError, InternalError
from kinetic.families import build
from kinetic.ir.cpu_abi import PAGE
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine, Work
from kinetic.runtime.rows import Rows

CTX, PAGES = 3 * PAGE, 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    tiny_model("llama", path, formats="Q8_0", n_embd=64, n_ff=96, head_dim=16, n_vocab=288)
    with GGUFFile.open(path) as file:
        program = compile_graph(build(file), cpu_target(), max_rows=32, max_outputs=8)
        cpu = CpuDevice(program, file, threads=2, n_ctx=CTX, n_pages=PAGES)
        yield Engine(cpu, CTX, PAGES)
        cpu.close()


@pytest.fixture(autouse=True)
def all_pages_come_back(engine: Engine) -> Iterator[None]:
    yield
    assert engine.pages.available == PAGES


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 288, count).tolist()


def test_a_launch_at_a_time_gives_the_same_words(engine: Engine) -> None:
    found = []
    for whole in (True, False):
        engine.device.whole_steps = whole  # type: ignore[attr-defined]
        sequence = engine.new_sequence()
        found.append(np.stack(list(engine.all_logits(sequence, tokens(40)))))
        sequence.close()
    engine.device.whole_steps = True  # type: ignore[attr-defined]
    assert (found[0].view(np.uint32) == found[1].view(np.uint32)).all()


def test_each_gets_its_own_rows(engine: Engine) -> None:
    prompts = [tokens(9, i) for i in range(3)]
    alone = []
    for prompt in prompts:
        sequence = engine.new_sequence()
        alone.append(np.stack(list(engine.all_logits(sequence, prompt))))
        sequence.close()
    together = [engine.new_sequence() for _ in prompts]
    work = [Work(s, p, w) for s, p, w in zip(together, prompts, (1, 0, 5), strict=True)]
    first, none, last = engine.step(work)
    assert first.shape == (1, 288) and none.shape == (0, 288)
    assert (first == alone[0][-1:]).all() and (last == alone[2][-5:]).all()
    for sequence in together:
        sequence.close()


def test_all_logits_may_be_kept(engine: Engine) -> None:
    """More rows than a step has outputs: earlier ones must not be overwritten by later ones."""
    sequence, prompt = engine.new_sequence(), tokens(30)
    kept = list(engine.all_logits(sequence, prompt))
    sequence.truncate(0)
    for got, token in zip(kept, prompt, strict=True):
        assert (got == engine.decode(sequence, token)).all()
    sequence.close()


def refusals(engine: Engine) -> dict[str, tuple[list[tuple[int, int, int]], type[Exception], str]]:
    """(sequence, tokens, wanted) of each work, and what is raised."""
    full = CTX - 20 + 1
    return {
        "context": ([(1, 3, 1), (0, full, 0)], ContextError, "the context of 192 tokens is full"),
        "pages": ([(1, 100, 0), (2, 60, 0), (3, 60, 0)], ContextError, "0 free pages and 1 are"),
        "rows": ([(0, 16, 1), (1, 17, 1)], ContextError, "a step of 33 rows with 2 outputs"),
        "outputs": ([(0, 9, 9)], ContextError, "a step of 9 rows with 9 outputs"),
        "no rows": ([], ContextError, "a step of 0 rows"),
        "wanted": ([(1, 5, 1), (0, 2, 3)], InternalError, "3 outputs of 2 rows"),
        "same twice": ([(1, 5, 1), (1, 6, 1), (0, 25, 1)], ContextError, "a step of 36 rows"),
    }


@pytest.mark.parametrize(
    "label", ["context", "pages", "rows", "outputs", "no rows", "wanted", "same twice"]
)
def test_a_refused_step_leaves_everything_as_it_was(engine: Engine, label: str) -> None:
    work, error, message = refusals(engine)[label]
    sequences = [engine.new_sequence() for _ in range(4)]
    engine.prefill(sequences[0], tokens(20))
    expected = engine.decode(sequences[0], 5).copy()
    sequences[0].truncate(20)
    available = engine.pages.available
    batch = [Work(sequences[who], tokens(count, 1), want) for who, count, want in work]
    with pytest.raises(error, match=message):
        engine.step(batch)
    assert [len(s) for s in sequences] == [20, 0, 0, 0]
    assert sequences[0].tokens == tokens(20) and engine.pages.available == available
    assert (engine.decode(sequences[0], 5) == expected).all()
    for sequence in sequences:
        sequence.close()


def test_a_device_that_fails_leaves_the_sequences_as_they_were(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rows: Rows) -> None:
        raise KeyboardInterrupt

    sequence = engine.new_sequence()
    engine.prefill(sequence, tokens(5))
    monkeypatch.setattr(engine.device, "step", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.decode(sequence, 1)
    assert sequence.tokens == tokens(5)
    sequence.close()


def test_a_sequence_fills_its_context_to_the_last_place(engine: Engine) -> None:
    sequence = engine.new_sequence()
    engine.prefill(sequence, tokens(CTX - 1))
    engine.decode(sequence, 3)
    with pytest.raises(ContextError, match="193 are needed"):
        engine.decode(sequence, 3)
    assert len(sequence) == CTX
    sequence.close()


def test_pages_that_come_back_serve_others(engine: Engine) -> None:
    """Old keys and values in a page are never seen by its next holder."""
    prompt = tokens(CTX, 3)
    first = engine.new_sequence()
    expected = engine.prefill(first, prompt).copy()
    first.close()
    for seed in range(3):
        other = engine.new_sequence()
        engine.prefill(other, tokens(CTX - 7 * seed, 10 + seed))
        other.close()
        again = engine.new_sequence()
        assert (engine.prefill(again, prompt) == expected).all()
        again.close()
