"""Damaged files in a folder of models: every command that reads headers says so and goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from kinetic.cli import main


def cases(shared_dir: Path) -> list[dict[str, object]]:
    file = shared_dir / "cases" / "cases.jsonl"
    if not file.is_file():
        pytest.skip("the case book is absent")
    lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [case for case in lines if case["id"].startswith("GG-") and "hex" in case["input"]]


def test_the_case_books_files(shared_dir, tmp_path, monkeypatch, capsys):
    """GG-01 to GG-16: exit code 1, one sentence, at once, from each command alike."""
    monkeypatch.setenv("KINETIC_MODELS", str(tmp_path))
    for case in cases(shared_dir):
        path = tmp_path / f"{case['id']}.gguf"
        path.write_bytes(bytes.fromhex(case["input"]["hex"]))
        for command in ("info", "fit", "plan"):
            started = time.monotonic()
            code = main([command, str(path)])
            said = capsys.readouterr()
            if command == "fit" and "no: " in said.out:
                said = said._replace(err="kinetic: " + said.out.splitlines()[1])
            assert code == 1, (case["id"], command)
            assert said.err.startswith("kinetic: "), (case["id"], command)
            assert "Traceback" not in said.err
            assert time.monotonic() - started < 5
    assert main(["models"]) == 0
    assert "yes" not in capsys.readouterr().out


def test_files_that_are_cut_or_padded(tmp_path, monkeypatch, capsys):
    """GG-13 and GG-15: padding does no harm, a cut file is named as one."""
    monkeypatch.setenv("KINETIC_MODELS", str(tmp_path))
    whole = tiny_model("llama", tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "padded.gguf").write_bytes(whole + b"\0" * 17)
    for share in (0.1, 0.5, 0.99):
        (tmp_path / f"cut{share}.gguf").write_bytes(whole[: int(len(whole) * share)])
    (tmp_path / "cut1.gguf").write_bytes(whole[:-33])
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["whole"]["runs"]
    assert rows["padded"]["runs"]
    cut = [row for name, row in rows.items() if name.startswith("cut")]
    assert len(cut) == 4
    assert all("truncated" in row["missing"] for row in cut)
