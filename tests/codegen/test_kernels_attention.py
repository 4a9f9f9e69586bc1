"""Rotation, cache and attention on every CPU class give the reference's words."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
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
    same_words,
)

from kinetic.errors import UnsupportedError
from kinetic.ir.build import Builder
from kinetic.ir.cpu_abi import PAGE
from kinetic.ir.graph import CacheSpec, Graph
from kinetic.ir.ops.spec import Attr
from kinetic.ir.reference import Reference, rows
from kinetic.runtime.rows import Rows

N = 1100
"""Positions: three segments, the last one cut inside a tile."""
STEP = 200


@dataclass(frozen=True)
class Case:
    """One attention layer over heads that come straight from tables."""

    width: int = 16
    heads: int = 4
    kv_heads: int = 2
    window: int | None = None
    softcap: float | None = None
    kind: str | None = "neox"
    rot: int = 0
    """Columns that turn; 0: all."""
    normed: bool = False
    kv_type: str = "f16"
    size: float = 1.0
    """Size of queries and keys."""
    broken: bool = False
    """Whether a few numbers are Inf or NaN."""

    def graph(self) -> Graph:
        b = Builder()
        ids = b.tokens()

        def table(name: str, heads: int, normed: bool) -> object:
            shape = (N, heads * self.width)
            x = b.split_heads(
                b.embed(ids, b.declare(f"t{name}", "F32", shape), name=f"e{name}"),
                heads,
                name=f"h{name}",
            )
            if normed:
                w = b.declare(f"n{name}", "F32", (self.width,))
                x = b.rms_norm(x, w, 1e-6, name=f"norm{name}")
            if name != "v" and self.kind is not None:
                attrs: dict[str, Attr] = {"kind": self.kind, "rot": self.rot or self.width}
                x = b.rope(x, None, name=f"turned{name}", base=10000.0, **attrs)
            return x

        q, k = table("q", self.heads, self.normed), table("k", self.kv_heads, self.normed)
        y = b.attention(
            q,
            k,
            table("v", self.kv_heads, False),  # type: ignore[arg-type]
            scale=self.width**-0.5,
            cache="c",
            window=self.window,
            softcap=self.softcap,
            name="y",
        )
        spec = CacheSpec("attention", self.kv_heads, self.width, self.width, self.window)
        return graph_of({"y": b.merge_heads(y, name="flat")}, {"c": spec})

    def memory(self, seed: int = 0) -> Memory:
        rng, memory = np.random.default_rng(seed), Memory()
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            scale = 1.0 if name == "v" else self.size
            values = scale * rng.standard_normal((N, heads * self.width))
            if self.broken:
                bad = rng.choice([np.inf, -np.inf, np.nan], 4)
                values.flat[rng.integers(0, values.size, 4)] = bad
            memory.put_floats(f"t{name}", values)
            memory.put_floats(f"n{name}", rng.standard_normal(self.width))
        return memory


CASES = {
    "plain": Case(),
    "f32 cache": Case(kv_type="f32"),
    "norm pairs": Case(kind="norm"),
    "some columns turn": Case(width=32, rot=20, kind="norm"),
    "odd halves": Case(width=24, rot=12),
    "no rotation": Case(kind=None),
    "normed": Case(width=64, normed=True, kv_type="f32"),
    "one head each": Case(heads=3, kv_heads=3, width=8),
    "seven share": Case(heads=14, kv_heads=2, width=8),
    "window": Case(window=100),
    "window of a tile": Case(window=64, kv_type="f32"),
    "window of one": Case(window=1),
    "window over segments": Case(window=700, normed=True),
    "softcap": Case(softcap=20.0, size=4.0),
    "sharp": Case(size=30.0, kind="norm"),
    "overflowing": Case(size=1e5),
    "broken": Case(broken=True, window=200),
    "broken, f32 cache": Case(broken=True, kv_type="f32", kind="norm"),
    "wide": Case(width=128, heads=2, kv_heads=1),
}


@functools.cache
def whole(case: Case) -> Floats:
    """The reference's rows for all positions."""
    reference = Reference(case.graph(), case.memory().weight, case.kv_type)
    with np.errstate(all="ignore"):
        parts = [
            reference.step(rows(np.arange(i, min(N, i + 300)), start=i))["y"]
            for i in range(0, N, 300)
        ]
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("name", TARGETS)
def test_attention_is_the_references(name: str, label: str, objects: Path) -> None:
    """Prompt in chunks on two threads; then single rows, whose segments threads share."""
    case = CASES[label]
    program = compile_for(name, case.graph(), objects, kv_type=case.kv_type, max_rows=STEP)
    expected = whole(case)
    with device(program, case.memory(), threads=3 if name == "vnni512" else 2) as cpu:
        at = 0
        for size in [1, 63, 1, 129, 200, 117, 1, 1, *[200] * 2, 180, *[1] * 7]:
            got = outputs(cpu, plain_rows(np.arange(at, at + size), start=at))["y"]
            assert same_words(got, expected[at : at + size]), f"positions {at}..{at + size}"
            at += size
        assert at == N


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_that_share_segments_do_not_change_a_word(threads: int, objects: Path) -> None:
    case = CASES["window over segments"]
    program = compile_for("scalar", case.graph(), objects, max_rows=STEP)
    with device(program, case.memory(), threads=threads) as cpu:
        for at in range(0, N, STEP):
            stop = min(N, at + STEP)
            outputs(cpu, plain_rows(np.arange(at, stop), start=at))
        for at in (N - 1, 1023, 1024, 700, 511, 512, 0):
            got = outputs(cpu, plain_rows([at], start=at))["y"]
            assert same_words(got, whole(case)[at : at + 1])


@settings(max_examples=15, deadline=None)
@given(
    takes=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    threads=st.integers(1, 3),
)
@pytest.mark.parametrize("name", TARGETS)
def test_where_pages_lie_does_not_change_a_word(
    name: str, takes: list[tuple[int, int]], seed: int, threads: int, objects: Path
) -> None:
    """Two sequences whose pages are strewn over the cache, in steps of mixed rows."""
    case = CASES["plain"]
    program = compile_for(name, case.graph(), objects, max_rows=STEP)
    pages = np.random.default_rng(seed).permutation(16).astype(np.int32)
    tables = [pages[:8], pages[8:]]
    done = [0, 0]
    with device(program, case.memory(), threads=threads, n_ctx=16 * PAGE) as cpu:
        for take in takes:
            if not any(take):
                continue
            spans = [np.arange(done[i], done[i] + take[i], dtype=np.int32) for i in (0, 1)]
            positions = np.concatenate(spans)
            slots = np.concatenate(
                [tables[i][spans[i] // PAGE] * PAGE + spans[i] % PAGE for i in (0, 1)]
            )
            step = Rows(
                positions,
                positions,
                slots.astype(np.int64),
                [tables[0]] * take[0] + [tables[1]] * take[1],
                np.zeros(0, np.int32),
            )
            got = outputs(cpu, step)["y"]
            assert same_words(got, whole(case)[positions])
            done = [done[i] + take[i] for i in (0, 1)]


def test_what_a_page_held_before_is_never_seen(objects: Path) -> None:
    """NaN at positions that a shorter path does not reach, in its own last tile too."""
    case = Case()
    memory = case.memory()
    for name in "kv":
        table = memory.bytes[f"t{name}"].view(np.float32).reshape(N, -1)
        table[500:] = np.nan
    expected = Reference(case.graph(), memory.weight).step(rows(np.arange(90)))["y"]
    assert np.isfinite(expected).all()
    for name in TARGETS:
        program = compile_for(name, case.graph(), objects, max_rows=STEP)
        with device(program, memory) as cpu:
            outputs(cpu, plain_rows(np.arange(500, 700)))
            assert same_words(outputs(cpu, plain_rows(np.arange(90)))["y"], expected)


def test_keys_that_are_values_too_are_turned_in_a_copy(objects: Path) -> None:
    """Queries, keys and values from one row: turning keys in place must not reach the others."""
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (N, 32)), name="x")
    h = b.split_heads(x, 2, name="h")
    turned = b.rope(h, None, name="r", kind="neox", rot=16, base=100.0)
    y = b.attention(turned, turned, h, scale=0.25, cache="c", name="y")
    both = b.add(b.merge_heads(y, name="flat"), x, name="both")
    graph = graph_of({"y": both}, {"c": CacheSpec("attention", 2, 16, 16)})
    memory = Memory()
    memory.put_floats("x", np.random.default_rng(1).standard_normal((N, 32)))
    expected = Reference(graph, memory.weight).step(rows(np.arange(100)))["y"]
    for name in TARGETS:
        program = compile_for(name, graph, objects, max_rows=STEP)
        with device(program, memory) as cpu:
            assert same_words(outputs(cpu, plain_rows(np.arange(100)))["y"], expected)


@pytest.mark.parametrize("width", [4, 12])
def test_head_widths_that_vectors_do_not_divide_are_refused(width: int) -> None:
    case = Case(width=width, heads=2, kv_heads=2, kind=None)
    with pytest.raises(UnsupportedError, match=rf"heads of {width} channels"):
        compile_for("scalar", case.graph())


def test_angles_that_differ_between_queries_and_keys_are_refused() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (8, 32)), name="x")
    h = b.split_heads(x, 2, name="h")
    q = b.rope(h, None, name="q", kind="neox", rot=16, base=100.0)
    k = b.rope(h, None, name="k", kind="neox", rot=16, base=200.0)
    y = b.merge_heads(b.attention(q, k, h, scale=0.25, cache="c", name="y"), name="flat")
    graph = graph_of({"y": y}, {"c": CacheSpec("attention", 2, 16, 16)})
    with pytest.raises(UnsupportedError, match="op rope has no kernel"):
        compile_for("scalar", graph)
