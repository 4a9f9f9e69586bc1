"""What an answer is made of, as the text layer tells it: the neutral events of a stream.

    Reasoning("...")                      part of the thinking, its markers removed
    Text("...")                           part of the answer
    ToolCallStart(0, "call_...", "name")  a call begins
    ToolArguments(0, '{"a": 1}')          part of its arguments; joined they are valid JSON
    ToolCallEnd(0)                        the call is complete

Events of one kind may come in any number of pieces; their joined text does not depend on how
the model's text was cut.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """Part of the answer's text."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Part of the thinking."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolArguments:
    """Part of the JSON text of a call's arguments."""

    index: int
    delta: str


@dataclass(frozen=True)
class ToolCallEnd:
    """All arguments of a call have come."""

    index: int


OutputEvent = Text | Reasoning | ToolCallStart | ToolArguments | ToolCallEnd
