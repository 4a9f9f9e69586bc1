"""Writes the grammar of calls: what a dialect asks for, in the grammar library's notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from kinetic.errors import UsageError
from kinetic.text.grammar.schema import prepared
from kinetic.text.tools.tool import Tool

_SPACE = r"[ \n\t]{0,20}"
_DEFINITIONS = ("$defs", "definitions")
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")
_NOTES = frozenset(("type", "title", "description", "default", "examples"))
_TEXTLIKE = frozenset(("string", "null", "boolean", "integer", "number"))


class CallGrammar:
    """Rules of one grammar. Every method returns what stands for its text in another rule.

    `token_of` gives the id of a marker that the vocabulary has as a control token; `held` says
    whether the library can enforce a schema.
    """

    def __init__(
        self, token_of: Callable[[str], int | None], held: Callable[[object], bool]
    ) -> None:
        self._token_of, self._held = token_of, held
        self.written = ""
        self._lines: list[str] = []
        self._known: dict[str, str] = {}

    def text(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def rule(self, body: str, flags: str = "") -> str:
        """A rule of its own; the same body is written once."""
        if (key := flags + body) not in self._known:
            self._known[key] = f"r{len(self._known)}"
            self._lines.append(f"{self._known[key]}{flags}: {body}")
        return self._known[key]

    def refuse(self, tool: Tool, name: str) -> None:
        """Nothing, unless the tool is strict.

        *Raises*: UsageError.
        """
        if tool.strict:
            raise UsageError(
                f"the parameter {name} of the strict tool {tool.name} cannot be held to its "
                "schema in this model's way of writing calls; leave strict out, or its limits"
            )

    def define(self, name: str, body: str) -> None:
        """A rule by its name, once."""
        if name not in self._known:
            self._known[name] = name
            self._lines.append(f"{name}: {body}")

    def literal(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def marker(self, text: str) -> str:
        """A marker, as its control token where there is one; nothing if it has been written."""
        if text == self.written:
            return '""'
        token = self._token_of(text)
        return self.literal(text) if token is None else f"<[{token}]>"

    def until(self, end: str) -> str:
        """Any text up to the first `end`, and `end`."""
        if self._token_of(end) is not None:
            return self.rule(f"(/[\\s\\S]+/)? {self.marker(end)}")
        return self.rule(f"/[\\s\\S]*{self._spelled(end)}/", "[lazy]")

    def without(self, markers: Sequence[str]) -> str:
        """Text, perhaps none, in which no marker stands."""
        named = [self._spelled(m) for m in markers if self._token_of(m) is None]
        text = r"/[\s\S]+/"
        if named:
            text += rf" & ~/[\s\S]*({'|'.join(named)})[\s\S]*/"
        return self.terminal(text) + "?"

    def up_to(self, opener: str, markers: Sequence[str]) -> str:
        """Text in which no marker stands, then an opener, which `marker` leaves out from now on."""
        if self._token_of(opener) is not None:
            lead = f"{self.without(markers)} {self.marker(opener)}"
        else:
            last, named = self._spelled(opener), "|".join(map(self._spelled, markers))
            lead = self.terminal(
                rf"/[\s\S]*{last}/ & ~/[\s\S]*({named})[\s\S]+/"
                + "".join(
                    rf" & ~/[\s\S]*{self._spelled(m)}[\s\S]*/" for m in markers if m != opener
                )
            )
        self.written = opener
        return lead

    def terminal(self, body: str) -> str:
        """A terminal of its own."""
        if body not in self._known:
            self._known[body] = f"T{len(self._known)}"
            self._lines.append(f"{self._known[body]}: {body}")
        return self._known[body]

    @staticmethod
    def _spelled(text: str) -> str:
        return "".join(f"\\x{{{ord(c):x}}}" for c in text)

    def json(self, schema: object) -> str:
        """JSON that matches a schema which is known to be held."""
        ready = prepared(schema)
        full = {**(ready if isinstance(ready, dict) else {})}
        full["x-guidance"] = {"whitespace_pattern": _SPACE}
        return self.rule(f"%json {json.dumps(full)}")

    def some(self, item: str, between: str, *, parallel: bool) -> str:
        """One, or if `parallel` any number more."""
        return f"{item} ({between} {item})*" if parallel else item

    def any_of(self, choices: Sequence[str]) -> str:
        """One of these."""
        return self.rule(" | ".join(choices))

    def fields(self, parts: Sequence[tuple[str, bool]], comma: str) -> str:
        """Parts in their order with commas between; those marked False may be left out."""
        after, first = '""', '""'
        for part, needed in reversed(parts):
            later = self.rule(f"{self.literal(comma)} {part} {after}")
            sooner = self.rule(f"{part} {after}")
            if needed:
                after, first = later, sooner
            else:
                after, first = self.rule(f"{later} | {after}"), self.rule(f"{sooner} | {first}")
        return first

    def arguments(self, tool: Tool) -> str:
        """A JSON object of a tool's arguments.

        *Raises*: UsageError for a strict tool whose schema cannot be held.
        """
        schema = arguments_schema(tool)
        if not self._held(schema):
            if tool.strict:
                prepared(schema)
                raise UsageError(f"the parameters of the strict tool {tool.name} cannot be held")
            schema = {"type": "object"}
        return self.json(schema)

    def parameter(self, tool: Tool, name: str) -> str:
        """A JSON value of one parameter.

        *Raises*: UsageError as `arguments`.
        """
        schema = parameter_schema(tool, name)
        if not self._held(schema):
            self.refuse(tool, name)
            schema = True
        return self.json(schema)

    def raw(self, tool: Tool, name: str, wrap: Callable[[str], str], end: str) -> str | None:
        """A text parameter written without quotes up to `end`; None if it is to be JSON.

        `wrap` puts `end` after a word of an enumeration. *Raises*: UsageError as `arguments`.
        """
        kinds, schema = tool.kinds(name), tool.properties.get(name)
        if kinds and "string" not in kinds:
            return None
        schema = schema if isinstance(schema, Mapping) else {}
        words = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(words, list) and words and all(isinstance(w, str) for w in words):
            return self.any_of([wrap(self.literal(w)) for w in words])
        if not (set(schema) <= _NOTES and kinds <= _TEXTLIKE):
            self.refuse(tool, name)
        return self.until(end)


def json_call(grammar: CallGrammar, tool: Tool, key: str) -> str:
    """A call as one JSON object, its arguments under `key`."""
    head = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
    return grammar.rule(f'{grammar.literal(head)} {grammar.arguments(tool)} "}}"')


def arguments_schema(tool: Tool) -> dict[str, object]:
    """A tool's parameters, of which none comes uncalled for: that keeps small models on track."""
    schema: dict[str, object] = dict(tool.parameters)
    schema.setdefault("type", "object")
    if schema["type"] != "object":
        raise UsageError(f'the parameters of the tool {tool.name} must be of type "object"')
    if "properties" in schema and not any(key in schema for key in _COMBINED):
        schema["additionalProperties"] = False
    return schema


def parameter_schema(tool: Tool, name: str) -> object:
    """The schema of one parameter, with the definitions it may refer to."""
    schema = tool.properties.get(name)
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else True
    root = {key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}
    return {**root, **schema}
