"""Experts on every CPU class give the reference's words, however rows are cut up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cpu_device import (
    TARGETS,
    Floats,
    Memory,
    compile_for,
    device,
    graph_of,
    outputs,
    plain_rows,
    random_weights,
    same_words,
    target,
)
from support.gpu_inputs import FLAVOURS, activations
from support.tiny_models import tiny_model

from kinetic import families
from kinetic.codegen.kernels.cpu import experts as kernels
from kinetic.codegen.pipeline import run_passes, schedule
from kinetic.errors import UnsupportedError
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.ops.spec import Routing
from kinetic.ir.program import ArgKind, Program
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.ir.text import parse
from kinetic.runtime.devices.cpu import CpuDevice

ROWS = 70
"""Rows of the largest step: an expert may get more than a token tile."""
FORMATS = (
    ("F32", "F16", "BF16"),
    ("Q4_0", "Q8_0", "Q5_1"),
    ("Q4_K", "Q6_K", "Q5_K"),
    ("Q5_0", "Q4_K", "F32"),
    ("F16", "F16", "Q4_1"),
)
"""Of gate, up and down: floats, both activation blocks, and mixtures."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def layer(
    formats: tuple[str, str, str] = FORMATS[0],
    *,
    n_experts: int = 5,
    n_used: int = 2,
    width: int = 256,
    inner: int = 256,
    **attrs: object,
) -> Graph:
    """One layer of experts, alone and joined to a residual, which is read again."""
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (ROWS, width)), name="x")
    shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    weights = [
        b.declare(name, fmt, (n_experts, *shape))
        for (name, shape), fmt in zip(shapes.items(), formats, strict=True)
    ]
    router = b.declare("gate_inp", "F32", (n_experts, width))
    y = b.op("experts", x, router, *weights, name="y", n_used=n_used, **attrs)  # type: ignore[arg-type]
    z = b.op("experts", y, router, *weights, name="z", n_used=n_used, **attrs)  # type: ignore[arg-type]
    return graph_of({"y": y, "joined": b.add(y, z, name="joined")})


def filled(graph: Graph, flavour: str = "plain", seed: int = 0, spread: float = 1.0) -> Memory:
    """Weights and rows of a kind; `spread` is how far apart the router's logits are."""
    rng = np.random.default_rng([seed, FLAVOURS.index(flavour)])
    memory = Memory()
    for node in graph.weights():
        name, fmt, shape = (node.attrs[key] for key in ("name", "format", "shape"))
        assert isinstance(name, str) and isinstance(fmt, str) and isinstance(shape, tuple)
        count, columns = int(np.prod(shape[:-1])), int(shape[-1])  # type: ignore[arg-type]
        if name == "x":
            memory.put_floats(name, activations(rng, count, columns, flavour))
        elif name == "gate_inp":
            values = rng.standard_normal((count, columns)) * (spread / columns**0.5)
            memory.put_floats(name, values)
        else:
            raw = random_weights(rng, fmt, count, columns, flavour)
            memory.put(name, fmt, shape, raw)  # type: ignore[arg-type]
    return memory


def expected(graph: Graph, memory: Memory, ids: Floats) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        return Reference(graph, memory.weight).step(rows(ids))


def assert_words(
    program: Program,
    memory: Memory,
    graph: Graph,
    counts: list[int],
    *,
    threads: int = 2,
    wanted: dict[str, Floats] | None = None,
) -> None:
    wanted = wanted or expected(graph, memory, np.arange(max(counts)))
    with device(program, memory, threads=threads) as cpu:
        for count in counts:
            got = outputs(cpu, plain_rows(np.arange(count)))
            bad = [k for k in wanted if not same_words(got[k], wanted[k][:count])]
            assert not bad, f"{count} rows"


# ---- words ---------------------------------------------------------------------------------


_wanted: dict[tuple[tuple[str, str, str], str], dict[str, Floats]] = {}


@pytest.mark.parametrize("flavour", ["plain", "tiny", "broken"])
@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("name", TARGETS)
def test_experts_are_the_references(
    name: str, formats: tuple[str, str, str], flavour: str, objects: Path
) -> None:
    graph = layer(formats)
    memory = filled(graph, flavour)
    if (formats, flavour) not in _wanted:
        _wanted[formats, flavour] = expected(graph, memory, np.arange(ROWS))
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, memory, graph, [1, 2, 7, ROWS], wanted=_wanted[formats, flavour])


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("name", TARGETS)
def test_threads_do_not_change_experts(name: str, threads: int, objects: Path) -> None:
    graph = layer(FORMATS[1])
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, filled(graph), graph, [1, 2, 3, ROWS], threads=threads)


@pytest.mark.parametrize(
    "n_experts, n_used, norm_weights, act",
    [
        (1, 1, True, "silu"),
        (3, 3, False, "silu"),
        (8, 1, True, "gelu_tanh"),
        (8, 3, True, "silu"),
        (70, 9, False, "gelu_tanh"),
        (70, 9, True, "silu"),
    ],
)
@pytest.mark.parametrize("name", TARGETS)
def test_every_router(
    name: str, n_experts: int, n_used: int, norm_weights: bool, act: str, objects: Path
) -> None:
    how = {"norm_weights": norm_weights, "act": act}
    graph = layer(
        ("Q8_0", "Q8_0", "Q4_0"), n_experts=n_experts, n_used=n_used, width=64, inner=96, **how
    )
    program = compile_for(name, graph, objects, max_rows=ROWS)
    # Far apart, shares of chosen experts underflow to 0.
    for spread in (1.0, 300.0):
        assert_words(program, filled(graph, spread=spread), graph, [1, ROWS])


def router_cases() -> Floats:
    """Logits `[cases, 16 experts]` with ties, zeros of both signs, Inf and NaN."""
    inf, nan = np.inf, np.nan
    cases = np.array(
        [
            [0, 0, 0, 0, 0, 0, 0, 0],
            [-0.0, 0, -0.0, 0, 0, 0, 0, -0.0],
            [1, 2, 2, 2, 2, 2, 2, 1],
            [-1, -1, -2, -2, -1, -3, -1, -1],
            [-1, -2, -3, -4, -5, -6, -7, 1e-40],
            [-inf, -inf, 3, -inf, -inf, -inf, -inf, -inf],
            [3e38, -3e38, 1, 3e38, 0, 0, 0, 0],
            [nan, 1, nan, 2, 3, -inf, nan, 4],
            [inf, inf, 0, 0, 0, 0, 0, inf],
            [nan] * 8,
            [-nan, nan, -inf, -inf, nan, nan, nan, nan],
            [0, 0, 0, 0, 0, 0, 0, 1e-45],
        ],
        np.float32,
    )
    return np.concatenate([cases, cases[:, ::-1]], axis=1)


def routed(
    n_used: int, norm_weights: bool = True, *, biased: bool = False, **attrs: object
) -> tuple[Graph, Memory, int]:
    """One product by the experts that given logits choose; how many rows there are."""
    rng = np.random.default_rng(2)
    logits = np.concatenate([router_cases(), rng.standard_normal((20, 16))]).astype(np.float32)
    logits[-1].view(np.uint32)[::3] = 0xFFFFFFFF  # the NaN with every bit set
    values = {
        "logits": logits,
        "x": rng.standard_normal((len(logits), 8)),
        "w": rng.standard_normal((16, 24, 8)),
        "bias": rng.standard_normal(16) / 4,
    }
    b, memory = Builder(), Memory()
    for key, value in values.items():
        memory.put_floats(key, value)
    ids = b.tokens()
    logit = b.embed(ids, b.declare("logits", "F32", logits.shape), name="l")
    x = b.embed(ids, b.declare("x", "F32", (len(logits), 8)), name="e")
    bias = b.declare("bias", "F32", (16,)) if biased else None
    how: dict[str, Any] = {"n_used": n_used, "norm_weights": norm_weights, **attrs}
    routing = b.op("route", logit, bias, name="r", **how)
    placed = b.op("expert_rows", x, routing, name="p")
    y = b.op("expert_matmul", placed, routing, b.declare("w", "F32", (16, 24, 8)), name="y")
    graph = graph_of({"y": b.op("expert_sum", y, routing, name="s")})
    return graph, memory, len(logits)


@pytest.mark.parametrize("norm_weights", [True, False])
@pytest.mark.parametrize("n_used", [1, 5, 16])
@pytest.mark.parametrize("name", TARGETS)
def test_ties_and_broken_logits(name: str, n_used: int, norm_weights: bool, objects: Path) -> None:
    """The lower index first, NaN after everything else."""
    graph, memory, count = routed(n_used, norm_weights)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, memory, graph, [1, count])


@pytest.mark.parametrize("norm_weights", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["scalar", "maddubs"])
def test_routers_of_every_kind(
    name: str, router: str, biased: bool, scale: float, norm_weights: bool, objects: Path
) -> None:
    graph, memory, count = routed(5, norm_weights, biased=biased, router=router, weight_scale=scale)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, memory, graph, [1, count])


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    logits = np.array([[2.0, 1.0, 0.0, -1.0]], np.float32)
    bias = np.array([0, -1, 0, 1], np.float32)
    for kind, weights in (("softmax", ar.softmax(logits)), ("sigmoid", ar.sigmoid(logits))):
        found = ar.route(logits, ar.Router(2, False, kind, 2.0), bias)
        assert found.experts.tolist() == [[0, 3]]
        assert same_words(found.share, weights[:, [0, 3]] * np.float32(2))


@pytest.mark.parametrize("n_used", [2, 5])
@pytest.mark.parametrize("name", TARGETS)
def test_a_routing_puts_the_rows_of_an_expert_together(
    name: str, n_used: int, objects: Path
) -> None:
    """Pairs, places and groups as memory has them; only experts with rows are groups."""
    graph, memory, most = routed(n_used)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    launch = next(found for found in program.launches if found.kernel.startswith("route_"))
    at = launch.args[1]
    assert at.kind is ArgKind.BUFFER and isinstance(at.value, int)
    with device(program, memory, threads=3) as cpu:
        for count in (1, 2, most):
            with np.errstate(invalid="ignore"):
                logits = memory.bytes["logits"].view(np.float32).reshape(-1, 16)[:count]
                routing = ar.route(logits, ar.Router(n_used))
            cpu.step(plain_rows(np.arange(count)))
            raw = cpu._arena.bytes[at.value :]
            groups, pairs = raw[:16].view(np.int64).tolist()
            assert pairs == n_used * count
            table = raw[kernels.RECORDS : kernels.routing_size(pairs)]
            check_routing(table.view(np.int32).reshape(pairs, -1), groups, routing)


def check_routing(table: npt.NDArray[np.int32], groups: int, routing: Routing) -> None:
    """The records of a routing in memory against the reference's."""
    chosen, n_used = routing.experts.ravel(), routing.experts.shape[1]
    by_expert = np.argsort(chosen, kind="stable")
    used, first, number = np.unique(chosen[by_expert], return_index=True, return_counts=True)
    assert groups == len(used)
    shares = np.ascontiguousarray(table[:, kernels.PAIR_SHARE // 4]).view(np.float32)
    assert same_words(shares, routing.share.ravel())
    for offset, wanted in {
        kernels.PAIR_EXPERT: chosen,
        kernels.PLACE_ROW: by_expert // n_used,
        kernels.PLACE_FIRST: np.repeat(first, number),
        kernels.PLACE_COUNT: np.repeat(number, number),
        kernels.GROUP_EXPERT: used,
        kernels.GROUP_FIRST: first,
        kernels.GROUP_COUNT: number,
    }.items():
        assert table[: len(wanted), offset // 4].tolist() == wanted.tolist()
    assert table[by_expert, kernels.PAIR_PLACE // 4].tolist() == list(range(len(chosen)))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=6, deadline=None)
@given(
    formats=st.tuples(*[st.sampled_from(["F32", "F16", "Q4_0", "Q8_0", "Q5_1"])] * 3),
    n_experts=st.integers(1, 12),
    data=st.data(),
    width=st.integers(1, 4),
    inner=st.integers(1, 4),
    flavour=st.sampled_from(FLAVOURS),
    threads=st.integers(1, 4),
    count=st.integers(1, ROWS),
    seed=st.integers(0, 2**32 - 1),
)
def test_experts_of_odd_sizes(
    name: str, formats, n_experts, data, width, inner, flavour, threads, count, seed, objects: Path
) -> None:
    n_used = data.draw(st.integers(1, min(3, n_experts)))
    sizes = {"width": 32 * width, "inner": 32 * inner}
    graph = layer(formats, n_experts=n_experts, n_used=n_used, **sizes)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, filled(graph, flavour, seed), graph, [count], threads=threads)


# ---- models --------------------------------------------------------------------------------


IDS = np.random.default_rng(1).integers(0, 320, ROWS)
MIXED = {"": "Q4_0", "ffn_down_exps": "Q8_0", "ffn_gate_inp": "F32", "ffn_up_exps": "Q4_K"}


@pytest.fixture(scope="module", params=["Q4_K", "mixed"])
def model(request, tmp_path_factory) -> tuple[GGUFFile, Floats]:
    """A tiny model with experts, and its logits after each token."""
    path = tmp_path_factory.mktemp("m") / "moe.gguf"
    formats = MIXED if request.param == "mixed" else request.param
    file = GGUFFile.open(tiny_model("llama", path, formats=formats, n_experts=6))
    return file, Reference(families.build(file), weights_of(file)).step(rows(IDS))["logits"]


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(1, ROWS - 1), max_size=4), threads=st.integers(1, 3))
@example(cuts=list(range(1, ROWS)), threads=2)  # one row at a time
@example(cuts=[], threads=1)
def test_chunks_do_not_change_a_models_words(model, name, cuts, threads, objects) -> None:
    file, whole = model
    program = compile_for(name, families.build(file), objects, max_rows=ROWS, max_outputs=ROWS)
    cpu = CpuDevice(program, file, threads=threads, n_ctx=128, n_pages=2)
    try:
        for start, stop in pairwise([0, *sorted(set(cuts)), ROWS]):
            part = IDS[start:stop]
            cpu.step(plain_rows(part, start=start, wanted=range(len(part))))
            assert same_words(cpu.output("logits", len(part)), whole[start:stop])
    finally:
        cpu.close()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "golden, key, most, rms",
    [
        ("llama-moe", "logits", 3e-4, 3e-4),
        ("q-llamamoe-q4_0", "logits_f32", np.inf, 2 * 0.0464),
        ("q-llamamoe-q4_k", "logits_f32", np.inf, 2 * 0.0646),
    ],
)
def test_golden_models_agree_with_llama_cpp(
    shared_dir: Path, name: str, golden: str, key: str, most: float, rms: float, objects: Path
) -> None:
    data = np.load(shared_dir / "golden" / "logits" / f"{golden}.npz")
    with GGUFFile.open(shared_dir / "golden" / "models" / f"{golden}.gguf") as file:
        graph = families.build(file)
        program = compile_for(name, graph, objects, kv_type="f32", max_rows=ROWS, max_outputs=ROWS)
        cpu = CpuDevice(program, file, threads=2, n_ctx=512, n_pages=8)
        for i in range(3):
            ids = data[f"tokens_{i}"]
            cpu.step(plain_rows(ids, wanted=range(len(ids))))
            got = cpu.output("logits", len(ids)).copy()
            off = got.astype(np.float64) - data[f"{key}_{i}"]
            assert np.abs(off).max() < most and np.sqrt((off**2).mean()) < rms
        cpu.close()


# ---- the lowered form ------------------------------------------------------------------------


@pytest.mark.parametrize("formats", FORMATS)
def test_passes_keep_every_word_and_print(formats: tuple[str, str, str]) -> None:
    graph = layer(formats)
    memory, ids = filled(graph), np.arange(9)
    before = expected(graph, memory, ids)
    lowered = run_passes(graph)
    after = expected(lowered, memory, ids)
    assert all(same_words(after[k], before[k]) for k in before)
    assert "experts" not in {node.op for node in lowered}
    assert parse(str(lowered)).same_as(lowered)
    assert "routing[T, 2 of 5]" in str(lowered)


def test_products_that_share_rows_share_the_copy_and_the_sum_joins_the_residual() -> None:
    ops = [node.op for node in run_passes(layer(("Q4_0", "Q8_0", "Q4_K")))]
    assert ops.count("expert_rows") == 2 and ops.count("expert_sum") == 2  # two layers
    assert "add" not in ops


# ---- limits ----------------------------------------------------------------------------------


def test_experts_that_no_kernel_takes_are_refused_in_a_sentence() -> None:
    narrow = layer(("F32", "F32", "F32"), width=16, inner=12)
    with pytest.raises(UnsupportedError, match="tensor gate has 12 outputs an expert"):
        schedule(run_passes(narrow), target("scalar"))
    many = layer(("F32", "F32", "F32"), n_experts=1025, width=8, inner=8)
    with pytest.raises(UnsupportedError, match=r"1025 experts; .* at most 1024"):
        schedule(run_passes(many), target("scalar"))


@pytest.mark.parametrize("name", TARGETS)
def test_the_largest_router(name: str, objects: Path) -> None:
    graph = layer(("F32", "F32", "F32"), n_experts=1024, n_used=3, width=8, inner=8)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    assert_words(program, filled(graph), graph, [1, 5])
