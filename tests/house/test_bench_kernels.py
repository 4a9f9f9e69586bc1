"""The kernel microbenchmark: it measures real products, and its plot is well formed."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.ir.quant import FORMATS
from kinetic.ir.quant.decode import as_blocks, dequantize

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The script with cases of a few kilobytes."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(tmp_path))
    import _limits
    import bench_kernels

    monkeypatch.setattr(_limits, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(_limits, "_TURNS", 1000)
    monkeypatch.setattr(bench_kernels, "_MEMORY", 1 << 15)
    monkeypatch.setattr(bench_kernels, "_WORK", 1e5)
    return bench_kernels


def test_a_table_and_a_plot(bench, monkeypatch, capsys, tmp_path):
    picture = tmp_path / "img" / "roofline.svg"
    line = "bench_kernels.py --formats Q4_0,F16 --shapes 16x70 --rows 1,64 -r 1 -t 2 --svg"
    monkeypatch.setattr(sys, "argv", [*line.split(), str(picture)])
    assert bench.main() == 0
    out = capsys.readouterr().out
    rows = [row.split(" | ") for row in out.splitlines() if row.startswith(("| Q4_0", "| F16"))]
    assert [row[1:3] for row in rows] == [
        *(["16x96", "1"], ["16x96", "64"], ["16x72", "1"], ["16x72", "64"])
    ]
    assert len({out_row.count("|") for out_row in out.splitlines() if out_row[:1] == "|"}) == 1
    root = ElementTree.parse(picture).getroot()
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("Q4_0 16x96, 64 rows" in (title or "") for title in titles) == 1


def test_a_case_computes_the_products(bench):
    fmt = FORMATS["Q8_0"]
    case = bench.Case(fmt, (16, 64), 3, cpu_target(), 1)
    raw = bench._weights(fmt, 16, 64)
    weights = dequantize(fmt, as_blocks(fmt, raw)).reshape(16, 64)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    case.run()
    got = case.device.output("y0", 3)
    expected = x @ weights.T
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()
    case.device.close()
    assert 0 < case.best < 60 and case.macs == case.copies * 3 * 16 * 64


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_weights_of_every_format_are_finite(bench, name):
    fmt = FORMATS[name]
    outs, columns = bench._legal(fmt, "8x100")
    raw = bench._weights(fmt, outs, columns)
    assert np.isfinite(dequantize(fmt, as_blocks(fmt, raw))).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [("--formats Q9", "there is no format Q9"), ("--shapes 4by4", "'4by4' is no shape")],
)
def test_wrong_lines_are_told(bench, monkeypatch, line, message):
    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", "-r", "1", *line.split()])
    with pytest.raises(SystemExit, match=message):
        bench.main()


def test_a_folder_without_ggml_is_told(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", "--ggml-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="there is no libggml-base"):
        bench.main()
