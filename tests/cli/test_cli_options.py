"""Options of the manual's tables, each with what it does."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.hub_server import FakeHub
from support.tiny_models import tiny_model

from kinetic.cli.options import sampling_overrides
from kinetic.cli.run import build_parser

SAMPLING = {
    "--temp": ("temperature", 0.7),
    "--top-k": ("top_k", 30),
    "--top-p": ("top_p", 0.9),
    "--min-p": ("min_p", 0.02),
    "--typical": ("typical_p", 0.8),
    "--top-nsigma": ("top_n_sigma", 2.0),
    "--xtc-probability": ("xtc_probability", 0.5),
    "--xtc-threshold": ("xtc_threshold", 0.2),
    "--repeat-penalty": ("repeat_penalty", 1.3),
    "--repeat-last-n": ("repeat_last_n", 32),
    "--presence-penalty": ("presence_penalty", 0.5),
    "--frequency-penalty": ("frequency_penalty", 0.25),
    "--dry-multiplier": ("dry_multiplier", 0.8),
    "--dry-base": ("dry_base", 1.5),
    "--dry-allowed-length": ("dry_allowed_length", 3),
    "--dry-penalty-last-n": ("dry_penalty_last_n", 64),
    "--mirostat": ("mirostat", 0),
    "--mirostat-lr": ("mirostat_eta", 0.2),
    "--mirostat-ent": ("mirostat_tau", 4.0),
    "--seed": ("seed", 9),
}
GREEDY = ("--temp", "0", "-n", "4", "-t", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model("llama", tmp_path_factory.mktemp("options") / "tiny.gguf")


@pytest.mark.parametrize("option", SAMPLING)
def test_each_sampling_option_sets_its_field(option):
    field, value = SAMPLING[option]
    options = build_parser().parse(["m", option, str(value)])
    assert options is not None and sampling_overrides(options) == {field: value}


def test_all_sampling_options_together_give_one_answer(kinetic, model):
    line = [word for option, (_, value) in SAMPLING.items() for word in (option, value)]
    first, again = (kinetic("run", model, "hello", "-n", "12", *line) for _ in range(2))
    assert (first.returncode, first.stdout) == (0, again.stdout), first.stderr
    loose = ("--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--top-nsigma", "-1")
    other = kinetic("run", model, "hello", "-n", "12", *line, *loose, "--seed", "10")
    assert other.stdout != first.stdout


def test_prompt_states_go_where_they_are_told_to(kinetic, model, tmp_path):
    env = {"KINETIC_CACHE_DIR": str(tmp_path / "cache")}
    states, long = tmp_path / "states", "hello " * 60
    line = ("run", model, long, *GREEDY, "--ctx-size", "1024")
    plain = kinetic(*line, "--cache-dir", states, env=env)
    assert plain.returncode == 0, plain.stderr
    assert any(states.rglob("*")) and not (tmp_path / "cache" / "warm").exists()
    assert kinetic(*line, "--cache-dir", states, env=env).stdout == plain.stdout
    none = kinetic(*line, "--no-prompt-cache", env=env)
    assert none.stdout == plain.stdout and not (tmp_path / "cache" / "warm").exists()


def test_the_servers_options_reach_it():
    pytest.importorskip("hypercorn")
    serve = import_module("kinetic.cli.serve")

    def wanted(*line: str):
        return serve._server_options(serve.build_parser().parse(["m", *line]))

    assert (wanted().port, wanted("--ollama").port) == (8080, 11434)
    assert wanted("--ollama", "--port", "9").port == 9
    assert wanted("--alias", "mine").alias == "mine"
    assert wanted("--api-key", "a,b", "--api-key", "c").api_keys == ("a", "b", "c")
    assert wanted("--host", "::1").host == "::1"


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_bench_compares_with_a_llama_bench(kinetic, model, tmp_path):
    tests = [
        {"build_commit": "abc", "build_number": 1, "n_prompt": 512, "n_gen": 0, "samples_ts": [9]},
        {"build_commit": "abc", "build_number": 1, "n_prompt": 0, "n_gen": 128, "samples_ts": [3]},
    ]
    program = tmp_path / "llama-bench"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(tests)}'\n")
    program.chmod(0o755)
    line = ("bench", model, "--repetitions", "1", "-t", "1", "--compare", program)
    card = kinetic(*line)
    assert card.returncode == 0, card.stderr
    assert "| llama.cpp b1 (abc) |" in card.stdout and "| edit256 |" in card.stdout
    both = json.loads(kinetic(*line, "--json").stdout)
    assert both["llama_cpp"]["decode_tokens_per_second"] == 3


def test_pull_downloads_into_the_folder_it_is_told(kinetic, tmp_path):
    data = Path(tiny_model("llama", tmp_path / "m-Q4_K_M.gguf")).read_bytes()
    with FakeHub({"org/repo-GGUF": {"m-Q4_K_M.gguf": data}}) as hub:
        env = {"HF_ENDPOINT": hub.url, "KINETIC_MODELS": str(tmp_path / "elsewhere")}
        line = ("--dir", tmp_path / "here", "--file", "m-Q4_K_M.gguf", "--no-mmproj")
        done = kinetic("pull", "org/repo-GGUF", *line, env=env)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "here").rglob("*.gguf")] == ["m-Q4_K_M.gguf"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_receipt_is_written_and_signed(kinetic, model, tmp_path):
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    receipt = tmp_path / "r.json"
    line = ("--receipt", receipt, "--sign-key", tmp_path / "key")
    done = kinetic("run", model, "hello", *GREEDY, *line)
    assert done.returncode == 0, done.stderr
    assert "signature" in receipt.read_text()


def test_every_promised_option_has_a_test_or_a_reason(monkeypatch, capsys):
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(scripts))
    monkeypatch.setattr(sys, "argv", ["options_table.py", "--check"])
    assert import_module("options_table").main() == 0, capsys.readouterr().out
