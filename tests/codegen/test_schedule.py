"""Schedules replayed: barriers stand between conflicts, and no live value is written over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import (
    TARGETS,
    Memory,
    compile_for,
    device,
    graph_of,
    outputs,
    plain_rows,
    same_words,
    target,
)
from support.random_graphs import random_graph
from support.tiny_models import ARCHS, tiny_model

from kinetic.codegen.kernels.cpu.experts import routing_size
from kinetic.codegen.passes.arena import Arena
from kinetic.codegen.passes.schedule import Schedule
from kinetic.codegen.pipeline import run_passes, schedule
from kinetic.errors import UnsupportedError
from kinetic.families import build
from kinetic.ir.build import Builder
from kinetic.ir.cpu_abi import OP_MAX_ARGS, act_stride
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph, Node
from kinetic.ir.program import ArgKind, Launch
from kinetic.ir.reference import Reference, rows

T, R = 6, 3
"""Rows and wanted rows of the schedules here."""

Span = tuple[str, int, int]
"""Memory: (space, from, to)."""


@dataclass
class Access:
    """What a launch reads and writes; `both` is read and then written, place by place."""

    reads: list[Span]
    writes: list[Span]
    both: list[Span]


# Written from the kernels' own descriptions of their arguments, not from the scheduler.


def _recurrent_access(
    launch: Launch, buffer: Callable[[int, int], Span], number: Callable[[int], int]
) -> Access | None:
    """The memory that a recurrent kernel touches; None for others. A state is private to it."""
    kernel, args = launch.kernel, launch.args
    states = [str(a.value) for a in args if a.kind is ArgKind.STATE]
    if kernel.startswith("short_conv_"):
        size = T * number(6)
        return Access([buffer(0, size)], [buffer(3, size)], [("state " + states[0], 0, 1)])
    if kernel.startswith("delta_rule_"):
        q, v, rate = (T * number(at) for at in (8, 9, 10))
        reads = [buffer(0, q), buffer(1, q), buffer(2, v), buffer(3, rate), buffer(4, rate)]
        return Access(reads, [buffer(5, v)], [("state " + states[0], 0, 1)])
    if kernel.startswith("ssm_scan_"):
        x, rate, shared = (T * number(at) for at in (9, 10, 11))
        reads = [buffer(0, x), buffer(1, rate), buffer(2, rate), buffer(3, shared)]
        writes = [buffer(6, x)]
        return Access([*reads, buffer(4, shared)], writes, [("state " + states[0], 0, 1)])
    if kernel.startswith("columns_"):
        return Access([buffer(0, T * number(3))], [buffer(2, T * number(3))], [])
    if kernel == "gate_rows":
        y, x = T * number(4), T * number(5)
        return Access([buffer(0, y), buffer(1, x)], [buffer(3, y)], [])
    return None


def access(launch: Launch, used: int = 0) -> Access:
    """The memory that one launch touches; `used` experts take a row."""
    kernel, args = launch.kernel, launch.args

    def number(at: int) -> int:
        assert args[at].kind in (ArgKind.INT, ArgKind.CHUNK), (kernel, at)
        return int(args[at].value)

    def count(at: int) -> int:
        assert args[at].kind is ArgKind.COUNT
        return {"T": T, "R": R}[str(args[at].value)]

    def buffer(at: int, nbytes: int) -> Span:
        assert args[at].kind is ArgKind.BUFFER, (kernel, at)
        return "arena", int(args[at].value), int(args[at].value) + nbytes

    def quantized(at: int, rows: int, row_bytes: int, block: int) -> Span:
        return buffer(at, rows * (row_bytes // 4 // block) * act_stride(block))

    block = int(found[1]) if (found := re.search(r"quantize_(\d+)$", kernel)) else None
    if kernel.startswith("embed_"):
        return Access([], [buffer(2, T * number(3) * 4)], [])
    if kernel.startswith("map_"):
        size = count(6) * number(3)
        return Access([buffer(0, size), buffer(1, size)], [buffer(2, size)], [])
    if kernel.startswith("norm"):
        rows, width = count(6), number(3)
        if "_heads" in kernel:
            width *= number(7)
        out = quantized(2, rows, width, block) if block else buffer(2, rows * width)
        return Access([buffer(0, rows * width)], [out], [])
    if kernel.startswith("quantize_"):
        assert block
        rows, width = count(3), number(2)
        return Access([buffer(0, rows * width)], [quantized(1, rows, width, block)], [])
    if kernel.startswith("glu_"):
        rows, width = count(4), number(3)
        out = quantized(2, rows, width, block) if block else buffer(2, rows * width)
        return Access([buffer(0, rows * width), buffer(1, rows * width)], [out], [])
    if kernel.startswith("route_"):
        rows = count(3)
        return Access([buffer(0, rows * number(2))], [buffer(1, routing_size(rows * used))], [])
    if kernel.startswith("expert_rows"):
        quants = re.fullmatch(r"expert_rows_(\d+)", kernel)
        size = number(3) * (act_stride(int(quants[1])) if quants else 32)
        reads = [buffer(0, T * size), buffer(2, routing_size(T * used))]
        return Access(reads, [buffer(1, T * used * size)], [])
    if kernel.startswith("expert_matmul_"):
        reads = [buffer(1, T * used * number(8)), buffer(3, routing_size(T * used))]
        return Access(reads, [buffer(2, T * used * number(9))], [])
    if kernel.startswith("expert_glu_"):
        rows, width = T * used, number(4)
        out = quantized(2, rows, width, block) if block else buffer(2, rows * width)
        inputs = [buffer(0, rows * width), buffer(1, rows * width)]
        return Access([*inputs, buffer(3, routing_size(rows))], [out], [])
    if kernel.startswith("expert_sum"):
        assert number(4) == used
        size = number(3) * 32
        reads = [buffer(0, T * used * size), buffer(1, routing_size(T * used))]
        out = buffer(2, T * size)
        return Access(reads, [], [out]) if kernel.endswith("_add") else Access(reads, [out], [])
    recurrent = _recurrent_access(launch, buffer, number)
    if recurrent is not None:
        return recurrent
    if kernel == "every_head":
        return Access([buffer(0, count(7) * number(5))], [buffer(1, T * number(2) * number(6))], [])
    if kernel == "temper":
        size = T * number(2)
        return Access([buffer(0, size)], [buffer(1, size)], [])
    if kernel == "take_outputs":
        return Access([buffer(0, T * number(2))], [buffer(1, R * number(2))], [])
    if kernel.startswith("matmul_"):
        rows, inner = count(6), number(4)
        if re.match(r"matmul_(f32|f16|bf16)", kernel):
            x = buffer(1, rows * inner * 4)
        else:
            stride = act_stride(256 if "_k" in kernel.removeprefix("matmul") else 32)
            x = buffer(1, rows * inner * stride)
        assert number(8) == number(5) * 32
        out = buffer(2, rows * number(8))
        if kernel.endswith("_add"):
            return Access([x], [], [out])
        return Access([x], [out], [])
    if kernel.startswith("rope_write_"):
        width = int(re.search(r"_d(\d+)_", kernel)[1]) * 4  # type: ignore[index]
        heads, kv_heads = number(11), number(12)
        kv = T * kv_heads * width
        if not kv_heads:  # queries alone, for a cache that another layer has written
            return Access([], [], [buffer(0, T * heads * width)])
        cache: Span = (f"cache {args[5].value}", 0, 1)
        own = [buffer(0, T * heads * width), buffer(1, kv)]
        return Access([buffer(2, kv)], [cache], own)
    if kernel.startswith("attend_"):
        found = re.match(r"attend(_merge)?_d(\d+)_q(\d+)_", kernel)
        assert found
        size = T * int(found[2]) * 4 * int(found[3]) * number(6)
        scratch: Span = ("scratch", 0, 1)
        if found[1]:
            return Access([scratch], [buffer(3, size)], [])
        cache = (f"cache {args[1].value}", 0, 1)
        return Access([buffer(0, size), cache], [scratch, buffer(3, size)], [])
    raise AssertionError(f"this test does not know the kernel {kernel}; teach it")


def accesses(plan: Schedule) -> list[Access]:
    """What each launch touches, in order."""
    names = [m for m in (re.match(r"route_(\d+)of", k) for k in plan.kernels) if m]
    used = int(names[0][1]) if names else 0
    return [access(launch, used) for launch in plan.launches]


def overlaps(some: list[Span], others: list[Span]) -> list[tuple[Span, Span]]:
    return [(a, b) for a in some for b in others if a[0] == b[0] and a[1] < b[2] and b[1] < a[2]]


def conflict(a: Access, b: Access) -> bool:
    """Whether two launches must not run at once."""
    wrote, writes = a.writes + a.both, b.writes + b.both
    return bool(overlaps(wrote, b.reads + writes) or overlaps(a.reads, writes))


def check_barriers(plan: Schedule, *, exact: bool) -> None:
    """Conflicts have a barrier between them; with `exact` every barrier has its conflict."""
    group: list[Access] = []
    for launch, mine in zip(plan.launches, accesses(plan), strict=True):
        assert len(launch.args) <= OP_MAX_ARGS
        for span in mine.writes + mine.both + mine.reads:
            assert span[0] != "arena" or 0 <= span[1] < span[2] <= plan.arena_bytes
        # In itself a launch may only write what it reads where it is made for that.
        assert not overlaps(mine.writes, mine.reads + mine.both), launch
        assert not overlaps(mine.both, mine.reads), launch
        assert not any(conflict(earlier, mine) for earlier in group), launch
        group.append(mine)
        if launch.barrier:
            group = []
    assert plan.launches[-1].barrier, "a step ends when all threads are done"
    if exact:
        check_no_barrier_is_idle(plan)


def check_no_barrier_is_idle(plan: Schedule) -> None:
    group: list[Access] = []
    touched = accesses(plan)
    for launch, mine, after in zip(plan.launches, touched, touched[1:], strict=False):
        group.append(mine)
        if launch.barrier:
            assert any(conflict(earlier, after) for earlier in group), launch
            group = []


def root(node: Node) -> Node:
    while node.op in ("split_heads", "merge_heads"):
        node = node.inputs[0]  # type: ignore[assignment]
    return node


def check_memory(graph: Graph, plan: Schedule) -> None:
    """Replay who wrote each word: launches read their node's inputs, outputs are there."""
    owner = np.zeros(plan.arena_bytes // 4, np.int32)
    number = {node.name: i + 1 for i, node in enumerate(graph)}
    nodes = {node.name: node for node in graph}

    def owners(span: Span) -> set[int]:
        return set(owner[span[1] // 4 : span[2] // 4].tolist())

    for launch, mine in zip(plan.launches, accesses(plan), strict=True):
        node = nodes[launch.node]
        inputs = {number[root(s).name] for s in node.sources if s.op not in ("weight", "tokens")}
        for span in mine.reads + mine.both:
            if span[0] != "arena":
                continue
            # A copy made for the node, or its first launch's result, bears its own name.
            assert owners(span) <= inputs | {number[node.name]}, (launch, owners(span), inputs)
        for span in mine.writes + mine.both:
            if span[0] == "arena":
                owner[span[1] // 4 : span[2] // 4] = number[node.name]
    for name, node in graph.outputs.items():
        out = plan.outputs[name]
        limit = {"T": T, "R": R}[node.type.shape[0]]  # type: ignore[union-attr, index]
        span = ("arena", out.offset, out.offset + limit * out.stride)
        assert owners(span) == {number[root(node).name]}, name


def check(graph: Graph, plan: Schedule, *, exact: bool = False) -> None:
    check_barriers(plan, exact=exact)
    check_memory(graph, plan)
    assert set(plan.kernels) >= {launch.kernel for launch in plan.launches}


def plan_of(graph: Graph, kv_type: str = "f16") -> tuple[Graph, Schedule]:
    lowered = run_passes(graph)
    return lowered, schedule(lowered, target("scalar"), kv_type=kv_type, max_rows=T, max_outputs=R)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 30))
def test_any_graph_is_scheduled_soundly(seed: int, size: int) -> None:
    check(*plan_of(random_graph(seed, size)[0]))


def test_a_residual_is_not_taken_over_while_it_is_read() -> None:
    """`scale` reads `h`; the product after it needs nothing newer, but writes where `h` lies."""
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    h = b.embed(b.tokens(), b.declare("h", "F32", (4, 64)), name="h")
    z = b.mul(x, h, name="z")
    y = b.scale(h, 2.0, name="y")
    joined = b.add(h, b.linear(x, b.declare("w", "F16", (64, 64)), name="p"), name="joined")
    lowered, plan = plan_of(graph_of({"z": z, "y": y, "joined": joined}))
    check(lowered, plan)
    scale, product = plan.launches[-2:]
    assert (scale.kernel, product.kernel) == ("map_scale", "matmul_f16_add") and scale.barrier


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("formats", ["Q4_K", "F16"])
def test_models_are_scheduled_soundly(arch: str, formats: str, tmp_path: Path) -> None:
    path = tiny_model(arch, tmp_path / "m.gguf", formats=formats, n_layers=4)
    with GGUFFile.open(path) as file:
        graph = build(file)
    lowered, plan = plan_of(graph)
    check(lowered, plan, exact=True)
    # Layers use the same memory again: what grows with depth is not the arena.
    path = tiny_model(arch, tmp_path / "deep.gguf", formats=formats, n_layers=8)
    with GGUFFile.open(path) as file:
        _, deeper = plan_of(build(file))
    assert deeper.arena_bytes == plan.arena_bytes
    assert set(deeper.kernels) == set(plan.kernels)


def test_experts_are_scheduled_soundly(tmp_path: Path) -> None:
    formats = {"": "Q8_0", "ffn_up_exps": "Q4_K", "ffn_gate_exps": "F16", "ffn_down_exps": "Q6_K"}
    for used, layers in ((2, 3), (3, 1)):
        path = tmp_path / f"{used}.gguf"
        options = {"n_layers": layers, "n_experts": 5, "n_experts_used": used}
        tiny_model("llama", path, formats=formats, **options)
        with GGUFFile.open(path) as file:
            lowered, plan = plan_of(build(file))
        assert any(launch.kernel.startswith("expert_sum") for launch in plan.launches)
        check(lowered, plan)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("name", TARGETS)
def test_any_graph_runs_as_the_reference_does(name: str, seed: int) -> None:
    """Three threads over few rows: a barrier that is missing shows sooner or later."""
    graph, memory = random_graph(seed)
    program = compile_for(name, graph, max_rows=T, max_outputs=R)
    reference = Reference(graph, memory.weight)
    with device(program, memory, threads=3, n_ctx=64) as cpu:
        for start, count, wanted in ((0, 5, [0, 4]), (5, 1, [0]), (6, T, [1, 2, 5])):
            ids = np.arange(start, start + count)
            flags = [i in wanted for i in range(count)]
            expected = reference.step(rows(ids, start=start, wanted=flags))
            got = outputs(cpu, plain_rows(ids, start=start, wanted=wanted))
            assert [k for k in expected if not same_words(got[k], expected[k])] == []


# -- the checker itself ------------------------------------------------------------------------


def test_the_checker_sees_missing_and_idle_barriers() -> None:
    lowered, plan = plan_of(random_graph(3)[0])
    check(lowered, plan)
    barriers = [i for i, launch in enumerate(plan.launches) if launch.barrier]
    for at in barriers:
        broken = Schedule(**{**vars(plan), "launches": list(plan.launches)})
        old = broken.launches[at]
        broken.launches[at] = Launch(old.kernel, old.args, False, old.node)
        with pytest.raises(AssertionError):
            check_barriers(broken, exact=False)
    free = next(i for i, launch in enumerate(plan.launches) if not launch.barrier)
    old = plan.launches[free]
    plan.launches[free] = Launch(old.kernel, old.args, True, old.node)
    with pytest.raises(AssertionError):
        check_barriers(plan, exact=True)


def test_the_checker_sees_values_that_share_memory() -> None:
    lowered, plan = plan_of(random_graph(3)[0])
    caught = 0
    for i, launch in enumerate(plan.launches):
        for j, arg in enumerate(launch.args):
            if arg.kind is ArgKind.BUFFER and arg.value:
                args = list(launch.args)
                args[j] = type(arg)(arg.kind, 0)
                broken = Schedule(**{**vars(plan), "launches": list(plan.launches)})
                broken.launches[i] = Launch(launch.kernel, tuple(args), launch.barrier, launch.node)
                try:
                    check(lowered, broken)
                except AssertionError:
                    caught += 1
    assert caught > len(plan.launches) // 2


# -- the arena ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 5000), st.sampled_from(["free", "barrier"])), max_size=60))
def test_ranges_never_overlap_until_a_barrier_has_passed(actions: list[int | str]) -> None:
    arena, live, waiting = Arena(), [], []
    for action in actions:
        if isinstance(action, int):
            span = arena.take(action)
            assert span[0] % 64 == 0 and span[1] - span[0] >= action and span[1] <= arena.top
            for other in live + waiting:
                assert span[1] <= other[0] or other[1] <= span[0]
            live.append(span)
        elif action == "free" and live:
            span = live.pop(len(live) // 2)
            arena.release(span)
            waiting.append(span)
        elif action == "barrier":
            arena.barrier()
            waiting = []
    for span in live:
        arena.release(span)
    arena.barrier()
    assert arena.free == [(0, 1 << 62)], "everything joins again"


def test_an_op_without_a_kernel_is_refused() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    turn = {"kind": "neox", "rot": 16, "base": 1e4}
    h = b.rope(b.split_heads(x, 4, name="h"), None, "r", **turn)
    graph = graph_of({"y": b.merge_heads(h, name="y")})
    with pytest.raises(UnsupportedError, match="op rope has no kernel"):
        plan_of(graph)


@pytest.mark.parametrize("name", TARGETS)
def test_heads_are_normed_outside_of_attention(name: str) -> None:
    b, memory = Builder(), Memory()
    values = np.random.default_rng(3).standard_normal((T, 64)).astype(np.float32)
    memory.put_floats("x", values)
    memory.put_floats("w", values[0, :16])
    x = b.embed(b.tokens(), b.declare("x", "F32", (T, 64)), name="x")
    heads = b.split_heads(x, 4, name="h")
    normed = {
        part: b.merge_heads(b.rms_norm(heads, w, 1e-6, name=f"{part}_norm"), name=part)
        for part, w in (("plain", None), ("weighted", b.declare("w", "F32", (16,))))
    }
    graph = graph_of(normed)
    check(*plan_of(graph))
    program = compile_for(name, graph, max_rows=T)
    expected = Reference(graph, memory.weight).step(rows(np.arange(T)))
    with device(program, memory, threads=2) as cpu:
        got = outputs(cpu, plain_rows(np.arange(T)))
    assert all(same_words(got[key], expected[key]) for key in normed)
