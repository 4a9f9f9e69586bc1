"""`kinetic run`, `bench` and `show` on a tiny model, from the shell's side."""

from __future__ import annotations

import json
import re

import pytest

tiny_models = pytest.importorskip("support.tiny_models")
pytest.importorskip("kinetic.api")

STATUS = re.compile(
    r"\[(?P<n>\d+) tokens? at [\d.-]+ tok/s; prompt (?P<p>\d+) tokens? at [\d.-]+ tok/s "
    r"on the CPU(?P<note>.*)\]\n"
)
GREEDY = ("--temp", "0", "-n", "5", "-t", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_models.tiny_model("llama", path, seed=1)
    return path


def test_only_the_answer_goes_to_stdout(kinetic, model):
    done = kinetic("run", model, "hello", *GREEDY)
    assert done.returncode == 0, done.stderr
    status = STATUS.fullmatch(done.stderr)
    assert status, done.stderr
    assert 0 < int(status["n"]) <= 5
    assert status["note"] == ", no chat template: continued the text"
    assert done.stdout.endswith("\n")
    assert not done.stdout.endswith("\n\n") or done.stdout.strip() == ""


def test_the_status_line_counts_the_steps_it_timed():
    from kinetic.api import Stats
    from kinetic.cli.run import status_line

    # The prompt's last step gives the first token: 5 tokens are 4 timed steps.
    line = status_line(Stats(8, 2.0, 5, 2.0), "the CPU")
    assert line == "[5 tokens at 2.0 tok/s; prompt 8 tokens at 4.0 tok/s on the CPU]"
    line = status_line(Stats(1, 0.5, 1, 1e-6), "the CPU", ", a note")
    assert line == "[1 token; prompt 1 token at 2.0 tok/s on the CPU, a note]"


def test_an_answer_cut_by_the_context_is_told(kinetic, model):
    line = ("run", model, "hello", "--temp", "0", "-t", "1")
    cut = kinetic(*line, "-c", "16")
    assert cut.returncode == 0, cut.stderr
    told, status = cut.stderr.splitlines()
    assert told.startswith("kinetic: the answer was cut, because the context of 16 tokens is full")
    assert "-c" in told
    assert status.startswith("[")
    assert "was cut" not in kinetic(*line, "-c", "16", "-n", "2").stderr


def test_the_prompt_may_come_from_anywhere(kinetic, model, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("hello\n")
    answer = kinetic("run", model, "hello", *GREEDY).stdout
    for line, stdin in (
        ([*GREEDY, model, "hello"], ""),
        ([model, *GREEDY, "hello"], ""),
        ([*GREEDY, "-m", model, "-p", "hello"], ""),
        ([*GREEDY, "-m", model, "hello"], ""),
        ([model, *GREEDY, "--", "hello"], ""),
        ([model, *GREEDY], "hello"),
        ([model, *GREEDY], "hello\n"),
        ([model, *GREEDY, "-f", prompt], ""),
        ([model, *GREEDY], "\ufeffhello\r\n"),
    ):
        done = kinetic("run", *line, input=stdin)
        assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_a_seed_repeats_with_any_number_of_threads(kinetic, model):
    line = ("run", model, "hello", "--temp", "1", "--seed", "42", "-n", "8")
    answers = {kinetic(*line, "-t", threads).stdout for threads in (1, 2)}
    assert len(answers) == 1


def test_a_base_model_takes_no_system_prompt(kinetic, model):
    done = kinetic("run", model, "hello", "--system", "Be brief.", *GREEDY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no chat template" in done.stderr


def test_no_escape_byte_is_written(kinetic, model):
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        done = kinetic("run", model, "hello", *GREEDY, env=env)
        assert "\x1b" not in done.stderr


@pytest.mark.parametrize(("device", "code"), [("cuda", 1), ("vulkan77", 2)])
def test_a_device_that_is_not_there_is_one_sentence(kinetic, model, device, code):
    done = kinetic("run", model, "hello", "--device", device, *GREEDY)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("kinetic: ")
    assert done.stderr.count("\n") == 1


def test_an_empty_file_is_no_model(kinetic, tmp_path):
    (tmp_path / "m.gguf").touch()
    done = kinetic("run", tmp_path / "m.gguf", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kinetic: ")
    assert done.stderr.count("\n") == 1


def test_loading_options_do_not_change_an_answer(kinetic, model, tmp_path):
    answer = kinetic("run", model, "hello", *GREEDY).stdout
    cache = ("--repack-cache", tmp_path / "cache", "--repack-cache-limit", "0.5")
    for line in (["--no-mmap"], cache, cache):
        done = kinetic("run", model, "hello", *GREEDY, *line)
        assert (done.returncode, done.stdout) == (0, answer), done.stderr
    assert len(list((tmp_path / "cache").iterdir())) == 1
    refused = kinetic("run", model, "hello", "--no-repack")
    assert refused.returncode == 1
    assert "--no-repack is not supported: kernels read only" in refused.stderr


def test_bench_prints_json_alone(kinetic, model):
    done = kinetic("bench", model, "--json", "-r", "1", "-t", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["prefill_tokens_per_second"] > 0
    assert result["decode_tokens_per_second"] > 0
    assert result["peak_rss_bytes"] > 0 and result["load_seconds"] > 0
    assert result["technologies"] == "on: RAD-1"
    assert result["edit_identical"] is True and result["edit_tokens_per_second"] > 0
    assert (result["edit_tokens"], result["decode_tokens"]) == (256, 128)
    assert (result["backend"], result["threads"], result["repetitions"]) == ("cpu", 1, 1)


def test_bench_says_what_took_part(kinetic, model):
    done = kinetic("bench", model, "-r", "1", "-t", "1", "--off", "rad1,convoy")
    assert done.returncode == 0, done.stderr
    assert "speed technologies on: none; off: RAD-1; Warm Start, Zero Wait" in done.stdout
    assert "edit: drafted output identical to plain decoding: yes" in done.stdout
    assert "| edit256 |" in done.stdout


def test_bench_fails_where_guesses_change_the_answer(monkeypatch, model, capsys):
    from kinetic.cli import bench, bench_edit

    monkeypatch.setattr(bench_edit, "plain_edit", lambda model, prompt: [0] * 256)
    options = bench.build_parser().parse([str(model), "-r", "1", "-t", "1"])
    assert bench.run(options) == 1
    assert "identical to plain decoding: NO" in capsys.readouterr().out


def test_show_prints_the_ir_and_the_plan(kinetic, model):
    ir = kinetic("show", model)
    assert ir.returncode == 0, ir.stderr
    assert "rms_norm" in ir.stdout
    plan = kinetic("show", model, "--plan")
    assert plan.returncode == 0, plan.stderr
    assert plan.stdout != ir.stdout


def test_show_names_what_there_is(kinetic, model):
    names = kinetic("show", model, "--list")
    assert names.returncode == 0, names.stderr
    wrong = kinetic("show", model, "--after", "no-such-pass")
    assert wrong.returncode in (1, 2)
    assert wrong.stderr.startswith("kinetic: ")
