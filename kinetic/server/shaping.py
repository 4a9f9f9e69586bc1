"""What holds an answer to a form and what reads it: grammars, tool dialects, reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic.errors import KineticError
from kinetic.receipts.held import Held
from kinetic.server.errors import ApiError, from_kinetic
from kinetic.server.prompts import Prompt
from kinetic.server.receipts import calls_text
from kinetic.server.service import Service
from kinetic.text.grammar import AfterReasoning, GrammarConstraint, gbnf, json_schema, json_value
from kinetic.text.output import OutputParser
from kinetic.text.tools import ToolChoice, choose, forced_calls, offered_calls, tools_of

_NO_TOOLS = ToolChoice(())


@dataclass(frozen=True)
class Shape:
    """What a request says of its answer's form. Only a chat's answer is told apart."""

    chat: bool = False
    choice: ToolChoice = _NO_TOOLS
    parallel_calls: bool | None = None
    reasoning: bool = True
    schema: Mapping[str, Any] | bool | None = None
    json_object: bool = False
    grammar: str | None = None
    tools: object = None
    """The request's tools and choice as they were sent, for its receipt."""
    tool_choice: object = None
    schema_field: str = "response_format"
    """What the request calls the form of its answer."""

    @property
    def several_calls(self) -> bool:
        """Whether more than one call may come; a forced one is alone unless more are asked for."""
        return bool(self.parallel_calls) if self.choice.forced else self.parallel_calls is not False


def choose_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: object
) -> tuple[list[Mapping[str, Any]], ToolChoice]:
    """The definitions to show the model, and what it may or must call.

    Raises: ApiError for tools or a choice that make no sense.
    """
    try:
        chosen = choose(tools_of(tools or ()), choice)
    except KineticError as error:
        raise from_kinetic(error) from None
    names = {tool.name for tool in chosen.tools}
    return [t for t in tools or () if t.get("function", t).get("name") in names], chosen


def response_format_shape(given: object, where: str = "response_format") -> dict[str, Any]:
    """`Shape`'s fields of an OpenAI `response_format`; `where` is what the request calls it.

    Raises: ApiError for one that is not known.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ApiError(400, f"{where} must be an object with a type", where)
    kind = given.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        schema = given.get("schema")
        return {"json_object": True} if schema is None else {"schema": schema}
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else given.get("schema")
        if not isinstance(schema, Mapping | bool):
            param = f"{where}.schema" if where == "text.format" else f"{where}.json_schema.schema"
            raise ApiError(400, f"{param} must be a JSON Schema object", param)
        return {"schema": schema}
    raise ApiError(
        400,
        f"{where}.type {str(kind)[:40]!r} is not known; use text, json_object or json_schema",
        f"{where}.type",
    )


def shaped(service: Service, shape: Shape, prompt: Prompt | None) -> dict[str, Any]:
    """`Ask`'s parser and constraint for a shape.

    Raises: ApiError for what cannot be held to.
    """
    out: dict[str, Any] = {}
    thinking = prompt is not None and prompt.thinking
    constraint: GrammarConstraint | AfterReasoning | None
    constraint = inner = _constraint(service, shape)
    format = service.chat_format
    if constraint is not None and inner is not None:
        if shape.chat and shape.reasoning and format.reasoning is not None:
            constraint = AfterReasoning(
                inner, service.vocabulary, format.reasoning, is_open=thinking
            )
        out["new_constraint"] = constraint.clone
        held = _held(service, shape)
        if isinstance(constraint, AfterReasoning):
            held = replace(held, style=format.reasoning, is_open=thinking)
        out["held"] = held
    if not shape.chat:
        return out

    def new_parser() -> OutputParser:
        return OutputParser(
            format,
            tools=shape.choice.tools,
            is_open=thinking,
            reasoning=shape.reasoning,
            parallel=shape.several_calls,
        )

    return {
        **out,
        "new_parser": new_parser,
        "shown": format.shown(service.model.tokenizer),
    }


def _held(service: Service, shape: Shape) -> Held:
    """What the answer is held to, as a receipt records it."""
    if shape.json_object:
        return Held("json_schema", "true")
    if shape.schema is not None:
        return Held("json_schema", json.dumps(shape.schema))
    if shape.grammar:
        return Held("grammar", shape.grammar)
    template = service.model.chat_template
    source = "" if template is None else template.source
    calls = calls_text(
        shape.tools, shape.tool_choice, parallel=shape.several_calls, template=source
    )
    return Held("calls", calls)


def _constraint(service: Service, shape: Shape) -> GrammarConstraint | None:
    """What the answer is held to; compiled here, so that what cannot be is refused at once."""
    wanted = {
        shape.schema_field: shape.schema is not None or shape.json_object,
        "grammar": bool(shape.grammar),
        "a forced tool call": shape.choice.forced,
    }
    named = [name for name, given in wanted.items() if given]
    strict = any(tool.strict for tool in shape.choice.tools)
    if not named and not strict:
        return None
    if len(named) > 1:
        raise ApiError(400, f"use one of {' and '.join(named)}, not both", named[0])
    try:
        if shape.json_object:
            return json_value(service.vocabulary)
        if shape.schema is not None:
            return json_schema(service.vocabulary, shape.schema)
        if shape.grammar:
            return gbnf(service.vocabulary, shape.grammar)
        dialect, tools = service.chat_format.dialect, shape.choice.tools
        if not shape.choice.forced:
            return offered_calls(service.vocabulary, dialect, tools)
        return forced_calls(service.vocabulary, dialect, tools, parallel=shape.several_calls)
    except KineticError as error:
        raise from_kinetic(error) from None
