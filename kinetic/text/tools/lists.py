"""Dialects whose calls are a list: LFM2, Mistral, Granite 3, and Llama 3's bare answers."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

from kinetic.text.held_text import first_marker
from kinetic.text.tools.call_grammar import CallGrammar, json_call
from kinetic.text.tools.dialect import Call, Dialect, End, Region, arrived
from kinetic.text.tools.json_calls import (
    NotJson,
    arguments_text,
    inside_string,
    read_call,
    read_calls,
    read_value,
    skip_space,
)
from kinetic.text.tools.python_calls import read_python_calls
from kinetic.text.tools.tool import Tool


class Lfm2(Dialect):
    """`<|tool_call_start|>[f(a='x')]<|tool_call_end|>`, or the same list as JSON."""

    name = "lfm2"
    openers = ("<|tool_call_start|>",)
    markers = ("<|tool_call_start|>", "<|tool_call_end|>")

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """The list up to the first end marker that is not inside a string."""
        opener, closer = self.markers
        if end is None and not arrived(text, closer, seen):
            return None
        at = text.find(closer)
        while at >= 0:
            body = text[len(opener) : at]
            if not inside_string(body, "\"'"):
                return Region(at + len(closer), _listed(body, tools))
            at = text.find(closer, at + 1)
        if end is None:
            return None
        return Region(len(text), _listed(text[len(opener) :], tools) if end == "stop" else ())

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """A list of Python calls; of JSON objects where a name is none in Python."""
        opener, closer = (grammar.marker(m) for m in self.markers)
        names = [n for t in tools for n in (*t.name.split("."), *t.properties)]
        in_python = all(n.isidentifier() and not keyword.iskeyword(n) for n in names)
        write = python_call if in_python else _json_call
        call = grammar.any_of([write(grammar, t) for t in tools])
        listed = grammar.some(call, '", "', parallel=parallel)
        return f'{opener} "[" {listed} "]" {closer}'


class Mistral(Dialect):
    """`[TOOL_CALLS][{...}]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, to the end."""

    name = "mistral"
    openers = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    def __init__(self, template: str = "") -> None:
        self._apart, self._with_id = "[ARGS]" in template, "[CALL_ID]" in template

    @classmethod
    def of(cls, template: str) -> Mistral:
        """With names and arguments apart if the template has them so."""
        return cls(template)

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """All calls, once the answer is over: no marker closes them."""
        if end is None:
            return None
        calls: tuple[Call, ...] = ()
        at = 0
        try:
            while text.startswith(self.openers[0], at):
                more, at = self._one(text, at + len(self.openers[0]))
                calls += more
                at = skip_space(text, at)
        except NotJson:
            return Region(len(text))
        return Region(at, calls)

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """A list of objects, or name and arguments after a marker each."""
        opener, identity, arguments = (grammar.marker(m) for m in self.markers)
        if not self._apart:
            call = grammar.any_of([_json_call(grammar, t) for t in tools])
            listed = grammar.some(call, '", "', parallel=parallel)
            return f'{opener} "[" {listed} "]"'
        middle = arguments
        if self._with_id:
            middle = grammar.rule(f"({identity} /[a-zA-Z0-9]{{9}}/)? {arguments}")
        calls = [f"{grammar.literal(t.name)} {middle} {grammar.arguments(t)}" for t in tools]
        return grammar.some(f"{opener} {grammar.any_of(calls)}", '""', parallel=parallel)

    def _one(self, text: str, at: int) -> tuple[tuple[Call, ...], int]:
        at = skip_space(text, at)
        if text[at : at + 1] in ("[", "{") and not text.startswith(self.markers, at):
            return read_calls(text, at)
        arguments = text.find("[ARGS]", at)
        if arguments < 0:
            raise NotJson("no arguments")
        name = text[at:arguments].split("[CALL_ID]")[0].strip()
        value, spelled, end = read_value(text, arguments + len("[ARGS]"))
        if not name:
            raise NotJson("no name")
        return (Call(name, arguments_text(value, spelled)),), end


class Granite3(Dialect):
    """`<|tool_call|>[{...}, ...]`, to the end."""

    name = "granite3"
    openers = ("<|tool_call|>",)
    markers = openers

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """All calls, once the answer is over."""
        if end is None:
            return None
        try:
            calls, at = read_calls(text, len(self.openers[0]))
        except NotJson:
            return Region(len(text))
        return Region(at, calls)

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """A list of objects."""
        call = grammar.any_of([_json_call(grammar, t) for t in tools])
        listed = grammar.some(call, '", "', parallel=parallel)
        return f'{grammar.marker(self.openers[0])} "[" {listed} "]"'


class BareCalls(Dialect):
    """Llama 3: the whole answer is `{"name": ..., "parameters": ...}` or `[f(a=1)]`.

    Only the name of a tool on offer makes a call of it: other JSON, a list or a link is text.
    """

    name = "llama3"
    openers = ("<|python_tag|>",)
    markers = openers

    def find(self, text: str, tools: Sequence[Tool], at_start: bool) -> tuple[int, bool]:
        """A call can only be the beginning of an answer."""
        if not at_start:
            return len(text), False
        start = skip_space(text, 0)
        heads = [*self.openers, '{"type":"function"']
        heads += [f'{{"name":"{t.name}"' for t in tools] + [f"[{t.name}(" for t in tools]
        squeezed = "".join(text[start:].split())
        found = first_marker(squeezed, heads)
        if found is not None and found[0] == 0:
            return start, True
        if any(head.startswith(squeezed) for head in heads):
            return start, False
        return len(text), False

    def read(self, text: str, tools: Sequence[Tool], seen: int, end: End | None) -> Region | None:
        """The calls, once the answer is over."""
        if end is None:
            return None
        opener = self.openers[0]
        at = skip_space(text, len(opener) if text.startswith(opener) else 0)
        calls: tuple[Call, ...] = ()
        try:
            if text[at : at + 1] != "{":
                calls, at = read_python_calls(text[at:], tools), len(text)
            while text[at : at + 1] == "{":
                call, at = read_call(text, at)
                calls += (call,)
                after = skip_space(text, at)
                if text[after : after + 1] in (";", ","):
                    after = skip_space(text, after + 1)
                at = after if text[after : after + 1] == "{" else at
        except NotJson:
            return Region(len(text))
        known = {t.name for t in tools}
        return Region(at, calls) if all(c.name in known for c in calls) else Region(len(text))

    def write(self, grammar: CallGrammar, tools: Sequence[Tool], parallel: bool) -> str:
        """One object: these models write no more at a time."""
        return grammar.any_of([json_call(grammar, t, "parameters") for t in tools])

    def offer(self, grammar: CallGrammar, tools: Sequence[Tool]) -> str:
        """A call, or an answer that does not begin as one."""
        text = grammar.terminal(r"/[ \t\r\n]*[^ \t\r\n{\[][\s\S]*/")
        return f"{text} | {self.write(grammar, tools, False)}"


def _json_call(grammar: CallGrammar, tool: Tool) -> str:
    return json_call(grammar, tool, "arguments")


def python_call(grammar: CallGrammar, tool: Tool) -> str:
    """`f(a="x", b=1)`; JSON's values are Python's, once `true` and the like are."""
    parts = [
        (grammar.rule(f"{grammar.literal(f'{n}=')} {grammar.parameter(tool, n)}"), needed)
        for n in tool.properties
        for needed in (n in tool.required,)
    ]
    return f'{grammar.literal(f"{tool.name}(")} {grammar.fields(parts, ", ")} ")"'


def _listed(body: str, tools: Sequence[Tool]) -> tuple[Call, ...]:
    try:
        calls, end = read_calls(body)
        if not body[end:].strip():
            return calls
    except NotJson:
        pass
    try:
        return read_python_calls(body, tools)
    except NotJson:
        return ()
