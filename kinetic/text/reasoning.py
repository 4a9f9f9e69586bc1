"""Keeps a model's thinking apart from its answer.

style = reasoning_style(template_source)            # None: the model does not think
kwargs = thinking_kwargs(style, think)              # for ChatTemplate.render
splitter = ReasoningSplitter(style, is_open=opened_by(style, prompt_text))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinetic.text.events import OutputEvent, Reasoning, Text
from kinetic.text.held_text import first_marker, partial_marker
from kinetic.text.vocab import END_TEXTS


@dataclass(frozen=True)
class ReasoningStyle:
    """The markers around the thinking, and the template's variables that turn it on or off.

    `turn` stands between the thinking and what follows it, `answer` before an answer in text.
    """

    opener: str
    closer: str
    switches: tuple[str, ...] = ()
    takes_effort: bool = False
    turn: str = ""
    answer: str = ""


HARMONY = ReasoningStyle(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    takes_effort=True,
    turn="<|start|>assistant",
    answer="<|channel|>final<|message|>",
)

_MARKERS = (
    ("<|channel>", "<|channel>thought\n", "<channel|>"),
    ("[THINK]", "[THINK]", "[/THINK]"),
    ("</think>", "<think>", "</think>"),
)


def reasoning_style(template: str) -> ReasoningStyle | None:
    """How a template's model marks its thinking; None where it shows none."""
    if "<|channel|>" in template:
        return HARMONY
    for sign, opener, closer in _MARKERS:
        if sign in template:
            switches: tuple[str, ...] = (
                ("enable_thinking",) if "enable_thinking" in template else ()
            )
            if "thinking" in template.replace("enable_thinking", "").replace("_thinking", ""):
                switches += ("thinking",)
            return ReasoningStyle(opener, closer, switches, "reasoning_effort" in template)
    return None


def thinking_kwargs(style: ReasoningStyle | None, think: bool | str | None) -> dict[str, object]:
    """Template variables for a wish to think: None leaves the template's own default.

    A level ("low", "medium", "high") thinks; "none" does not.
    """
    if style is None or think is None:
        return {}
    on = think if isinstance(think, bool) else think not in ("none", "off")
    kwargs: dict[str, object] = dict.fromkeys(style.switches, on)
    if style.takes_effort and isinstance(think, str) and on:
        kwargs["reasoning_effort"] = think
    return kwargs


def settled(style: ReasoningStyle | None, think: bool | None, is_open: bool) -> tuple[str, bool]:
    """What a prompt needs at its end for a wish to think, and whether a block is open then.

    A template may have no switch: then a block that it opened is closed, or an empty one added.
    """
    if style is None or think is not False:
        return "", is_open
    if is_open:
        return f"\n{style.closer}\n\n{style.turn}{style.answer}", False
    if style.switches:
        return "", False
    return style.answer or f"{style.opener.rstrip()}\n\n{style.closer}\n\n", False


def opened_by(
    style: ReasoningStyle | None, prompt: str, user_spans: Sequence[tuple[int, int]] = ()
) -> bool:
    """Whether a prompt ends inside a block of thinking; `user_spans` cannot open one."""
    if style is None:
        return False
    opener = style.opener.rstrip("\n")
    at = prompt.rfind(opener)
    while at >= 0 and any(a < at + len(opener) and at < b for a, b in user_spans):
        at = prompt.rfind(opener, 0, at)
    tail = prompt[at + len(opener) :]
    return at >= 0 and style.closer not in tail and not any(end in tail for end in END_TEXTS)


class ReasoningSplitter:
    """Text in, thinking and text out; line breaks at the seams belong to neither."""

    def __init__(self, style: ReasoningStyle, *, is_open: bool = False) -> None:
        self._style, self._buffer = style, ""
        self._state = "inside" if is_open else "start"
        self._bare = True  # nothing but line breaks since the last seam

    @property
    def thinking(self) -> bool:
        """Whether the stream is inside a block of thinking."""
        return self._state == "inside"

    def push(self, text: str) -> list[OutputEvent]:
        """More text of the model."""
        self._buffer += text
        return self._scan(False)

    def flush(self) -> list[OutputEvent]:
        """The end of the text: what was held back."""
        return self._scan(True)

    def _scan(self, final: bool) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        if self._state == "start":
            opener = self._style.opener
            head = self._buffer.lstrip()
            if head.startswith(opener):
                self._buffer, self._state = head[len(opener) :], "inside"
            elif final or not opener.startswith(head):
                self._state, self._bare = "text", False
        if self._state == "inside":
            closer = self._style.closer
            found = first_marker(self._buffer, (closer,))
            if found is not None:
                self._think(self._buffer[: found[0]].rstrip("\n"), events)
                self._buffer = self._buffer[found[0] + len(closer) :]
                self._state, self._bare = "text", True
            else:
                keep = 0 if final else partial_marker(self._buffer, (closer,))
                ready = self._buffer[: len(self._buffer) - keep]
                if not final:
                    ready = ready.rstrip("\n")
                self._think(ready, events)
                self._buffer = self._buffer[len(ready) :]
        if self._state == "text":
            text = self._buffer.lstrip("\n") if self._bare else self._buffer
            self._buffer = ""
            if text:
                self._bare = False
                events.append(Text(text))
        return events

    def _think(self, text: str, events: list[OutputEvent]) -> None:
        if self._bare:
            text = text.lstrip("\n")
        if text:
            self._bare = False
            events.append(Reasoning(text))
