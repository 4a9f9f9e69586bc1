"""Products on every CPU class give the reference's words: all formats, sizes and threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import (
    PRODUCT_TARGETS,
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

from kinetic.ir.build import Builder
from kinetic.ir.graph import Graph, Node
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.base import BlockFormat
from kinetic.ir.reference import Reference, rows

ROWS = 130
"""Rows of the largest step: two token tiles and a bit."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code shared by the tests of this file: kernels do not depend on sizes."""
    return tmp_path_factory.mktemp("objects")


def blocks_of(name: str, scale: int) -> int:
    """Columns for a format: `scale` blocks, or eights of floats."""
    fmt = FORMATS[name]
    return scale * (fmt.values if isinstance(fmt, BlockFormat) else 8)


JOINED = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL", "NVFP4")
"""Formats tested with every epilogue, which is the same code for all: one of each shape."""


def products(scale: int, outs: int) -> Graph:
    """For each format the product alone; for some with a bias, and joined to a residual."""
    b = Builder()
    found: dict[str, Node] = {}
    for name in FORMATS:
        columns = blocks_of(name, scale)
        x = b.embed(
            b.tokens(), b.declare(f"x{columns}", "F32", (ROWS, columns)), name=f"x{columns}"
        )
        w = b.declare(f"w_{name}", name, (outs, columns))
        y = found[name] = b.linear(x, w, name=f"y_{name}")
        if name not in JOINED:
            continue
        bias = b.declare("bias", "F32", (outs,))
        found[f"{name} bias"] = b.linear(x, w, bias, name=f"y_bias_{name}")
        # One residual is read again and must be copied, the other is taken over.
        other = b.linear(x, b.declare(f"v_{name}", name, (outs, columns)), name=f"v_{name}")
        found[f"{name} copied"] = b.add(y, other, name=f"copied_{name}")
        doubled = b.scale(y, 2.0, name=f"doubled_{name}")
        third = b.linear(x, b.declare(f"u_{name}", name, (outs, columns)), bias, name=f"u_{name}")
        found[f"{name} taken"] = b.add(third, doubled, name=f"taken_{name}")
    return graph_of(found)


def filled(scale: int, outs: int, flavour: str, seed: int = 0) -> Memory:
    """Weights and rows of a kind for `products`."""
    rng = np.random.default_rng([seed, FLAVOURS.index(flavour)])
    memory = Memory()
    memory.put_floats("bias", rng.standard_normal(outs))
    for name in FORMATS:
        columns = blocks_of(name, scale)
        if columns % 32 == 0 or flavour != "holes":
            x = activations(rng, ROWS, columns, flavour)
        else:
            x = activations(rng, ROWS, columns, "plain")
        memory.put_floats(f"x{columns}", x)
        for letter in "wvu":
            raw = random_weights(rng, name, outs, columns, flavour)
            memory.put(f"{letter}_{name}", name, (outs, columns), raw)
    return memory


SIZES = ((1, 12), (3, 8), (5, 23))
"""Blocks of a row, and outputs: fewer blocks than chains, row groups that are not full."""

_expected: dict[tuple[int, int, str], dict[str, Floats]] = {}


def expected(scale: int, outs: int, flavour: str) -> dict[str, Floats]:
    key = (scale, outs, flavour)
    if key not in _expected:
        reference = Reference(products(scale, outs), filled(*key).weight)
        with np.errstate(all="ignore"):
            _expected[key] = reference.step(rows(np.arange(ROWS)))
    return _expected[key]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("scale, outs", SIZES)
@pytest.mark.parametrize("name", PRODUCT_TARGETS)
def test_products_are_the_references(
    name: str, scale: int, outs: int, flavour: str, objects: Path
) -> None:
    wanted = expected(scale, outs, flavour)
    program = compile_for(name, products(scale, outs), objects, max_rows=ROWS)
    with device(program, filled(scale, outs, flavour), threads=2) as cpu:
        for count in (1, 2, 3, 7, 65, ROWS):
            got = outputs(cpu, plain_rows(np.arange(count)))
            bad = [k for k in wanted if not same_words(got[k], wanted[k][:count])]
            assert not bad, f"{count} rows"


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("name", PRODUCT_TARGETS)
def test_threads_do_not_change_products(name: str, threads: int, objects: Path) -> None:
    wanted = expected(5, 23, "plain")
    program = compile_for(name, products(5, 23), objects, max_rows=ROWS)
    with device(program, filled(5, 23, "plain"), threads=threads) as cpu:
        for count in (1, 2, 64):
            got = outputs(cpu, plain_rows(np.arange(count)))
            assert all(same_words(got[k], wanted[k][:count]) for k in wanted)


@pytest.mark.parametrize("name", PRODUCT_TARGETS)
@settings(max_examples=12, deadline=None)
@given(
    scale=st.integers(1, 9),
    outs=st.integers(1, 40),
    first=st.integers(0, 20),
    count=st.integers(1, 9),
    threads=st.integers(1, 3),
    flavour=st.sampled_from(FLAVOURS),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_odd_sizes(
    name: str,
    scale: int,
    outs: int,
    first: int,
    count: int,
    threads: int,
    flavour: str,
    seed: int,
    objects: Path,
) -> None:
    graph, memory = products(scale, outs), filled(scale, outs, flavour, seed)
    ids = np.arange(first, first + count)
    with np.errstate(all="ignore"):
        wanted = Reference(graph, memory.weight).step(rows(ids))
    program = compile_for(name, graph, objects, max_rows=ROWS)
    with device(program, memory, threads=threads) as cpu:
        got = outputs(cpu, plain_rows(ids))
    assert [k for k in wanted if not same_words(got[k], wanted[k])] == []


@pytest.mark.parametrize("name", PRODUCT_TARGETS)
def test_the_largest_integers_do_not_overflow(name: str, objects: Path) -> None:
    """Every code at its end, every scale at its end, every activation at +-127."""
    graph, memory = products(3, 16), filled(3, 16, "plain")
    rng = np.random.default_rng(3)
    for key, info in memory.tensors.items():
        fmt = next(f for f in FORMATS.values() if f.ggml_id == info.type_id)
        if isinstance(fmt, BlockFormat):
            raw = memory.bytes[key].reshape(-1, fmt.nbytes)
            raw[:] = rng.choice(np.array([0, 255, 127, 128], np.uint8), (len(raw), 1))
            raw[:, fmt.d : fmt.d + 2] = np.float16(1.5).reshape(1).view(np.uint8)
            if fmt.dmin is not None:
                raw[:, fmt.dmin : fmt.dmin + 2] = np.float16(0.75).reshape(1).view(np.uint8)
        elif key.startswith("x"):
            signs = rng.choice([-1, 1], (ROWS, 1)).astype(np.float32)
            memory.put_floats(key, np.broadcast_to(signs * 3, info.shape))
    wanted = Reference(graph, memory.weight).step(rows(np.arange(9)))
    program = compile_for(name, graph, objects, max_rows=ROWS)
    with device(program, memory) as cpu:
        for count in (1, 9):
            got = outputs(cpu, plain_rows(np.arange(count)))
            assert [k for k in wanted if not same_words(got[k], wanted[k][:count])] == []
