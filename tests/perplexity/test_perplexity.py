"""Perplexity and KL divergence: the sums, the file format both ways, the command."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.cli import main
from kinetic.errors import KineticError, ModelFileError, UsageError
from kinetic.perplexity.base_file import BaseReader, BaseWriter, scored_rows
from kinetic.perplexity.measure import compare, cut, perplexity
from kinetic.perplexity.scores import (
    Comparison,
    PerplexitySums,
    decode_rows,
    encode_rows,
    row_words,
    surprise,
)

TEXT = "The quick brown fox jumps over the lazy dog. " * 12
WINDOW = 32
PEER_PPL = (84644.1309, 31521.1947)
"""What llama-perplexity printed for the model and text of the golden file."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model whose log-probabilities are golden."""
    path = tmp_path_factory.mktemp("perplexity") / "a.gguf"
    return tiny_model("llama", path, seed=5, formats="F32")


@pytest.fixture(scope="module")
def text_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def base_path(golden_dir: Path) -> Path:
    """Two windows of 32 tokens, as llama-perplexity saved them."""
    return golden_dir / "perplexity" / "llama.kld"


# Scores. -----------------------------------------------------------------------------------


def _logits(seed: int, n: int = 7, n_vocab: int = 33, spread: float = 4.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(n, n_vocab)) * spread).astype(np.float32)


@given(st.integers(0, 999), st.floats(0, 40))
def test_surprise_is_the_negative_log_of_softmax(seed: int, spread: float) -> None:
    logits = _logits(seed, spread=spread)
    targets = np.arange(7, dtype=np.int32)
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    wanted = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(7), targets]
    np.testing.assert_allclose(surprise(logits, targets), wanted, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 999), st.floats(0, 8))
def test_stored_rows_keep_log_probabilities(seed: int, spread: float) -> None:
    """Within half a step of the 16-bit scale; what is 16 below the best is cut off there."""
    logits = _logits(seed, spread=spread)
    exact = logits.astype(np.float64)
    exact = np.maximum(exact, exact.max(axis=1, keepdims=True) - 16)
    shift = logits.astype(np.float64)
    shift -= shift.max(axis=1, keepdims=True)
    wanted = exact - logits.max(axis=1, keepdims=True)
    wanted -= np.log(np.exp(shift).sum(axis=1, keepdims=True))
    found = decode_rows(encode_rows(logits), logits.shape[1])
    np.testing.assert_allclose(found, wanted, atol=16 / 65535 / 2 + 1e-5)


def test_equal_logits_are_stored() -> None:
    logits = np.full((2, 5), 3.0, np.float32)
    rows = encode_rows(logits)
    assert rows.shape == (2, row_words(5)) == (2, 10)
    np.testing.assert_allclose(decode_rows(rows, 5), -math.log(5), rtol=1e-6)


def test_a_model_does_not_differ_from_itself() -> None:
    logits, targets = _logits(1, n=50, spread=2), np.arange(50, dtype=np.int32) % 33
    found = Comparison()
    found.add(logits, targets, encode_rows(logits))
    assert abs(found.divergence.value) < 1e-5
    assert found.rms_dp.value < 1e-4
    assert found.top_agreement.value == 1
    assert found.own.perplexity.value == pytest.approx(found.base.perplexity.value, rel=1e-3)
    assert found.correlation == pytest.approx(1, abs=1e-3)


@given(st.integers(0, 999))
def test_a_divergence_is_never_below_zero(seed: int) -> None:
    targets = np.zeros(7, np.int32)
    found = Comparison()
    found.add(_logits(seed, spread=2), targets, encode_rows(_logits(seed + 1, spread=2)))
    assert (found.kl_values() > -1e-3).all()


def test_sums_do_not_depend_on_how_rows_are_cut() -> None:
    values = np.linspace(0, 5, 20)
    whole, parts = PerplexitySums(), PerplexitySums()
    whole.add(values)
    for value in np.split(values, 4):
        parts.add(value)
    assert whole.perplexity.value == pytest.approx(math.exp(values.mean()))
    assert parts.perplexity == pytest.approx(whole.perplexity)
    assert whole.perplexity.error == pytest.approx(
        math.exp(values.mean()) * values.std() / math.sqrt(19)
    )


def test_a_text_must_fill_two_windows() -> None:
    assert len(cut(list(range(100)), 32, None)) == 96
    assert len(cut(list(range(100)), 32, 2)) == 64
    with pytest.raises(UsageError, match=r"100 tokens.*at least 102"):
        cut(list(range(100)), 51, None)


# Files. ------------------------------------------------------------------------------------


def test_the_peers_file_is_read(base_path: Path, model_path: Path) -> None:
    with BaseReader(base_path) as base:
        assert (base.n_ctx, base.n_vocab, base.n_chunk) == (WINDOW, 320, 2)
        model = Model.load(model_path, ctx_size=WINDOW, threads=1)
        found = list(compare(model.engine, base, model.tokenizer.bos_id))[-1]
        model.close()
    assert found.count == 2 * scored_rows(WINDOW)
    assert abs(found.divergence.value) < 1e-3
    assert found.rms_dp.value < 1e-3
    assert found.top_agreement.value == 1
    assert found.base.perplexity.value == pytest.approx(PEER_PPL[1], rel=0.01)
    assert found.own.perplexity.value == pytest.approx(PEER_PPL[1], rel=0.005)


def test_our_file_is_the_peers(
    base_path: Path, model_path: Path, text_path: Path, tmp_path: Path
) -> None:
    """The same header and tokens, and log-probabilities that differ by arithmetic alone."""
    ours = tmp_path / "ours.kld"
    arguments = ["perplexity", str(model_path), str(text_path), "-c", "32", "--chunks", "2"]
    assert main([*arguments, "-t", "1", "--kl-divergence-base", str(ours)]) == 0
    raw, wanted = ours.read_bytes(), base_path.read_bytes()
    head = 20 + 4 * 2 * WINDOW
    assert raw[:head] == wanted[:head]
    assert len(raw) == len(wanted)
    rows = [
        decode_rows(np.frombuffer(data[head:], "<u2").reshape(-1, row_words(320)), 320)
        for data in (raw, wanted)
    ]
    assert np.abs(rows[0] - rows[1]).max() < 0.03


def _written(path: Path, n_vocab: int = 10, n_ctx: int = 8, chunks: int = 2) -> Path:
    tokens = np.arange(chunks * n_ctx, dtype=np.int32) % n_vocab
    with BaseWriter(path, n_ctx, n_vocab, tokens) as base:
        for chunk in range(chunks):
            base.write(encode_rows(_logits(chunk, scored_rows(n_ctx), n_vocab)))
        base.finish()
    return path


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    with BaseReader(_written(tmp_path / "base")) as base:
        assert base.tokens.tolist() == [i % 10 for i in range(16)]
        for chunk in range(2):
            wanted = encode_rows(_logits(chunk, 3, 10))
            assert (base.read(3) == wanted).all()
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        BaseWriter(tmp_path / "base", 8, 10, np.zeros(8, np.int32)),
    ):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(KineticError, match="cannot write"):
        BaseWriter(tmp_path / "none" / "base", 8, 10, np.zeros(8, np.int32))


@given(st.data())
def test_hostile_files_are_refused(data: st.DataObject) -> None:
    """Any header or length ends in `ModelFileError`, before memory of its size is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        path = _written(Path(folder) / "base")
        raw = bytearray(path.read_bytes())
        at = data.draw(st.sampled_from([0, 8, 12, 16, 20, 24]))
        struct.pack_into("<I", raw, at, data.draw(st.integers(0, 2**32 - 1)))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
        try:
            with BaseReader(path) as base:
                while True:
                    base.read(1)
        except ModelFileError:
            pass


# The command. ------------------------------------------------------------------------------


def test_the_peers_perplexity(
    model_path: Path, text_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["perplexity", "-m", str(model_path), "-f", str(text_path), "-c", "32"]
    assert main([*arguments, "--chunks", "2", "-t", "1"]) == 0
    running, final = capsys.readouterr().out.splitlines()
    found = [float(part.partition("]")[2]) for part in running.rstrip(",").split(",")]
    assert found == pytest.approx(PEER_PPL, rel=0.005)
    assert final.startswith(f"Final estimate: PPL = {found[-1]:.4f} +/- ")


def test_the_command_compares_with_the_peers_file(
    model_path: Path, base_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways to name the file: after --kl-divergence, and as llama-perplexity takes it."""
    start = ["perplexity", str(model_path), "-t", "1"]
    assert main([*start, "--kl-divergence", str(base_path)]) == 0
    ours = capsys.readouterr().out
    assert main([*start, "--kl-divergence", "--kl-divergence-base", str(base_path)]) == 0
    assert capsys.readouterr().out == ours
    assert "Same top token" in ours
    assert "100.000 ± 0.000 %" in ours


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give a text file"),
        (["{text}", "more"], "a word too many"),
        (["{text}", "-c", "300"], "tokens and windows of 300"),
        (["{text}", "-c", "3"], "whole number"),
        (["--kl-divergence"], "needs the file"),
        (["--kl-divergence", "{base}", "--kl-divergence-base", "x"], "one of them"),
        (["--kl-divergence", "{base}", "-f", "{text}"], "leave -f out"),
        (["--kl-divergence", "{base}", "-c", "64"], "windows of 32"),
    ],
)
def test_wrong_lines_say_what_to_do(
    arguments: list[str],
    complaint: str,
    model_path: Path,
    text_path: Path,
    base_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [word.format(text=text_path, base=base_path) for word in arguments]
    assert main(["perplexity", str(model_path), *filled]) == 2
    assert complaint in capsys.readouterr().err


def test_another_vocabulary_is_refused(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = _written(tmp_path / "base")
    assert main(["perplexity", str(model_path), "--kl-divergence", str(base)]) == 1
    assert "only models of one vocabulary" in capsys.readouterr().err


def test_bytes_that_are_no_text_are_refused(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xff\xfe")
    assert main(["perplexity", str(model_path), str(path)]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_windows_larger_than_a_step(model_path: Path) -> None:
    """A window is cut into steps; its scores are those of one row at a time."""
    model = Model.load(model_path, ctx_size=1024, threads=1)
    tokens = np.random.default_rng(0).integers(3, 320, 1024).astype(np.int32)
    (found,) = perplexity(model.engine, tokens, 1024, None)
    sequence = model.engine.new_sequence()
    rows = model.engine.all_logits(sequence, tokens[:-1].tolist())
    values = [
        surprise(row[None], tokens[i + 1 : i + 2])[0] for i, row in enumerate(rows) if i >= 512
    ]
    model.close()
    assert found.total == pytest.approx(sum(values), rel=1e-12)


# Real models. ------------------------------------------------------------------------------

LICENSE = Path(__file__).parents[2] / "LICENSE"
REAL = {
    "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf": (3.4123, 2.8578),
    "gemma-3-270m-Q4_K_M.gguf": (12.2451, 10.4070),
}
"""What llama-perplexity prints for two windows of 512 tokens of the licence."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_models_are_within_half_a_percent(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(os.environ.get("KINETIC_TEST_MODELS", "~/.cache/kinetic-test-models"))
    path = folder.expanduser() / name
    if not path.is_file():
        pytest.skip(f"{name} is absent (set KINETIC_TEST_MODELS)")
    assert main(["perplexity", str(path), str(LICENSE), "--chunks", "2"]) == 0
    out = capsys.readouterr().out
    final = float(out.partition("PPL = ")[2].partition(" ")[0])
    assert final == pytest.approx(REAL[name][1], rel=0.005)
