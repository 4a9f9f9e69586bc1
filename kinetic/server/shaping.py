"""What holds an answer to a form and what reads it: grammars, tool dialects, reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinetic.server.errors import ApiError
from kinetic.server.prompts import Prompt
from kinetic.server.service import Service


@dataclass(frozen=True)
class Shape:
    """What a request says of its answer's form."""

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_calls: bool | None = None
    schema: Mapping[str, Any] | bool | None = None
    json_object: bool = False
    grammar: str | None = None


def response_format_shape(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`Shape`'s fields of an OpenAI `response_format`.

    Raises: ApiError for one that is not known.
    """
    if given is None:
        return {}
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
            raise ApiError(
                400,
                "response_format.json_schema.schema must be a JSON Schema object",
                "response_format.json_schema.schema",
            )
        return {"schema": schema}
    raise ApiError(
        400,
        f"response_format.type {kind!r} is not known; use text, json_object or json_schema",
        "response_format.type",
    )


def shaped(service: Service, shape: Shape, prompt: Prompt | None) -> dict[str, Any]:
    """`Ask`'s parser and constraint for a shape.

    Raises: ApiError for what cannot be held to.
    """
    if shape.schema is not None or shape.json_object or shape.grammar:
        raise ApiError(400, "constrained output is not in this build", code="not_supported")
    return {}
