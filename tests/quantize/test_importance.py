"""Importance matrices: collected as the reference computes, and their two file forms."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import tiny_model

from kinetic import families
from kinetic.cli import main
from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Node
from kinetic.ir.ops import arithmetic as ar
from kinetic.ir.reference import Reference, rows, weights_of
from kinetic.quantize.collect import Collector, tap
from kinetic.quantize.importance import ImportanceMatrix, Matrix, read, write


def _reference(path: Path, tokens: np.ndarray, window: int) -> dict[str, np.ndarray]:
    """Sums of squares of the inputs of the layers' matrices, from the graph's meaning."""
    sums: dict[str, np.ndarray] = {}
    with GGUFFile.open(path) as file:
        graph = families.build(file)
        values: dict[Node, np.ndarray] = {}
        for i, chunk in enumerate(tokens.reshape(-1, window)):
            values.clear()
            Reference(graph, weights_of(file)).step(
                rows(chunk, sequence=i), lambda node, value: values.update({node: value})
            )
            # Parts of a fused matrix read the same rows once.
            inputs = {
                (node.arg("W").get("name", str), node.arg("x"))
                for node in graph
                if node.op == "linear"
            }
            for name, node in inputs:
                if name.startswith("blk."):
                    x = values[node].astype(np.float64)
                    sums[name] = sums.get(name, 0) + (x * x).sum(axis=0)
    return sums


@pytest.mark.parametrize("arch", ["llama", "gemma3", "lfm2", "qwen35"])
def test_sums_are_those_of_the_reference(arch: str, tmp_path: Path) -> None:
    path = tiny_model(arch, tmp_path / "model.gguf", formats="F16")
    tokens = np.random.default_rng(0).integers(3, 320, 40).astype(np.int32)
    with GGUFFile.open(path) as file:
        collector = Collector(file, 20, threads=1)
        assert list(collector.run(tokens, None)) == [1, 2]
        found = collector.found("text.txt")
        collector.close()
    wanted = _reference(path, tokens, 20)
    assert found.matrices.keys() == wanted.keys()
    assert (found.chunks, found.chunk_size, found.datasets) == (2, 20, ("text.txt",))
    for name, matrix in found.matrices.items():
        assert matrix.counts.tolist() == [40]
        np.testing.assert_allclose(matrix.sums[0], wanted[name], rtol=1e-6, err_msg=name)


def test_matrices_of_one_input_share_an_output(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path / "model.gguf", formats="F16", fused_qkv=True)
    with GGUFFile.open(path) as file:
        taps = tap(families.build(file), file)
    names = [name for found in taps.readers.values() for name in found]
    assert len(names) == len(set(names))
    assert ("blk.0.attn_qkv.weight",) in taps.readers.values()
    assert ("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight") in taps.readers.values()


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss", "gemma4", "ernie4_5-moe"])
def test_experts_count_the_rows_that_reach_them(arch: str, tmp_path: Path) -> None:
    """Among these: biases, a router of its own rows, gate and up in one tensor, a choice by
    bias."""
    path = tiny_model(arch, tmp_path / "model.gguf", formats="F16")
    tokens = np.random.default_rng(0).integers(3, 320, 24).astype(np.int32)
    with GGUFFile.open(path) as file:
        collector = Collector(file, 24, threads=1)
        list(collector.run(tokens, None))
        found = collector.found("text.txt").matrices
        collector.close()
        graph, weights = families.build(file), weights_of(file)
        values: dict[Node, np.ndarray] = {}
        Reference(graph, weights).step(rows(tokens), lambda n, v: values.update({n: v}))
        mixtures = [node for node in graph if node.op == "experts"]
        assert mixtures
        for node in mixtures:
            x = values[node.arg("x")].astype(np.float64)
            chosen, hidden = _hidden(node, values, x)
            for part, inputs in (("gate", x), ("up", x), ("down", hidden)):
                name = node.arg(part).get("name", str)
                for expert in range(len(found[name].counts)):
                    mine = [i for i, row in enumerate(chosen) if expert in row]
                    assert found[name].counts[expert] == len(mine)
                    rows_of = [
                        inputs[i] if part != "down" else inputs[i][chosen[i].index(expert)]
                        for i in mine
                    ]
                    wanted = sum((r * r for r in rows_of), np.zeros(found[name].sums.shape[1]))
                    np.testing.assert_allclose(found[name].sums[expert], wanted, rtol=2e-3)


def _hidden(
    node: Node, values: dict[Node, np.ndarray], x: np.ndarray
) -> tuple[list[list[int]], list[list[np.ndarray]]]:
    """Each row's experts, and its gated rows in them."""
    weights = {p.name: n for p, n in zip(node.spec.inputs, node.inputs, strict=True) if n}
    wide = {name: ar.floats(values[n]) for name, n in weights.items() if n.op == "weight"}
    read = values[node.maybe("router_x") or node.arg("x")]
    router_bias = values[weights["router_bias"]] if "router_bias" in weights else None
    logits = ar.linear(read, values[node.arg("gate_inp")], router_bias)
    how = ar.Router(*(node.attrs[n] for n in ("n_used", "norm_weights", "router", "weight_scale")))
    chosen = ar.route(logits, how, wide.get("select_bias")).experts.tolist()
    hidden = []
    for row, experts in zip(x, chosen, strict=True):
        parts = []
        for e in experts:
            gate, up = wide["gate"][e] @ row, wide["up"][e] @ row
            gate = gate + (wide["gate_bias"][e] if "gate_bias" in wide else 0)
            up = up + (wide["up_bias"][e] if "up_bias" in wide else 0)
            parts.append(ar.glu(gate.astype("f4"), up.astype("f4"), node.get("act", str)))
        hidden.append([h.astype(np.float64) for h in parts])
    return chosen, hidden


def _matrix() -> ImportanceMatrix:
    sums = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    return ImportanceMatrix(
        {
            "blk.0.ffn_up_exps.weight": Matrix(sums, np.array([4, 0])),
            "blk.0.attn_q.weight": Matrix(sums[:1], np.array([2])),
        },
        ("first.txt", "second.txt"),
        chunks=7,
        chunk_size=512,
    )


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    write(path, _matrix())
    found = read(path)
    assert (found.datasets, found.chunks, found.chunk_size) == (("first.txt", "second.txt"), 7, 512)
    for name, matrix in _matrix().matrices.items():
        assert (found.matrices[name].sums == matrix.sums).all()
        assert (found.matrices[name].counts == matrix.counts).all()
    means = found.means()
    assert means["blk.0.attn_q.weight"].tolist() == [i / 2 for i in range(1, 9)]
    experts = means["blk.0.ffn_up_exps.weight"]
    assert experts.tolist() == [i / 4 for i in range(1, 9)] + [1.0] * 8
    keys = {pair.key: pair.value for pair in read(path, "shown.gguf").pairs()}
    assert keys == {
        "quantize.imatrix.file": "shown.gguf",
        "quantize.imatrix.dataset": "first.txt",
        "quantize.imatrix.entries_count": 2,
        "quantize.imatrix.chunks_count": 7,
    }


def _dat(*, chunks: int = 3, text: bytes = b"text.txt") -> bytes:
    name, values = b"blk.0.attn_q.weight", np.arange(1, 9, dtype="<f4")
    entry = struct.pack("<i", len(name)) + name + struct.pack("<ii", 4, 8) + values.tobytes()
    return struct.pack("<i", 1) + entry + struct.pack("<ii", chunks, len(text)) + text


def test_the_older_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(_dat())
    found = read(path)
    assert (found.chunks, found.datasets) == (3, ("text.txt",))
    assert found.means()["blk.0.attn_q.weight"].tolist() == [i / 4 for i in range(1, 9)]
    path.write_bytes(_dat()[:-16])  # written before the text's name was
    assert read(path).datasets == ()


@given(st.data())
def test_hostile_files_are_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imatrix"
        if data.draw(st.booleans()):
            raw = bytearray(_dat())
        else:
            write(path, _matrix())
            raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 4))
        struct.pack_into("<I", raw, at, data.draw(st.integers(0, 2**32 - 1)))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
        try:
            found = read(path)
        except (ModelFileError, UnsupportedError):
            return
        assert all(np.isfinite(means).all() for means in found.means().values())


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="kinetic imatrix makes one"):
        read(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model("llama", tmp_path / "model.gguf", formats="F16")
    text, out = tmp_path / "text.txt", tmp_path / "new.gguf"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    line = ["imatrix", str(model), "-f", str(text), "-o", str(out), "-c", "32", "--chunks", "3"]
    assert main([*line, "-t", "1"]) == 0
    assert "14 weights, 3 windows of 32 tokens" in capsys.readouterr().out
    assert set(read(out).matrices["blk.0.attn_q.weight"].counts) == {96}
    assert main(line) == 2
    assert "--yes replaces it" in capsys.readouterr().err
    quantized = tmp_path / "q.gguf"
    assert main(["quantize", str(model), str(quantized), "Q4_K_S", "--imatrix", str(out)]) == 0
    with GGUFFile.open(quantized) as file:
        assert file.get_int("quantize.imatrix.chunks_count") == 3
