"""What a token reads, and the speed that is expected of it."""

from __future__ import annotations

import pytest
from support.gguf_writer import write_gguf

from kinetic.ir.gguf_split import open_model
from kinetic.models.cost import cost_of, expected_speed

F32 = 0


def cost(path, names: dict[str, tuple[int, ...]], **keys: int):
    metadata = {"general.architecture": "a", **{f"a.{k}": v for k, v in keys.items()}}

    def tensor(shape: tuple[int, ...]):
        count = 1
        for extent in shape:
            count *= extent
        return shape, F32, b"\0" * 4 * count

    file = write_gguf(path / "m.gguf", metadata, {n: tensor(s) for n, s in names.items()})
    with open_model(file) as gguf:
        return cost_of(gguf)


def test_a_table_that_is_only_looked_up_costs_a_row(tmp_path):
    names = {"token_embd.weight": (100, 8), "output.weight": (100, 8)}
    got = cost(tmp_path, names)
    assert (got.weights, got.per_token) == (6400, 32 + 3200)


def test_a_table_that_is_the_head_too_is_read_whole(tmp_path):
    assert cost(tmp_path, {"token_embd.weight": (100, 8)}).per_token == 3200


def test_of_experts_those_that_are_used(tmp_path):
    names = {"blk.0.ffn_up_exps.weight": (8, 4, 8), "blk.0.attn_q.weight": (8, 8)}
    got = cost(tmp_path, names, expert_count=8, expert_used_count=2)
    assert (got.experts, got.per_token) == (1024, 256 + 256)
    # A file whose numbers make no sense costs no more than it weighs.
    got = cost(tmp_path, names, expert_count=2, expert_used_count=8)
    assert got.per_token == got.weights


def test_blocks_that_draft_cost_nothing(tmp_path):
    names = {"blk.0.x": (8,), "blk.1.x": (8,)}
    assert cost(tmp_path, names, block_count=2, nextn_predict_layers=1).per_token == 32


@pytest.mark.parametrize(
    ("per_token", "measured"), [(246_587_904, 126.0), (391_860_328, 92.3)], ids=["gemma", "qwen"]
)
def test_the_expected_speed_is_near_what_the_benchmarks_measured(per_token, measured):
    # The page of benchmarks: memory reads at 34 GB/s with two threads.
    low, high = expected_speed(per_token, 34e9)
    assert (low + high) / 2 == pytest.approx(measured, rel=0.25)
