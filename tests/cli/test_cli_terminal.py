"""Text that reaches a terminal, and the line that updates in place."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.cli.terminal import LiveLine, printable


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
    line.progress("repack", 1, 4)
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
    line.progress("load", 0, 1)
    line.clear()
    assert stream.getvalue() == ""
