"""The functions a request offers, and which of them must be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinetic.errors import UsageError


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    strict: bool = False

    @property
    def properties(self) -> Mapping[str, object]:
        """The schema of each parameter."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}

    def kinds(self, name: str) -> frozenset[str]:
        """The types that a parameter may have; none where its schema does not tell."""
        return frozenset(_kinds(self.properties.get(name), self.parameters, 8))

    @property
    def required(self) -> frozenset[str]:
        """The parameters that every call must give."""
        found = self.parameters.get("required")
        if not isinstance(found, Sequence) or isinstance(found, str):
            return frozenset()
        return frozenset(name for name in found if isinstance(name, str))


_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def kind_of(value: object) -> str:
    """JSON Schema's word for a value's type."""
    if value is None:
        return "null"
    return _NAMES.get(type(value), "object" if isinstance(value, Mapping) else "array")


def _kinds(schema: object, root: Mapping[str, object], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    types = schema.get("type")
    if types is not None:
        return {types} if isinstance(types, str) else {t for t in types if isinstance(t, str)}
    if "const" in schema:
        return {kind_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {kind_of(value) for value in schema["enum"]}
    reference = schema.get("$ref")
    for place in ("$defs", "definitions"):
        found, head = root.get(place), f"#/{place}/"
        if isinstance(reference, str) and reference.startswith(head) and isinstance(found, Mapping):
            return _kinds(found.get(reference.removeprefix(head)), root, depth - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            parts = [_kinds(part, root, depth - 1) for part in schema[key]]
            return set().union(*parts) if all(parts) else set()
    return set()


def tools_of(definitions: Sequence[Mapping[str, object]]) -> tuple[Tool, ...]:
    """The tools of a request in OpenAI's form, `{"type": "function", "function": {...}}`.

    *Raises*: UsageError for one that is no function, has no name, or has another's name.
    """
    tools: list[Tool] = []
    for index, definition in enumerate(definitions):
        where = f"tools[{index}]"
        function = definition.get("function", definition)
        if definition.get("type", "function") != "function" or not isinstance(function, Mapping):
            raise UsageError(f'{where} must be {{"type": "function", "function": {{...}}}}')
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise UsageError(f"{where}.function.name must be a text that is not empty")
        if any(t.name == name for t in tools):
            raise UsageError(f"{where}.function.name {name!r} is used twice; rename one of them")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise UsageError(f"{where}.function.parameters must be a JSON Schema object")
        description = function.get("description")
        tools.append(
            Tool(
                name,
                description if isinstance(description, str) else "",
                parameters or {},
                function.get("strict") is True,
            )
        )
    return tuple(tools)


@dataclass(frozen=True)
class ToolChoice:
    """The tools to show the model, and whether it must call one of them."""

    tools: tuple[Tool, ...]
    forced: bool = False


def choose(tools: Sequence[Tool], choice: object = None) -> ToolChoice:
    """What `tool_choice` leaves of the tools: auto (or None), none, required, any, or one name.

    *Raises*: UsageError for an unknown choice or name, or a forced call without tools.
    """
    offered = tuple(tools)
    if choice is None or choice == "auto":
        return ToolChoice(offered)
    if choice == "none":
        return ToolChoice(())
    if choice in ("required", "any"):
        if not offered:
            raise UsageError(
                f"tool_choice is {choice!r} but the request offers no tools; give some"
            )
        return ToolChoice(offered, forced=True)
    name = _chosen_name(choice)
    if name is None:
        raise UsageError(
            'tool_choice must be "auto", "none", "required" or '
            '{"type": "function", "function": {"name": ...}}'
        )
    named = tuple(t for t in offered if t.name == name)
    if not named:
        raise UsageError(
            f"tool_choice names {name!r}, which is not among the request's tools; name one of those"
        )
    return ToolChoice(named, forced=True)


def _chosen_name(choice: object) -> str | None:
    if not isinstance(choice, Mapping):
        return None
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
