"""Whole files as llama-quantize writes them, from models made here; the command end to end."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.quantize_models import dense, importance, mixture
from support.tiny_models import tiny_model

from kinetic.cli import main
from kinetic.errors import KineticError, ModelFileError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.new_file import NewFile
from kinetic.quantize.importance import ImportanceMatrix, read, write
from kinetic.quantize.job import make_plan, run
from kinetic.quantize.mixture import find_target

GOLDEN = Path(__file__).parents[2] / "golden" / "quants" / "llama_quantize.json"
HASHES: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())
"""SHA-256 of the files, by model, with or without importance, and target."""
MAKERS = {"dense": dense, "mixture": mixture}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: make(folder / f"{name}.gguf") for name, make in MAKERS.items()}


@pytest.fixture(scope="module")
def matrices(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Importance matrices, under the names that the golden files say."""
    folder, found = tmp_path_factory.mktemp("importance"), {}
    for name, file in (("dense", "imatrix.gguf"), ("mixture", "imatrix-moe.gguf")):
        found[name] = folder / file
        write(found[name], importance(models[name]))
    return found


@pytest.mark.parametrize(
    ("case", "target"), [(case, target) for case, found in HASHES.items() for target in found]
)
def test_a_file_is_llama_quantizes(
    case: str, target: str, models: dict[str, Path], matrices: dict[str, Path], tmp_path: Path
) -> None:
    name, weighed = case.split(", ")[0], "importance" in case
    found = read(matrices[name], matrices[name].name) if weighed else None
    out = tmp_path / "out.gguf"
    with GGUFFile.open(models[name]) as source:
        plan = make_plan(
            source,
            find_target(target),
            importance=None if found is None else found.means(),
            extra=None if found is None else found.pairs(),
        )
        run(plan, out, threads=2)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == HASHES[case][target]


def _quantize(*words: object) -> int:
    return main(["quantize", *map(str, words)])


def test_the_command(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    assert _quantize(models["dense"], out, "q4_k_m", 2) == 0
    shown = capsys.readouterr()
    assert hashlib.sha256(out.read_bytes()).hexdigest() == HASHES["dense"]["Q4_K_M"]
    assert "out.gguf takes" in shown.out
    assert "288" not in shown.out
    assert "no whole number of" in shown.err
    assert _quantize(models["dense"], out, "Q8_0") == 2
    assert "--yes replaces it" in capsys.readouterr().err
    assert _quantize(models["dense"], out, "Q8_0", "--yes", "-t", 1) == 0
    assert hashlib.sha256(out.read_bytes()).hexdigest() == HASHES["dense"]["Q8_0"]


def test_a_dry_run_writes_nothing(models: dict[str, Path], tmp_path: Path) -> None:
    assert _quantize(models["dense"], tmp_path / "out.gguf", "Q4_0", "--dry-run") == 0
    assert not list(tmp_path.iterdir())


def test_the_command_weighs_by_importance(
    models: dict[str, Path],
    matrices: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copy(matrices["dense"], tmp_path)
    monkeypatch.chdir(tmp_path)
    assert _quantize(models["dense"], "out.gguf", "Q2_K", "--imatrix", "imatrix.gguf") == 0
    found = hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()
    assert found == HASHES["dense, importance"]["Q2_K"]


def test_a_matrix_that_lacks_weights(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """QZ-01: said before any work, and refused with --strict."""
    whole = importance(models["dense"])
    part = {name: m for name, m in whole.matrices.items() if "blk.3." not in name}
    write(tmp_path / "part.gguf", ImportanceMatrix(part, ("text",), 1, 512))
    line = (models["dense"], tmp_path / "out.gguf", "Q4_K_M", "--imatrix", tmp_path / "part.gguf")
    assert _quantize(*line, "--strict") == 1
    assert "blk.3." in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()
    assert _quantize(*line) == 0
    assert "quantized without: " in capsys.readouterr().err


def test_strict_needs_a_matrix(models: dict[str, Path], tmp_path: Path) -> None:
    assert _quantize(models["dense"], tmp_path / "out.gguf", "Q4_0", "--strict") == 2


def test_a_matrix_of_another_model(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny_model("llama", tmp_path / "other.gguf", formats="F16", n_embd=512)
    write(tmp_path / "other.imatrix", importance(other))
    line = (models["dense"], tmp_path / "out.gguf", "Q4_0", "--imatrix", tmp_path / "other.imatrix")
    assert _quantize(*line) == 1
    assert "another model" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = dense(tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        at = file.tensors["blk.4.ffn_up.weight"].offset
    raw = bytearray(path.read_bytes())
    raw[at : at + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(raw)
    with (
        GGUFFile.open(path) as source,
        pytest.raises(ModelFileError, match=r"blk\.4\.ffn_up\.weight"),
    ):
        run(make_plan(source, find_target("Q4_0")), tmp_path / "out.gguf", threads=1)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


# The disk. ---------------------------------------------------------------------------------


def test_a_disk_that_fills_up_keeps_nothing(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A file on a disk with room for 100 kB more."""

        def __init__(self, file: object) -> None:
            self._file, self._room = file, 100_000

        def write(self, data: bytes | memoryview) -> int:
            self._room -= memoryview(data).nbytes
            if self._room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self._file.write(data)  # type: ignore[attr-defined, no-any-return]

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

    usual = NewFile.write

    def write_some(self: NewFile, data: bytes | memoryview) -> None:
        if not isinstance(self._file, Full):
            self._file = Full(self._file)  # type: ignore[assignment]
        usual(self, data)

    monkeypatch.setattr(NewFile, "write", write_some)
    with (
        GGUFFile.open(models["dense"]) as source,
        pytest.raises(KineticError, match="the disk is full"),
    ):
        run(make_plan(source, find_target("Q8_0")), tmp_path / "out.gguf", threads=2)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_said_at_once(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with (
        GGUFFile.open(models["dense"]) as source,
        pytest.raises(KineticError, match="free some space"),
    ):
        run(make_plan(source, find_target("Q8_0")), tmp_path / "out.gguf", threads=1)
    assert not list(tmp_path.iterdir())


def test_threads_do_not_change_the_file(models: dict[str, Path], tmp_path: Path) -> None:
    files = []
    for threads in (1, 3):
        out = tmp_path / f"{threads}.gguf"
        with GGUFFile.open(models["mixture"]) as source:
            run(make_plan(source, find_target("Q4_K_S")), out, threads=threads)
        files.append(np.fromfile(out, np.uint8))
    assert (files[0] == files[1]).all()
