"""The reported cases of the command line, each by its number."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

import pytest
from support.terminal import Terminal, kinetic_command, raw_output
from support.tiny_models import tiny_model

TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
GREEDY = ("--temp", "0", "-n", "4", "-t", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("cases") / "tiny.gguf"
    return tiny_model("qwen2", path, metadata={"tokenizer.chat_template": TEMPLATE}, n_ctx=16384)


class TestCL01:
    """The end of input in chat was taken for an empty line, and Ctrl-C was ignored."""

    def test_no_input_ends_with_0(self, kinetic, model):
        done = kinetic("chat", model, input="")
        assert (done.returncode, done.stdout) == (0, "")

    def test_piped_text_is_the_prompt(self, kinetic, model):
        piped = kinetic("run", model, *GREEDY, input="hi")
        assert piped.returncode == 0 and piped.stdout == kinetic("run", model, "hi", *GREEDY).stdout
        two = kinetic("chat", model, *GREEDY, input="a\nb")
        assert two.returncode == 0
        assert two.stdout.startswith(kinetic("chat", model, *GREEDY, input="a\n").stdout)

    def test_ctrl_c_stops_the_reply_and_a_second_one_leaves(self, model, tmp_path):
        pytest.importorskip("prompt_toolkit")
        line = kinetic_command("chat", model, "-t", "1", "--temp", "0", "--off", "rad1")
        terminal = Terminal(line, tmp_path)
        try:
            terminal.wait_for("\n>")
            terminal.type("hello")
            terminal.press("Enter")
            time.sleep(0.5)
            terminal.press("C-c")
            terminal.wait_for("[stopped]")
            terminal.wait_for("\n>", times=2)
            terminal.press("C-c")
            terminal.wait_for("left with 130")
        finally:
            terminal.close()

    def test_ctrl_d_leaves(self, model, tmp_path):
        pytest.importorskip("prompt_toolkit")
        terminal = Terminal(kinetic_command("chat", model, "-t", "1"), tmp_path)
        try:
            terminal.wait_for("\n>")
            terminal.press("C-d")
            terminal.wait_for("left with 0")
        finally:
            terminal.close()


class TestCL03:
    """Colours and spinners ignored NO_COLOR and TERM=dumb."""

    @pytest.mark.parametrize("env", [{"NO_COLOR": "1", "TERM": "xterm-256color"}, {"TERM": "dumb"}])
    @pytest.mark.parametrize("command", ["models", "fit", "--help", "run", "info"])
    def test_no_escape_is_written_to_a_terminal(self, model, tmp_path, command, env):
        words = {"run": ("run", model, "hi", *GREEDY), "info": ("info", model)}
        env = {**env, "KINETIC_MODELS": str(model.parent), "HOME": str(tmp_path)}
        written = raw_output(kinetic_command(*words.get(command, (command,))), env)
        assert written and b"\x1b" not in written

    def test_json_is_json_alone(self, kinetic, model):
        done = kinetic("info", model, "--json", env={"KINETIC_DEBUG": "2"})
        assert done.returncode == 0
        assert json.loads(done.stdout)


class TestCL05:
    """A flag after the model's name became part of the prompt; others got no hint."""

    def test_options_work_in_any_place(self, kinetic, model):
        answers = {
            kinetic("run", *line).stdout
            for line in (
                (model, *GREEDY, "hello"),
                (model, "hello", *GREEDY),
                (*GREEDY, model, "hello"),
            )
        }
        assert len(answers) == 1 and answers != {""}

    def test_after_dashes_all_is_prompt(self, kinetic, model):
        done = kinetic("run", model, *GREEDY, "--", "--temp")
        assert done.returncode == 0
        assert done.stdout == kinetic("run", model, *GREEDY, "-p=--temp").stdout

    def test_unknown_options_suggest_the_nearest(self, kinetic, model):
        done = kinetic("serve", model, "--no-such")
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no option --no-such" in done.stderr
        done = kinetic("run", model, "--tmep", "0", "hi")
        assert (done.returncode, done.stdout) == (2, "")
        assert "did you mean --temp?" in done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc to see a process")
@pytest.mark.parametrize("moment", ["python started", "libraries load", "it works"])
@pytest.mark.parametrize("command", ["run", "bench", "serve", "chat"])
def test_ctrl_c_is_clean_wherever_it_comes(model, command, moment):
    words = {"run": ("hello", "-n", "15000"), "bench": ("-r", "500"), "serve": ("--port", "0")}
    process = subprocess.Popen(
        kinetic_command(command, model, "-t", "1", *words.get(command, ())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "KINETIC_DEBUG": "0"},
    )
    try:
        _wait_for(process, moment, command)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    if moment == "python started" and b"Traceback" in errors:
        # Python's own start, before our first line.
        assert not any(ours in errors for ours in (b"/kinetic/cli", b"/kinetic/__main__"))
        return
    assert b"Traceback" not in errors, errors.decode()
    assert process.returncode in (130, 0), (process.returncode, errors)


def _wait_for(process, moment, command):
    """Wait for a sign that a process has come so far."""
    proc = f"/proc/{process.pid}"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with open(f"{proc}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        with open(f"{proc}/maps") as file:
            maps = file.read()
        if moment == "python started":
            # Programs before the interpreter may leave the signal alone: it must be caught.
            if int(caught, 16) >> (signal.SIGINT - 1) & 1:
                return
        elif "llvmlite" in maps:
            if moment == "it works" and command in ("run", "serve"):
                assert select.select([process.stdout, process.stderr], [], [], 120)[0]
            return
        time.sleep(0.005)
    raise AssertionError((moment, process.poll(), process.communicate(timeout=5)))
