"""A model's own prediction block guesses what llama.cpp's does, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import tiny_model

from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.errors import InternalError
from kinetic.families import build, build_draft
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.drafting.block import Follower, PredictionBlock


@contextmanager
def on_cpu(graph: Graph, file: GGUFFile, objects: Path, rows: int = 16) -> Iterator[CpuDevice]:
    program = compile_graph(graph, cpu_target(), kv_type="f32", max_rows=rows, object_cache=objects)
    cpu = CpuDevice(program, file, threads=2, n_ctx=256, n_pages=8)
    try:
        yield cpu
    finally:
        cpu.close()


@pytest.mark.parametrize("model", ["qwen35-mtp", "qwen35moe-mtp"])
def test_guesses_are_those_of_llama_cpps_block(
    shared_dir: Path, model: str, tmp_path: Path
) -> None:
    golden = np.load(shared_dir / "golden" / "logits" / f"{model}.npz")
    tokens, hidden = golden["tokens_1"].tolist(), golden["mtp_h_1"]
    best = golden["mtp_logits_1"].argmax(axis=1)
    with GGUFFile.open(shared_dir / "golden" / "models" / f"{model}.gguf") as file:
        graph = build_draft(file)
        assert graph is not None
        with on_cpu(graph, file, tmp_path) as cpu:
            block = PredictionBlock(cpu, 256, 8)
            follower = Follower(block)
            for at in range(len(tokens)):
                assert len(follower) == at
                assert follower.guess(tokens[at], 1) == [best[at]]
                long = follower.guess(tokens[at], 4)
                assert len(long) == 4 and long[0] == best[at]
                follower.tell(tokens[at : at + 1], hidden[at : at + 1])
            # All at once, in chunks of the program's rows, it comes to the same place.
            other = Follower(block)
            other.tell(tokens[:-1], hidden[:-1])
            assert other.guess(tokens[-1], 4) == long
            other.tell([], hidden[:0])
            follower.close()
            other.close()
            assert block.pages.available == 8


def test_only_a_prediction_block_will_do(tmp_path: Path) -> None:
    with (
        GGUFFile.open(tiny_model("qwen35", tmp_path / "m.gguf")) as file,
        on_cpu(build(file), file, tmp_path) as cpu,
        pytest.raises(InternalError, match="not one of a prediction block"),
    ):
        PredictionBlock(cpu, 256, 8)
