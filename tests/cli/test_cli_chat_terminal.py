"""`kinetic chat` with a person at a terminal, played through tmux."""

from __future__ import annotations

import re
import stat
import time

import pytest
from support.terminal import Terminal, kinetic_command
from support.tiny_models import tiny_model

pytest.importorskip("prompt_toolkit")

TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
THINKING = TEMPLATE.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking %}<think>{% endif %}{# </think> #}{% endif %}",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("chat") / "tiny.gguf"
    return tiny_model("qwen2", file, metadata={"tokenizer.chat_template": THINKING})


@pytest.fixture
def terminal(path, tmp_path):
    """Starts programs in terminals, and ends them."""
    opened: list[Terminal] = []

    def start(*words: object, env: dict[str, str] | None = None) -> Terminal:
        line = kinetic_command(*words, path, "-t", "1", "--temp", "0")
        opened.append(Terminal(line, tmp_path, env))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_conversation(terminal):
    screen = terminal("chat", "-n", "4")
    screen.wait_for("\n>")
    screen.type("hello there")
    screen.press("Enter")
    shown = screen.wait_for("prompt tokens")
    assert "[4 tokens at" in shown
    screen.type("and on")
    screen.press("Enter")
    shown = screen.wait_for("prompt tokens", times=2)
    # The second prompt holds the first turn, which is not run again.
    new, whole = re.findall(r"(\d+) of (\d+) prompt tokens", shown)[1]
    assert int(new) < int(whole) // 2
    screen.type("/clear")
    screen.press("Enter")
    screen.wait_for("A new conversation.")
    screen.press("Up")  # history, in memory
    screen.press("Up")
    screen.wait_for("and on", times=2)
    screen.press("C-c")  # drops the line
    screen.press("C-d")
    screen.wait_for("left with 0")


def test_messages_of_several_lines(terminal):
    screen = terminal("chat", "-n", "2")
    screen.wait_for("\n>")
    screen.type("one\\")
    screen.press("Enter")
    screen.type("two")
    screen.press("Enter")
    screen.wait_for("prompt tokens")
    screen.paste("three\nfour\nfive")
    time.sleep(0.3)
    assert screen.screen().count("prompt tokens") == 1  # pasted lines are not sent one by one
    screen.press("Enter")
    screen.wait_for("prompt tokens", times=2)
    screen.type("/exit")
    screen.press("Enter")
    screen.wait_for("left with 0")


def test_ctrl_c_stops_an_answer_and_a_second_one_leaves(terminal):
    screen = terminal("chat", "-c", "1024")
    screen.wait_for("\n>")
    screen.type("hello")
    screen.press("Enter")
    time.sleep(0.2)
    screen.press("C-c")
    screen.wait_for("\n>", times=2)
    screen.press("C-c")
    shown = screen.wait_for("left with 130") if "[stopped]" in screen.screen() else ""
    if not shown:  # the answer was over before the key: two more leave
        screen.press("C-c")
        screen.wait_for("left with 130")


def test_what_is_typed_runs_ahead(terminal):
    counts = []
    for extra in ((), ("--off", "zero-wait")):
        screen = terminal("chat", "-n", "2", *extra)
        screen.wait_for("\n>")
        screen.type("some words that are typed well before anybody asks for their answer ok")
        time.sleep(1.5)
        screen.press("Enter")
        shown = screen.wait_for("prompt tokens")
        new, whole = re.findall(r"(\d+) of (\d+) prompt tokens", shown)[0]
        counts.append((int(new), int(whole)))
        screen.press("C-d")
        screen.wait_for("left with 0")
    (ahead, whole), (plain, same) = counts
    assert whole == same == plain
    assert ahead < whole // 2


def test_thinking_is_dimmed_or_marked(terminal):
    screen = terminal("chat", "-n", "4")
    screen.wait_for("\n>")
    screen.type("/think")
    screen.press("Enter")
    screen.wait_for("Reasoning is on.")
    screen.type("hello")
    screen.press("Enter")
    screen.wait_for("prompt tokens")
    assert "\x1b[2m" in screen.screen(escapes=True)
    plain = terminal("chat", "-n", "4", "--reasoning", "on", env={"NO_COLOR": "1"})
    plain.wait_for("\n>")
    plain.type("hello")
    plain.press("Enter")
    plain.wait_for("[thinking]")


def test_history_is_kept_only_where_it_is_asked_for(terminal, tmp_path):
    for _ in range(2):
        screen = terminal("chat", "-n", "2", "--history", "h.txt")
        screen.wait_for("\n>")
        screen.press("Up")
        screen.type(" secret")
        screen.press("Enter")
        screen.wait_for("prompt tokens")
        screen.press("C-d")
        screen.wait_for("left with 0")
    file = tmp_path / "h.txt"
    assert " secret secret" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    bad = terminal("chat", "--history", "no/such/folder/h")
    bad.wait_for("--history no/such/folder/h is no place for a file")
    bad.wait_for("left with 2")


def test_errors_do_not_end_a_chat(terminal):
    screen = terminal("chat", "-n", "2", "-c", "64")
    screen.wait_for("\n>")
    for line, told in (
        ("/image cat.png", "images are not supported yet"),
        ("/nope", "there is no command /nope"),
        ("a" * 200, "the context holds 64"),
        ("hi", "prompt tokens"),
    ):
        screen.type(line)
        screen.press("Enter")
        screen.wait_for(told)
    screen.press("C-d")
    screen.wait_for("left with 0")


def test_run_without_a_prompt_is_a_chat_and_a_dumb_terminal_has_lines(terminal):
    screen = terminal("run", "-n", "2")
    screen.wait_for("\n>")
    screen.press("C-d")
    screen.wait_for("left with 0")
    dumb = terminal("chat", "-n", "2", env={"TERM": "dumb"})
    dumb.wait_for(">")
    dumb.type("hello")
    dumb.press("Enter")
    dumb.wait_for("\n>")
    assert "\x1b" not in dumb.screen(escapes=True)
    dumb.press("C-d")
    dumb.wait_for("left with 0")
