"""Greedy answers are llama.cpp's, up to the first step where two tokens are nearly as likely."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import SUPPORTED, build
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.engine import Engine

TOLERANCE = {"gemma3": 5e-2, "gemma4": 5e-2}
"""How far our logits may be: llama.cpp's GELU comes from a table of halves."""
ARCHS = sorted(set(SUPPORTED) - {"bert", "nomic-bert", "gemma-embedding", "lfm3"})


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.mark.parametrize("arch", ARCHS)
def test_greedy_answers_are_llama_cpps(arch: str, shared_dir: Path, objects: Path) -> None:
    golden = shared_dir / "golden"
    manifest = json.loads((golden / "models" / "manifest.json").read_text())
    names = [n for n, entry in manifest.items() if entry["arch"] == arch]
    compared = 0
    for name in names:
        answers = np.load(golden / "logits" / f"{name}.npz")
        if "greedy_0" not in answers:
            continue  # an embedding model
        with GGUFFile.open(golden / "models" / f"{name}.gguf") as file:
            program = compile_graph(build(file), cpu_target(), kv_type="f32", object_cache=objects)
            cpu = CpuDevice(program, file, threads=2, n_ctx=512, n_pages=8)
            run = Engine(cpu, 512, 8)
            for i in range(3):
                compared += compare(run, answers, i, 2 * TOLERANCE.get(arch, 3e-4))
            cpu.close()
    if not names:
        pytest.skip(f"no golden model of {arch}")
    assert compared >= 32


def compare(run: Engine, answers: dict[str, np.ndarray], i: int, gap: float) -> int:
    """The number of tokens that were compared, all equal."""
    sequence = run.new_sequence()
    logits = run.prefill(sequence, answers[f"tokens_{i}"].tolist())
    sure = answers[f"gap_{i}"] >= gap
    count = len(sure) if sure.all() else int(sure.argmin())
    for token in answers[f"greedy_{i}"][:count].tolist():
        assert int(logits.argmax()) == token
        logits = run.decode(sequence, token)
    sequence.close()
    return count
