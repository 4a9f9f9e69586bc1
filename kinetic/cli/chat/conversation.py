"""What was said so far, and the prompt that it makes through the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kinetic.text.chat_template import ChatTemplate
from kinetic.text.output import ChatFormat
from kinetic.text.reasoning import opened_by, settled, thinking_kwargs

_UNFINISHED = "\u2026\u2026"
"""Goes on from a word as nothing that is typed does."""


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens; `thinking` when it ends inside a block of thinking."""

    ids: list[int]
    thinking: bool = False


@dataclass
class Conversation:
    """Messages and the template they go through. `think` as in `thinking_kwargs`."""

    template: ChatTemplate
    system: str | None = None
    think: bool | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    turns: list[tuple[str, str]] = field(default_factory=list)
    """(what the person wrote, what the model answered)."""

    def __post_init__(self) -> None:
        self.format = ChatFormat.of(self.template.source)

    def clear(self) -> None:
        """Start over, with the same system prompt."""
        self.turns.clear()

    def add(self, message: str, answer: str) -> None:
        """Remember a turn."""
        self.turns.append((message, answer))

    def prompt(self, message: str) -> Prompt:
        """The prompt that asks for an answer to one more message.

        *Raises*: TemplateError where the template refuses the conversation.
        """
        style = self.format.reasoning
        kwargs: dict[str, Any] = {**thinking_kwargs(style, self.think), **self.variables}
        rendered = self.template.render(self.messages(message), **kwargs)
        is_open = opened_by(style, rendered.text, rendered.user_spans)
        more, thinking = settled(style, self.think, is_open)
        if more:
            start, text = len(rendered.text), rendered.text + more
            spans = (*rendered.model_spans, (start, len(text)))
            rendered = replace(rendered, text=text, model_spans=spans)
        return Prompt(self.template.encode(rendered), thinking)

    def prompt_so_far(self, message: str) -> list[int]:
        """The part of a prompt that stays, however its message is going to end."""
        certain = message[: len(message.rstrip())].rpartition(" ")[0]
        one, two = self.prompt(message).ids, self.prompt(certain + _UNFINISHED).ids
        same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
        return one[: min(len(one), len(two)) if same is None else same]

    def messages(self, message: str) -> list[dict[str, object]]:
        """All that is said, one more message included."""
        said: list[dict[str, object]] = []
        if self.system is not None:
            said.append({"role": "system", "content": self.system})
        for asked, answered in self.turns:
            said.append({"role": "user", "content": asked})
            said.append({"role": "assistant", "content": answered})
        return [*said, {"role": "user", "content": message}]
