"""Recurrent kernels on every CPU class give the reference's words, from any state to any slot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import TARGETS, Floats, Memory, compile_for, device, graph_of, same_words
from support.gpu_inputs import FLAVOURS, activations

from kinetic.errors import InternalError, UnsupportedError
from kinetic.ir.build import Builder
from kinetic.ir.cpu_abi import CONTINUE, FRESH, NOT_KEPT
from kinetic.ir.graph import CacheSpec, Graph, Node
from kinetic.ir.ops.spec import Rows as ReferenceRows
from kinetic.ir.program import Program
from kinetic.ir.reference import Reference
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.rows import Rows

TABLE = 64
"""Rows of the tables that inputs are drawn from."""
HEADS, GROUPS, STATE = 6, 2, 24


def blocks(columns: int) -> tuple[Graph, Memory]:
    """Every recurrent block and what goes around them, over inputs drawn by token."""
    b, memory, caches = Builder(), Memory(), {}
    rng, ids = np.random.default_rng(columns), b.tokens()
    inner, shared = HEADS * columns, GROUPS * STATE

    def value(name: str, width: int, heads: int = 0, flavour: str = "plain") -> Node:
        memory.put_floats(name, activations(rng, TABLE, width, flavour))
        x = b.embed(ids, b.declare(name, "F32", (TABLE, width)), name=f"{name}_rows")
        return b.split_heads(x, heads, f"{name}_heads") if heads else x

    def floats(name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> Node:
        memory.put_floats(name, rng.uniform(low, high, shape).astype(np.float32))
        return b.declare(name, "F32", shape)

    def kept(name: str, *shape: int) -> str:
        caches[name] = CacheSpec("state", *shape)
        return name

    x, found = value("x", inner), {}
    for taps, act, biased in ((2, None, False), (3, None, True), (4, "silu", True)):
        bias = floats(f"bias_{taps}", inner) if biased else None
        w, cache = floats(f"w_{taps}", inner, taps), kept(f"conv_{taps}", 1, taps - 1, inner)
        found[f"conv {taps}"] = b.op("short_conv", x, w, bias, act=act, cache=cache)
    q, k = (b.op("l2_norm", value(n, shared, GROUPS), eps=1e-6, name=f"{n}_norm") for n in "qk")
    v, rates = value("v", inner, HEADS), value("rates", 8)
    beta = b.op("sigmoid", b.linear(rates, floats("wb", HEADS, 8)), name="beta")
    dt = b.op("softplus", b.linear(rates, floats("wd", HEADS, 8)), floats("dt_bias", HEADS))
    decay = b.op("decay", dt, floats("a", HEADS, low=-2.0, high=-0.1))
    cache = kept("delta", HEADS, STATE, columns)
    y = b.op("delta_rule", q, k, v, beta, decay, scale=0.3, cache=cache)
    found["delta rule"] = b.merge_heads(y, "delta_row")
    into, out_of = (value(n, shared, GROUPS) for n in ("into", "out_of"))
    skip, cache = floats("skip", HEADS, 1), kept("ssm", HEADS, STATE, columns)
    y = b.op("ssm_scan", v, dt, decay, into, out_of, skip, cache=cache)
    found["ssm scan"] = b.merge_heads(y, "ssm_row")
    each = floats("each", GROUPS, inner // GROUPS)
    y = b.rms_norm(b.split_heads(x, GROUPS, "x_groups"), each, 1e-5, "group_norm")
    found["group norm"] = b.merge_heads(y, "group_row")
    y = b.op("every_head", v, first=1, step=3)
    found["every head"] = b.merge_heads(y, "every_row")
    found["gate rows"] = b.op("gate_rows", x, rates, floats("gate", 8))
    found["gated"] = b.mul(b.op("sigmoid", value("g", inner), name="gs"), x, "gated")
    return graph_of(found, caches), memory


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


class Paths:
    """Sequences on a device and on the reference, side by side; slot `s` is sequence `s`'s."""

    def __init__(self, graph: Graph, memory: Memory, cpu: CpuDevice):
        self.graph, self.memory, self.cpu = graph, memory, cpu
        self.reference = Reference(graph, memory.weight)
        self.at = [0] * 3

    def step(self, pieces: list[tuple[int, list[int]]]) -> None:
        """Run pieces of sequences in one step and compare every output."""
        tokens, sequences, positions, sources, targets = [], [], [], [], []
        for who, ids in pieces:
            start = self.at[who]
            tokens += ids
            sequences += [who] * len(ids)
            positions += range(start, start + len(ids))
            sources += [who if start else FRESH] + [CONTINUE] * (len(ids) - 1)
            targets += [NOT_KEPT] * (len(ids) - 1) + [who]
            self.at[who] += len(ids)
        i32 = [np.array(part, np.int32) for part in (tokens, sequences, positions)]
        expected = self.reference.step(ReferenceRows(*i32, np.ones(len(tokens), np.bool_)))
        got = run(self.cpu, i32[0], i32[2], sources, targets)
        assert [k for k in expected if not same_words(got[k], expected[k])] == []


def run(
    cpu: CpuDevice,
    tokens: np.ndarray,
    positions: np.ndarray,
    sources: list[int],
    targets: list[int],
) -> dict[str, Floats]:
    """One step on the device; every output."""
    table = np.zeros(1, np.int32)
    rows = Rows(
        np.asarray(tokens, np.int32),
        np.asarray(positions, np.int32),
        np.zeros(len(tokens), np.int64),
        [table] * len(tokens),
        np.zeros(0, np.int32),
        np.array(sources, np.int32),
        np.array(targets, np.int32),
    )
    cpu.step(rows)
    return {name: cpu.output(name, len(tokens)).copy() for name in cpu.program.outputs}


@pytest.mark.parametrize("columns", [8, 32])
@pytest.mark.parametrize("name", TARGETS)
def test_blocks_give_the_references_words(name: str, columns: int, objects: Path) -> None:
    graph, memory = blocks(columns)
    program = compile_for(name, graph, objects, max_rows=64)
    ids = np.random.default_rng(1).integers(0, TABLE, 64).tolist()
    for threads in (1, 3):
        with device(program, memory, threads=threads) as cpu:
            paths = Paths(graph, memory, cpu)
            paths.step([(0, ids[:1])])
            paths.step([(0, ids[1:40])])
            paths.step([(1, ids[:20]), (0, ids[40:41]), (2, ids[5:6]), (0, ids[41:44])])
            paths.step([(0, ids[44:50]), (1, ids[20:21])])


@pytest.fixture(scope="module")
def best(objects: Path) -> tuple[Program, Graph, Memory]:
    graph, memory = blocks(16)
    return compile_for("maddubs", graph, objects, max_rows=64), graph, memory


@settings(max_examples=15, deadline=None)
@given(
    threads=st.integers(1, 3),
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15)), min_size=1, max_size=4),
        max_size=4,
    ),
)
def test_any_cut_gives_the_same_words(
    best: tuple[Program, Graph, Memory], threads: int, steps: list[list[tuple[int, int]]]
) -> None:
    """The reference sees the same steps; a path's words are held by the next test."""
    program, graph, memory = best
    rng = np.random.default_rng(5)
    with device(program, memory, threads=threads) as cpu:
        paths = Paths(graph, memory, cpu)
        for pieces in steps:
            paths.step([(who, rng.integers(0, TABLE, n).tolist()) for who, n in pieces])


def test_a_draft_may_keep_the_state_after_each_row(best: tuple[Program, Graph, Memory]) -> None:
    """Branches go on from the checkpoint of any row, in the step that stores it or later."""
    program, _graph, memory = best
    ids = np.arange(20)
    with device(program, memory, threads=2) as cpu:
        whole = run(cpu, ids, ids, [FRESH] + [CONTINUE] * 19, [NOT_KEPT] * 20)
        run(cpu, ids[:6], ids[:6], [FRESH] + [CONTINUE] * 5, [0, 1, 2, 3, 4, 5])
        for at in (1, 4):
            branch = ids[at + 1 : 20]
            sources = [at] + [CONTINUE] * (len(branch) - 1)
            got = run(cpu, branch, branch, sources, [NOT_KEPT] * len(branch))
            assert all(same_words(got[k], whole[k][at + 1 :]) for k in whole)
        # Two branches of one tree in one step: 0 1 2, then 3 from 2, then 9 from 1.
        tree = np.array([0, 1, 2, 3, 9])
        places = np.array([0, 1, 2, 3, 2])
        got = run(
            cpu,
            tree,
            places,
            [FRESH, CONTINUE, CONTINUE, CONTINUE, 6],
            [NOT_KEPT, 6] + 3 * [NOT_KEPT],
        )
        path = np.array([0, 1, 9])
        alone = run(cpu, path, np.arange(3), [FRESH, CONTINUE, CONTINUE], [NOT_KEPT] * 3)
        assert all(same_words(got[k][4], alone[k][2]) for k in alone)
        assert all(same_words(got[k][:4], whole[k][:4]) for k in whole)


def test_a_state_may_be_taken_out_and_put_back(best: tuple[Program, Graph, Memory]) -> None:
    program, _graph, memory = best
    ids = np.arange(12)
    with device(program, memory) as cpu:
        first = run(cpu, ids, ids, [FRESH] + [CONTINUE] * 11, [NOT_KEPT] * 7 + [3] + [NOT_KEPT] * 4)
        state = cpu.read_state(3)
        assert state.shape == (program.slot_bytes,) and state.any()
        cpu.write_state(0, state)
        cpu.copy_state(0, 5)
        later = run(cpu, ids[8:], ids[8:], [5] + [CONTINUE] * 3, [NOT_KEPT] * 4)
        assert all(same_words(later[k], first[k][8:]) for k in first)
        with pytest.raises(InternalError, match="not one of"):
            cpu.write_state(0, state[1:])
        with pytest.raises(InternalError, match="no slot 8"):
            cpu.read_state(8)
        for sources, targets in (([CONTINUE], [0]), ([8], [0]), ([0], [8]), ([-3], [0]), ([], [])):
            with pytest.raises(InternalError, match=r"state|row before"):
                run(cpu, ids[:1], ids[:1], sources, targets)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", TARGETS)
def test_odd_numbers_go_through_alike(name: str, flavour: str, objects: Path) -> None:
    """NaN, infinities, zeros and subnormals in the inputs and so in the states."""
    graph, memory = blocks(8)
    rng = np.random.default_rng(FLAVOURS.index(flavour))
    kind = flavour.replace("holes", "plain")
    for table in ("x", "q", "k", "v", "into", "out_of"):
        memory.put_floats(table, activations(rng, TABLE, memory.tensors[table].shape[1], kind))
    with (
        device(compile_for(name, graph, objects, max_rows=64), memory) as cpu,
        np.errstate(all="ignore"),
    ):
        Paths(graph, memory, cpu).step([(0, list(range(20))), (1, [7])])


def test_shapes_without_a_kernel_are_named(objects: Path) -> None:
    b = Builder()
    v = b.split_heads(b.embed(b.tokens(), b.declare("v", "F32", (4, 24))), 2, "v_heads")
    k = b.split_heads(b.embed(b.tokens(), b.declare("k", "F32", (4, 16))), 2, "k_heads")
    rates = b.embed(b.tokens(), b.declare("r", "F32", (4, 8)))
    rate = b.op("sigmoid", b.linear(rates, b.declare("w", "F32", (2, 8))), name="rate")
    y = b.op("delta_rule", k, k, v, rate, rate, scale=1.0, cache="s")
    graph = graph_of({"y": y}, {"s": CacheSpec("state", 2, 8, 12)})
    with pytest.raises(UnsupportedError, match="12 channels"):
        compile_for("scalar", graph, objects)
