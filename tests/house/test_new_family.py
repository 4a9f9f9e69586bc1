"""The starter of a family is Llama with what the tensors' names show."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.tiny_models import tiny_model

from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "_setup", raising=False)
    spec = importlib.util.spec_from_file_location("script_new_family", SCRIPTS / "new_family.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape_of(graph: Graph) -> list[str]:
    """What a graph computes, without the names."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    return [
        f"{n.op} {dict(n.attrs)} {[None if i is None else number[i] for i in n.inputs]}"
        for n in graph.nodes
    ]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "qwen3moe", "exaone4"])
def test_the_starter_builds_families_that_are_llama_but_for_norms(
    script: ModuleType, tmp_path: Path, arch: str
) -> None:
    path = tiny_model(arch, tmp_path / "m.gguf", n_layers=1, formats="F32")
    with GGUFFile.open(path) as file:
        names = {n.removeprefix("blk.0.") for n in file.tensors if n.startswith("blk.0.")}
        made: dict[str, object] = {}
        exec(script.starter(arch, names), made)
        assert shape_of(made["build"](file)) == shape_of(build(file))  # type: ignore[operator]


def test_what_a_file_holds_is_printed(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_model("qwen3", tmp_path / "m.gguf", formats="F32", metadata={"qwen3.odd": 7})
    assert script.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "qwen3.odd = 7" in printed and "blk.0.attn_q_norm.weight" in printed
    assert "blk.1." not in printed and "# families/qwen3.py" in printed


def test_a_family_that_is_there_is_not_overwritten(script: ModuleType, tmp_path: Path) -> None:
    path = tiny_model("qwen3", tmp_path / "m.gguf", formats="F32")
    before = (script.ROOT / "families" / "qwen3.py").read_bytes()
    assert script.main([str(path), "--write"]) == 1
    assert (script.ROOT / "families" / "qwen3.py").read_bytes() == before
