"""The two commands of the README, in a fresh copy of the project with no environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = "gemma-3-270m-Q4_K_M.gguf"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The tracked files as they are now, links kept, and nothing else."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def run(clone: Path, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the Python that made this environment, as a user would."""
    outside = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, clone / "scripts" / script, *arguments],
        capture_output=True,
        text=True,
        env={**outside, **env},
        check=False,
    )


def test_one_command_runs_the_tests(clone):
    done = run(clone, "test.py", "tests/house/test_settings.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "making .venv" in done.stderr
    again = run(clone, "test.py", "tests/house/test_settings.py")
    assert "installing" not in again.stderr


def test_one_command_answers_and_soon_the_second_time(clone, tmp_path):
    pytest.importorskip("kinetic.api")
    named = os.environ.get("KINETIC_TEST_MODELS")
    models = Path(named) if named else Path.home() / ".cache" / "kinetic-test-models"
    if not (models / MODEL).exists():
        pytest.skip(f"{MODEL} is not among the test models")
    # The test model is linked, not fetched; compiled kernels start from nothing.
    env = {"KINETIC_TEST_MODELS": str(models), "KINETIC_CACHE_DIR": str(tmp_path / "cache")}
    line = ("try.py", "The capital of France is", "--temp", "0", "-n", "8")
    first = run(clone, *line, **env)
    assert first.returncode == 0, first.stderr
    assert "no chat template: continued the text" in first.stderr
    started = time.monotonic()
    second = run(clone, *line, **env)
    took = time.monotonic() - started
    assert second.stdout == first.stdout
    # The base model's greedy words, the same as llama.cpp's.
    assert "the capital of the country of France" in second.stdout
    # Under 2 s to the first token on a quiet machine; the bound only catches a second set-up.
    assert took < 30
