"""How many requests run at once where nobody says: as many as half the free memory holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.memory import memory_of, parallel_that_fits


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_half_of_what_the_model_leaves_up_to_four(arch: str, tmp_path: Path) -> None:
    with GGUFFile.open(tiny_model(arch, tmp_path / "m.gguf")) as file:
        program = compile_graph(build(file), cpu_target(), max_rows=16)
    fixed = memory_of(program, 0, n_slots=0).total
    each = memory_of(program, 4).total - fixed
    for contexts, expected in ((0, 1), (1, 1), (2, 1), (4, 2), (7, 3), (8, 4), (100, 4)):
        assert parallel_that_fits(program, 256, free=fixed + contexts * each) == expected
    assert parallel_that_fits(program, 256, free=0) == 1


def test_a_model_is_loaded_for_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_model("llama", tmp_path / "m.gguf")
    for free, expected in ((1 << 40, 4), (0, 1)):
        monkeypatch.setattr("kinetic.api.free_memory", lambda free=free: free)
        model = Model.load(path, threads=1, ctx_size=128, parallel=None)
        assert model.scheduler.parallel == expected
        model.close()
