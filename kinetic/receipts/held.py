"""What an answer was held to, as a receipt records it and as it is made again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kinetic.errors import ModelFileError, UsageError
from kinetic.receipts.canonical import Json
from kinetic.text.reasoning import ReasoningStyle

if TYPE_CHECKING:
    from kinetic.api import Model
    from kinetic.runtime.sampling.constraint import Constraint


_CALLS = {"tools", "tool_choice", "parallel", "template"}


@dataclass(frozen=True)
class Held:
    """A grammar, the JSON text of a schema, or that of forced calls (`tools`, `tool_choice`,
    `parallel`, `template`).

    With a style it is after the thinking, which the prompt has begun if `is_open`.
    """

    kind: str
    text: str
    style: ReasoningStyle | None = None
    is_open: bool = False

    def record(self) -> Json:
        """The receipt's field `sampling.constraint`."""
        style = self.style
        reasoning: Json = None
        if style is not None:
            reasoning = {
                "opener": style.opener,
                "closer": style.closer,
                "turn": style.turn,
                "answer": style.answer,
                "open": self.is_open,
            }
        return {"kind": self.kind, "text": self.text, "reasoning": reasoning}

    @classmethod
    def of(cls, record: Json) -> Held | None:
        """What a checked field says."""
        if record is None:
            return None
        fields = cast(dict[str, Json], record)
        kind, text = cast(str, fields["kind"]), cast(str, fields["text"])
        if fields["reasoning"] is None:
            return cls(kind, text)
        said = cast(dict[str, str], fields["reasoning"])
        style = ReasoningStyle(
            said["opener"], said["closer"], turn=said["turn"], answer=said["answer"]
        )
        return cls(kind, text, style, bool(said["open"]))

    def constraint(self, model: Model) -> Constraint:
        """The mask of every step, from its beginning.

        *Raises*: ModelFileError for what no Kinetic can have recorded; UnsupportedError.
        """
        from kinetic.text.grammar import AfterReasoning, GrammarVocabulary, gbnf, json_schema

        vocabulary = GrammarVocabulary(model.tokenizer)
        try:
            if self.kind == "grammar":
                inner = gbnf(vocabulary, self.text)
            elif self.kind == "json_schema":
                inner = json_schema(vocabulary, json.loads(self.text))
            else:
                inner = _calls(vocabulary, json.loads(self.text))
        except (UsageError, ValueError, RecursionError) as error:
            raise ModelFileError(
                f"the receipt's field sampling.constraint cannot be made again: {error}"
            ) from None
        if self.style is None:
            return inner
        return AfterReasoning(inner, vocabulary, self.style, self.is_open)


def _calls(vocabulary, asked):  # type: ignore[no-untyped-def]
    from kinetic.text.output import ChatFormat
    from kinetic.text.tools import choose, forced_calls, offered_calls, tools_of

    if not isinstance(asked, dict) or set(asked) != _CALLS:
        raise UsageError("it holds no tools and choice")
    if not isinstance(asked["tools"], list) or not isinstance(asked["template"], str):
        raise UsageError("its tools are no list or its template is no text")
    chosen = choose(tools_of(asked["tools"]), asked["tool_choice"])
    dialect = ChatFormat.of(asked["template"]).dialect
    if not chosen.forced:
        return offered_calls(vocabulary, dialect, chosen.tools)
    return forced_calls(vocabulary, dialect, chosen.tools, parallel=bool(asked["parallel"]))
