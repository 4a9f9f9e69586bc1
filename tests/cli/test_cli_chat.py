"""`kinetic chat` from a pipe, and the parts it is made of."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time

import pytest
from support.terminal import kinetic_command
from support.tiny_models import tiny_model

from kinetic.api import Model
from kinetic.cli.chat import build_parser
from kinetic.cli.chat.ahead import RunAhead
from kinetic.cli.chat.commands import TABLE, Leave, obey
from kinetic.cli.chat.conversation import Conversation
from kinetic.cli.chat.screen import AnswerWriter
from kinetic.cli.chat.session import Session, open_session
from kinetic.errors import ContextError, UsageError
from kinetic.runtime.sampling import SamplingParams
from kinetic.text.chat_template import ChatTemplate
from kinetic.text.events import Reasoning, Text

TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
THINKING = TEMPLATE.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking %}<think>\n{% endif %}{# </think> #}{% endif %}",
)
ALWAYS = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{# </think> #}{% endif %}")
GREEDY = ("--temp", "0", "-n", "5", "-t", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("chat") / "tiny.gguf"
    return tiny_model("qwen2", file, metadata={"tokenizer.chat_template": TEMPLATE})


@pytest.fixture(scope="module")
def model(path):
    loaded = Model.load(path, threads=1, ctx_size=512)
    yield loaded
    loaded.close()


@pytest.fixture
def session(model):
    conversation = Conversation(model.chat_template)
    return Session(model, "tiny", conversation, SamplingParams(temperature=0), 6)


def said(session: Session, message: str) -> str:
    events: list[Text | Reasoning] = []
    session.answer(message, events.append)
    return "".join(event.text for event in events)


# From a pipe. --------------------------------------------------------------------------


def test_each_line_is_a_message_and_only_answers_are_printed(kinetic, path):
    both = kinetic("chat", path, *GREEDY, input="hello\nwhat now")
    assert (both.returncode, both.stderr) == (0, "")
    first = kinetic("chat", path, *GREEDY, input="hello\n")
    assert both.stdout.startswith(first.stdout) and first.stdout.endswith("\n")
    assert len(both.stdout) > len(first.stdout)
    assert first.stdout == kinetic("run", path, "hello", *GREEDY).stdout


def test_an_answer_depends_on_what_was_said(kinetic, path):
    last = [
        kinetic("chat", path, *GREEDY, "--system", system, input=text).stdout[-40:]
        for system, text in (("a", "x\nhello"), ("a", "yyyyyyyy\nhello"), ("b", "x\nhello"))
    ]
    cold = kinetic("chat", path, *GREEDY, "--no-prompt-cache", "--system", "a", input="x\nhello")
    assert cold.stdout[-40:] == last[0]
    assert len(set(last)) > 1


@pytest.mark.parametrize("text", ["", "\n\n", "/exit\nhello", "  \n/quit"])
def test_an_end_without_a_message_is_a_good_end(kinetic, path, text):
    done = kinetic("chat", path, input=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_backslash_goes_on_with_the_message(kinetic, path):
    joined = kinetic("chat", path, *GREEDY, input="one\\\ntwo\n")
    assert joined.stdout == kinetic("run", path, "one\ntwo", *GREEDY).stdout
    cut = kinetic("chat", path, *GREEDY, input="one\\")
    assert cut.stdout == kinetic("run", path, "one", *GREEDY).stdout


def test_commands_answer_on_stderr(kinetic, path):
    done = kinetic("chat", path, input="/temp 0.5\n/sampling\n/clear\n/help\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "temperature 0.5" in done.stderr and "/system TEXT" in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/image x.png\n", "images are not supported yet"),
        ("/receipt\n", "there is no answer yet"),
        ("/cleer\n", "did you mean /clear?"),
        ("/temp warm\n", "/temp takes a number"),
        ("/think\n", "knows no reasoning"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_a_script_stops_at_what_makes_no_sense(kinetic, path, text, told):
    done = kinetic("chat", path, input=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kinetic: ") and done.stderr.count("\n") == 1
    assert told in done.stderr


def test_a_full_context_is_told(kinetic, path):
    done = kinetic("chat", path, "--temp", "0", "-t", "1", "-c", "32", input="hello\n")
    assert done.returncode == 0
    assert "the context of 32 tokens is full; /clear" in done.stderr
    done = kinetic("chat", path, "-t", "1", "-c", "32", input="hello " * 40 + "\n")
    assert done.returncode == 1
    assert "the context holds 32" in done.stderr


def test_a_model_without_a_template_is_refused(kinetic, tmp_path):
    tiny_model("llama", tmp_path / "base.gguf")
    done = kinetic("chat", tmp_path / "base.gguf", input="hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "base.gguf has no chat template" in done.stderr
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    line = ("--chat-template-file", tmp_path / "t.jinja")
    for command, prompt in (("chat", ()), ("run", ("hello",))):
        done = kinetic(command, tmp_path / "base.gguf", *prompt, *line, *GREEDY, input="hello\n")
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


def test_projectors_are_refused_in_one_sentence(kinetic, path):
    done = kinetic("chat", path, "--mmproj", "p.gguf")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--mmproj is not supported yet" in done.stderr


def test_ctrl_c_ends_a_script_with_130(path):
    process = subprocess.Popen(
        kinetic_command("chat", path, "-t", "1", "-c", "1024", "--temp", "0", "-n", "900"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "KINETIC_DEBUG": "0"},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.stdin.close()
    errors = process.stderr.read() if process.stderr is not None else b""
    assert process.wait(60) in (0, 130)  # 0: the answer was over before the signal came
    assert b"Traceback" not in errors


def test_options_do_not_leave_prompts_on_disk(kinetic, path, tmp_path):
    env = {"KINETIC_CACHE_DIR": str(tmp_path / "cache")}
    kinetic("chat", path, *GREEDY, input="hello " * 100, env=env)
    assert not (tmp_path / "cache" / "warm").exists()


# The parts. ----------------------------------------------------------------------------


def test_commands_change_the_session(session):
    said(session, "hi")
    assert len(session.conversation.turns) == 1
    assert obey("hello", session) is None and obey(" /clear", session) is None
    obey("/top-k 7", session), obey("/top-p 0.5", session), obey("/min-p 0.1", session)
    obey("/seed 9", session)
    params = session.params
    assert (params.top_k, params.top_p, params.min_p, params.seed) == (7, 0.5, 0.1, 9)
    obey("/seed", session)
    assert session.params.seed is None
    obey("/system You are brief.", session)
    assert (session.conversation.system, session.conversation.turns) == ("You are brief.", [])
    obey("/system", session)
    assert session.conversation.system is None
    with pytest.raises(Leave):
        obey("/quit", session)
    with pytest.raises(UsageError):
        obey("/top-p 7", session)


def test_help_names_every_command(session):
    text = obey("/help", session)
    assert text is not None and all(command.written in text for command in TABLE)


def test_thinking_is_turned_by_the_template_or_by_an_empty_block(model):
    for source, switch in ((THINKING, True), (ALWAYS, False)):
        template = ChatTemplate(source, model.tokenizer)
        session = Session(model, "t", Conversation(template, think=False), SamplingParams())
        off = session.conversation.prompt("hi")
        obey("/think", session)
        on = session.conversation.prompt("hi")
        assert (off.thinking, on.thinking) == (False, True)
        assert len(on.ids) < len(off.ids) if not switch else len(on.ids) > len(off.ids)


def test_what_ran_ahead_is_the_beginning_of_every_ending(session):
    conversation = session.conversation
    said(session, "before")
    for text in ("", "hel", "hello wor", "hello world  ", "ends with the"):
        ahead = conversation.prompt_so_far(text)
        for end in ("", "s", " more", "\nthere"):
            assert conversation.prompt(text + end).ids[: len(ahead)] == ahead
    assert len(conversation.prompt_so_far("a b c d")) > len(conversation.prompt_so_far("a b"))


def test_an_answer_starts_behind_what_ran_ahead(model):
    conversation = Conversation(model.chat_template, system="s " * 30)
    session = Session(model, "tiny", conversation, SamplingParams(temperature=0), 4)
    message = "once upon a time there was a model that read ahead of those who typed"
    plain = said(session, message)
    session.conversation.clear()
    ahead = RunAhead(session, batch=8, pause=0.05)
    for end in range(1, len(message) - 3):
        ahead.typed(message[:end])
    until = time.monotonic() + 30
    while ahead.requests == 0 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    ahead.stop()
    assert ahead.requests > 0
    events: list[object] = []
    finish = session.answer(message, events.append)
    assert finish is not None
    counts = finish.counts
    assert counts.cached_tokens >= counts.prompt_tokens // 2
    assert session.conversation.turns[-1][1] == plain


def test_a_message_that_fails_is_forgotten(session):
    with pytest.raises(ContextError):
        said(session, "hello " * 600)
    assert session.conversation.turns == []
    assert said(session, "hello")


def test_a_stopped_answer_stays_as_far_as_it_came(session, monkeypatch):
    seen: list[object] = []

    def stop_at_third(event):
        seen.append(event)
        if len(seen) == 3:
            raise KeyboardInterrupt

    session.limit = 50
    assert session.answer("hello", stop_at_third) is None
    ((message, answer),) = session.conversation.turns
    assert message == "hello" and answer


def test_thinking_is_not_part_of_a_pipe_and_dimmed_in_a_terminal(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def shown(terminal: bool) -> str:
        writer = AnswerWriter(terminal=terminal)
        for event in (Reasoning("hm\x1b"), Reasoning("m"), Text("yes\x1b")):
            writer.show(event)
        writer.close()
        return capsys.readouterr().out

    assert shown(False) == "yes\x1b\n"
    assert shown(True) == "\x1b[2mhm\\x1bm\x1b[0m\n\nyes\\x1b\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(True) == "[thinking]\nhm\\x1bm\n[end]\n\nyes\\x1b\n"


def test_zero_wait_is_off_where_it_is_told_to_be(path):
    for line, ahead in (("", True), ("--off zero-wait", False), ("--no-prompt-cache", False)):
        options = build_parser().parse([str(path), *line.split(), "-t", "1"])
        assert isinstance(options, argparse.Namespace)
        session = open_session(path, options)
        session.close()
        assert session.run_ahead is ahead
