"""Row kernels on every CPU class give the reference's words: maps, norms, gates, embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
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
)
from support.gpu_inputs import FLAVOURS, activations

from kinetic.errors import UnsupportedError
from kinetic.ir.build import Builder
from kinetic.ir.graph import Graph, Node
from kinetic.ir.quant import FORMATS
from kinetic.ir.reference import Reference, rows

ROWS, WIDTH = 66, 768
MIXED = ("Q8_0", "Q4_K")
"""One format of each activation block, through which quantized rows are seen."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def row_ops(width: int) -> Graph:
    """Every row op, alone and in each form that the passes make of it."""
    b = Builder()
    ids = b.tokens()
    x = b.embed(ids, b.declare("x", "F32", (ROWS, width)), name="x")
    y = b.embed(ids, b.declare("y", "F32", (ROWS, width)), name="y")
    w = b.declare("w", "F32", (width,))
    found: dict[str, Node] = {
        "silu": b.silu(x, name="silu"),
        "gelu_tanh": b.gelu_tanh(x, name="gelu"),
        "add": b.add(x, y, name="add"),
        "mul": b.mul(x, y, name="mul"),
        "square": b.mul(x, x, name="square"),
        "scale": b.scale(x, 0.3, name="scale"),
        "softcap": b.softcap(x, 30.0, name="cap"),
        "norm": b.rms_norm(x, w, 1e-6, name="norm"),
        "norm_unit": b.rms_norm(x, None, 1e-5, name="unit"),
        "glu silu": b.mul(b.silu(y, name="gy"), x, name="glu_silu"),
        "glu gelu": b.mul(b.gelu_tanh(y, name="ty"), x, name="glu_gelu"),
        "wanted": b.take_outputs(b.scale(y, 3.0, name="thrice"), name="taken"),
        "wanted norm": b.rms_norm(b.take_outputs(x, name="tx"), w, 1e-6, name="taken_norm"),
    }
    for fmt in MIXED if width % 256 == 0 else ("Q8_0",):
        m = b.declare(f"m_{fmt}", fmt, (16, width))
        found |= {
            f"norm {fmt}": b.linear(b.rms_norm(y, w, 1e-3, name=f"n_{fmt}"), m, name=f"nq_{fmt}"),
            f"unit {fmt}": b.linear(b.rms_norm(y, None, 1.0, name=f"u_{fmt}"), m, name=f"uq_{fmt}"),
        }
        for act in ("silu", "gelu_tanh"):
            a = b.op(act, x, name=f"a_{act}_{fmt}")
            g = b.mul(a, y, name=f"g_{act}_{fmt}")
            found[f"glu {act} {fmt}"] = b.linear(g, m, name=f"gq_{act}_{fmt}")
    return graph_of(found)


def row_memory(width: int, flavour: str) -> Memory:
    rng = np.random.default_rng([width, FLAVOURS.index(flavour)])
    memory = Memory()
    kind = flavour if width % 32 == 0 else flavour.replace("holes", "plain")
    memory.put_floats("x", activations(rng, ROWS, width, kind))
    memory.put_floats("y", activations(rng, ROWS, width, kind))
    memory.put_floats("w", rng.standard_normal(width))
    for fmt in MIXED if width % 256 == 0 else ("Q8_0",):
        memory.put(f"m_{fmt}", fmt, (16, width), random_weights(rng, fmt, 16, width, "plain"))
    return memory


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("width", [32, 96, WIDTH])
@pytest.mark.parametrize("name", TARGETS)
def test_row_ops_are_the_references(name: str, width: int, flavour: str, objects: Path) -> None:
    graph, memory = row_ops(width), row_memory(width, flavour)
    program = compile_for(name, graph, objects, max_rows=ROWS)
    for count, threads in ((1, 3), (7, 2), (ROWS, 3)):
        wanted = sorted({0, count // 2, count - 1})
        step = rows(np.arange(count), wanted=[i in wanted for i in range(count)])
        with np.errstate(all="ignore"):
            expected = Reference(graph, memory.weight).step(step)
        with device(program, memory, threads=threads) as cpu:
            got = outputs(cpu, plain_rows(np.arange(count), wanted=wanted))
        assert [k for k in expected if not same_words(got[k], expected[k])] == []


@pytest.mark.parametrize("fmt", MIXED)
@pytest.mark.parametrize("name", TARGETS)
def test_a_block_is_zeros_just_below_its_least_scale(name: str, fmt: str, objects: Path) -> None:
    b, memory, width = Builder(), Memory(), 256
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, width)), name="x")
    graph = graph_of({"y": b.linear(x, b.declare("w", fmt, (8, width)), name="y")})
    limit, zero = np.float32(2.0**-100), np.float32(0)
    values = np.zeros((4, width), np.float32)
    values[:, 9] = [limit, np.nextafter(limit, zero), -limit, -np.nextafter(limit, zero)]
    memory.put_floats("x", values)
    memory.put(
        "w", fmt, (8, width), random_weights(np.random.default_rng(0), fmt, 8, width, "plain")
    )
    with device(compile_for(name, graph, objects), memory) as cpu:
        got = outputs(cpu, plain_rows(np.arange(4)))["y"]
    assert same_words(got, Reference(graph, memory.weight).step(rows(np.arange(4)))["y"])
    assert got[[0, 2]].any(axis=1).all() and not got[[1, 3]].any()


def embeddings() -> Graph:
    b = Builder()
    return graph_of(
        {
            name: b.embed(b.tokens(), b.declare(f"t_{name}", name, (40, 512)), name=f"e_{name}")
            for name in FORMATS
        }
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", TARGETS)
def test_embeddings_are_ggmls(name: str, flavour: str, objects: Path) -> None:
    rng = np.random.default_rng(FLAVOURS.index(flavour))
    memory = Memory()
    for fmt in FORMATS:
        raw = random_weights(rng, fmt, 40, 512, flavour)
        memory.put(f"t_{fmt}", fmt, (40, 512), raw)
    graph = embeddings()
    ids = rng.integers(0, 40, 50)
    with np.errstate(all="ignore"):
        expected = Reference(graph, memory.weight).step(rows(ids))
    with device(compile_for(name, graph, objects), memory, threads=3) as cpu:
        got = outputs(cpu, plain_rows(ids))
    assert [k for k in expected if not same_words(got[k], expected[k])] == []


def repacked(name: str, fmt_name: str, outs: int, columns: int, objects: Path) -> None:
    """A product with the unit vectors is the dequantized matrix where that is exact."""
    rng = np.random.default_rng(outs)
    b, memory = Builder(), Memory()
    x = b.embed(b.tokens(), b.declare("eye", "F32", (columns, columns)), name="x")
    graph = graph_of({"y": b.linear(x, b.declare("w", fmt_name, (outs, columns)), name="y")})
    memory.put_floats("eye", np.eye(columns, dtype=np.float32))
    values = rng.standard_normal((outs, columns)).astype(np.float32)
    raw = {
        "F32": values.view(np.uint8),
        "F16": values.astype(np.float16).view(np.uint8),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
    }[fmt_name]
    memory.put("w", fmt_name, (outs, columns), raw)
    with device(compile_for(name, graph, objects), memory) as cpu:
        got = outputs(cpu, plain_rows(np.arange(columns)))["y"]
    expected = Reference(graph, memory.weight).step(rows(np.arange(columns)))["y"]
    assert same_words(got, expected)
    stored = memory.weight("w")
    from kinetic.ir.ops.arithmetic import floats

    assert (floats(stored) == got.T).all()


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", TARGETS)
def test_repacked_floats_are_all_there(name: str, fmt: str, objects: Path) -> None:
    repacked(name, fmt, 13, 40, objects)


@pytest.mark.parametrize("name", TARGETS)
def test_a_row_joins_the_product_of_itself(name: str, objects: Path) -> None:
    """The residual is also the product's input: it may not be written over while it is read."""
    b, memory, n = Builder(), Memory(), 64
    x = b.embed(b.tokens(), b.declare("x", "F32", (9, n)), name="x")
    h = b.scale(x, 2.0, name="h")
    graph = graph_of(
        {"y": b.add(h, b.linear(h, b.declare("w", "F32", (n, n)), name="p"), name="y")}
    )
    rng = np.random.default_rng(0)
    memory.put_floats("x", rng.standard_normal((9, n)))
    memory.put_floats("w", rng.standard_normal((n, n)))
    expected = Reference(graph, memory.weight).step(rows(np.arange(9)))["y"]
    with device(compile_for(name, graph, objects), memory) as cpu:
        got: Floats = outputs(cpu, plain_rows(np.arange(9)))["y"]
    assert same_words(got, expected)


@pytest.mark.parametrize("width", [12, 4])
def test_a_width_that_vectors_do_not_divide_is_refused(width: int) -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, width)), name="x")
    with pytest.raises(UnsupportedError, match=rf"%x(\.\d+)? \(the embedding\) is {width} wide"):
        compile_for("scalar", graph_of({"x": x}))
