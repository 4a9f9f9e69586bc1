"""Text that reaches a terminal, and the line that updates in place."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.cli.terminal import LiveLine, LoadBar, printable


@given(st.text(st.characters(exclude_categories=[])))
def test_printable_text_holds_no_control_character(text):
    shown = printable(text)
    shown.encode()
    assert not {c for c in shown if unicodedata.category(c) == "Cc"} - set("\t\n")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_ordinary_text_is_left_alone(text):
    assert printable(text) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def live(monkeypatch, stream: io.StringIO, term: str = "xterm", enabled: bool = True) -> str:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", stream)
    line = LiveLine(enabled=enabled, every=0)
    line.update("[100 tokens]")
    line.update("[1 token]")
    line.update("repack 25%")
    line.clear()
    return stream.getvalue()


def test_the_live_line_is_overwritten_and_leaves_nothing(monkeypatch):
    text = live(monkeypatch, Terminal())
    assert "repack 25%" in text
    assert "\x1b" not in text
    screen = ""
    for part in text.split("\r"):
        screen = part + screen[len(part) :]
    assert screen.strip() == ""


@pytest.mark.parametrize(
    ("stream", "term", "enabled"),
    [
        (io.StringIO(), "xterm", True),
        (Terminal(), "dumb", True),
        (Terminal(), "xterm", False),
    ],
    ids=["not a terminal", "dumb terminal", "switched off"],
)
def test_the_live_line_is_for_terminals_alone(monkeypatch, stream, term, enabled):
    assert live(monkeypatch, stream, term, enabled) == ""


def test_quick_work_shows_no_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    line = LiveLine()
    line.update("load")
    line.clear()
    bar = LoadBar()
    bar.progress("load", 1, 2)
    bar.clear()
    assert stream.getvalue() == ""


def loaded(monkeypatch, stream: io.StringIO, **env: str) -> str:
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    bar = LoadBar(after=-1)
    bar._line._next = 0.0
    bar.progress("load", 1 << 20, 4 << 20)
    bar.progress("load", 2 << 20, 4 << 20)
    bar.clear()
    return stream.getvalue()


def test_a_long_load_draws_a_bar(monkeypatch):
    text = loaded(monkeypatch, Terminal())
    assert "load" in text and "2.0/4.0 MiB" in text
    assert "\x1b" in text


def test_without_colour_the_bar_is_the_plain_line(monkeypatch):
    text = loaded(monkeypatch, Terminal(), NO_COLOR="1")
    assert "load 25%, 1 of 4 MiB" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")], ids=["file", "dumb"]
)
def test_no_bar_where_it_could_not_be_overwritten(monkeypatch, stream, term):
    assert loaded(monkeypatch, stream, TERM=term) == ""
