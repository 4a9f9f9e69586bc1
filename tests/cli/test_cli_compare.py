"""Reading llama-bench's output, finding it, and the card."""

from __future__ import annotations

import json
import os

import pytest

from kinetic.cli.bench import BenchResult, table
from kinetic.cli.compare import Peer, PeerResult, best, card, card_json, parse
from kinetic.errors import KineticError, UsageError

OURS = BenchResult(
    model="tiny-Q4_K_M.gguf",
    backend="cpu",
    device="the CPU",
    threads=2,
    repetitions=3,
    load_seconds=0.531,
    size_bytes=253113024,
    weights="Q4_K",
    parameters=268098176,
    prefill_tokens=512,
    prefill_tokens_per_second=300.0,
    decode_tokens=128,
    decode_tokens_per_second=45.0,
    edit_tokens=256,
    edit_tokens_per_second=90.0,
    edit_identical=True,
    technologies="on: RAD-1",
    peak_rss_bytes=2**29,
)
LLAMA_BENCH = [
    {"build_commit": "0c1e570", "build_number": 1, "n_prompt": 512, "n_gen": 0}
    | {"avg_ts": 99.0, "samples_ts": [98.0, 100.0]},
    {"build_commit": "0c1e570", "build_number": 1, "n_prompt": 0, "n_gen": 128}
    | {"avg_ts": 24.0, "samples_ts": [25.0, 23.0]},
]


def test_the_table_is_llama_benchs():
    assert table(OURS).splitlines() == [
        "| model | size | params | backend | threads | test | t/s |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
        "| tiny-Q4_K_M | 0.24 GiB | 0.27 B | CPU | 2 | pp512 | 300.00 |",
        "| tiny-Q4_K_M | 0.24 GiB | 0.27 B | CPU | 2 | tg128 | 45.00 |",
        "| tiny-Q4_K_M | 0.24 GiB | 0.27 B | CPU | 2 | edit256 | 90.00 |",
        "",
        "on the CPU, best of 3, load 0.53 s",
        "speed technologies on: RAD-1; Warm Start, Zero Wait and Convoy take no part",
        "edit: drafted output identical to plain decoding: yes",
        "peak memory 0.50 GiB",
    ]


def test_llama_benchs_best_samples_count():
    assert parse(json.dumps(LLAMA_BENCH)) == PeerResult("b1 (0c1e570)", 100.0, 25.0)
    assert best([PeerResult("b", 1.0, 9.0), PeerResult("b", 2.0, 8.0)]) == PeerResult("b", 2.0, 9.0)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[1]", '[{"n_gen": 0}]', "x"])
def test_other_output_is_an_error(text):
    with pytest.raises(KineticError, match="llama-bench did not print"):
        parse(text)


def test_the_card_has_both_and_the_ratios():
    theirs = PeerResult("b1 (0c1e570)", 100.0, 25.0)
    lines = card(OURS, theirs).splitlines()
    assert lines[0] == "## Kinetic vs llama.cpp: tiny-Q4_K_M"
    assert "| prompt pp512 | 300.0 | 100.0 | 3.00x |" in lines
    assert "| generate tg128 | 45.0 | 25.0 | 1.80x |" in lines
    assert any("Same file (0.24 GiB, Q4_K), on the CPU, 2 threads" in line for line in lines)
    assert lines[-2].endswith("peak memory 0.50 GiB, speed technologies on: RAD-1.")
    assert "| edit256 | 90.0 | - | - |" in lines
    assert lines[-1].endswith("identical to plain decoding: yes.")
    both = json.loads(card_json(OURS, theirs))
    assert both["ratio"] == {"prefill": 3.0, "decode": 1.8}
    assert both["llama_cpp"]["build"] == "b1 (0c1e570)"


def test_a_missing_llama_bench_is_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kinetic.cli.compare._installed", lambda: None)
    with pytest.raises(UsageError, match="llama-bench is not on PATH"):
        Peer.find("", tmp_path)
    with pytest.raises(UsageError, match="there is no program"):
        Peer.find(str(tmp_path / "llama-bench"), tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_llama_bench_runs_as_its_own_process(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho broken model. >&2\nexit 3\n")
    program.chmod(0o755)
    peer = Peer.find(str(tmp_path), tmp_path / "m.gguf")  # its folder is enough
    assert peer.command(2)[:3] == [str(program), "-m", str(tmp_path / "m.gguf")]
    with pytest.raises(KineticError, match=r"failed with 3: broken model\.$"):
        peer.measure(2)
    program.write_text(f"#!/bin/sh\necho '{json.dumps(LLAMA_BENCH)}'\n")
    assert peer.measure(2).decode_tokens_per_second == 25.0
