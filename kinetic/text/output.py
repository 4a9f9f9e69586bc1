"""Turns a model's text into neutral events: thinking, text and tool calls.

    format = ChatFormat.of(template_source)             # once a model
    parser = OutputParser(format, tools=choice.tools, is_open=opened_by(format.reasoning, prompt))
    events = parser.push(text) ...                      # kinetic.text.events
    events = parser.flush("stop")                       # or "length"
    parser.finish_reason                                # "stop", "length" or "tool_calls"
    parser.complete                                     # True: the one call allowed is there

The text must hold the markers even where they are control tokens: decode with
`format.shown(tokenizer)` among the shown tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinetic.text.events import OutputEvent, Text
from kinetic.text.harmony import HarmonyParser
from kinetic.text.reasoning import ReasoningSplitter, ReasoningStyle, reasoning_style
from kinetic.text.tokenizer import Tokenizer
from kinetic.text.tools import Dialect, End, Tool, ToolParser, dialect_of, new_call_id


@dataclass(frozen=True)
class ChatFormat:
    """How one template's model marks its thinking and its calls."""

    dialect: Dialect
    reasoning: ReasoningStyle | None

    @classmethod
    def of(cls, template: str) -> ChatFormat:
        """The format of a chat template."""
        return cls(dialect_of(template), reasoning_style(template))

    def shown(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Control tokens whose text the parser must see."""
        texts = " ".join(self.dialect.markers)
        if self.reasoning is not None:
            texts += f" {self.reasoning.opener} {self.reasoning.closer}"
        return frozenset(
            t.id for t in tokenizer.special_tokens if t.control and t.text and t.text in texts
        )


class OutputParser:
    """One answer's text, told apart as it streams.

    `is_open`: the prompt ends inside a block of thinking. Without tools, markup of calls is
    text; with `reasoning` False, so is that of thinking.
    """

    def __init__(
        self,
        format: ChatFormat,
        *,
        tools: Sequence[Tool] = (),
        is_open: bool = False,
        reasoning: bool = True,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._whole: HarmonyParser | None = None
        if format.dialect.name == "harmony":
            self._whole = HarmonyParser(tools, is_open=is_open, parallel=parallel, new_id=new_id)
        style = format.reasoning if reasoning else None
        self._thoughts = ReasoningSplitter(style, is_open=is_open) if style else None
        self._calls = (
            ToolParser(format.dialect, tools, parallel=parallel, new_id=new_id) if tools else None
        )
        self._end: End = "stop"

    def push(self, text: str) -> list[OutputEvent]:
        """More text of the model."""
        if self._whole is not None:
            return self._whole.push(text)
        events: list[OutputEvent] = (
            [Text(text)] if self._thoughts is None else self._thoughts.push(text)
        )
        return self._through(events)

    def flush(self, end: End) -> list[OutputEvent]:
        """The end of the text; `length` if a limit cut it."""
        self._end = end
        if self._whole is not None:
            return self._whole.flush(end)
        events = self._through([] if self._thoughts is None else self._thoughts.flush())
        return events + (self._calls.flush(end) if self._calls is not None else [])

    def _through(self, events: list[OutputEvent]) -> list[OutputEvent]:
        if self._calls is None:
            return [e for e in events if not isinstance(e, Text) or e.text]
        out: list[OutputEvent] = []
        for event in events:
            out += self._calls.push(event.text) if isinstance(event, Text) else [event]
        return out

    @property
    def complete(self) -> bool:
        """Whether generation may end: the one call allowed is there."""
        reader = self._whole or self._calls
        return reader is not None and reader.complete

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for how the answer ended."""
        if self._end == "length":
            return "length"
        reader = self._whole or self._calls
        return "tool_calls" if reader is not None and reader.calls else "stop"
