"""A forced call is written in the template's own format, holds to the schema and reads back."""

from __future__ import annotations

import json
import random
import types

import numpy as np
import pytest
from support.bytes_vocabulary import END, VOCABULARY, follows

from kinetic.errors import UsageError
from kinetic.text.events import Text, ToolArguments, ToolCallStart
from kinetic.text.output import ChatFormat, OutputParser
from kinetic.text.tools import Tool, dialect_of, forced_calls, offered_calls

pytest.importorskip("llguidance")

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)
HERMES = "<tool_call> <tool_call>"
XML = "<tool_call> <function="
SHAPES = {
    "hermes": HERMES,
    "qwen-xml": XML,
    "lfm2": "<|tool_call_start|>",
    "mistral": "[TOOL_CALLS]",
    "mistral-args": "[TOOL_CALLS] [ARGS]",
    "mistral-ids": "[TOOL_CALLS] [CALL_ID] [ARGS]",
    "granite3": "<|tool_call|>",
    "llama3": "",
    "glm": "<arg_key> <tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "deepseek-block": "<｜tool▁calls▁begin｜> ```json",
    "gemma4": "<|tool_call>",
    "harmony": "<|channel|> <|constrain|>",
}
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'
DEEP = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
DEEP_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
# What each is to accept, and what it is to refuse.
WRITTEN = {
    "hermes": (f"<tool_call>\n{OSLO}\n</tool_call>", f"<tool_call>\n{OSLO.replace('3', '15')}"),
    "qwen-xml": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\nlo < & x\n</parameter>\n"
        "<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=unit>\nK",
    ),
    "lfm2": (
        '<|tool_call_start|>[get_weather(city="Oslo", unit="F")]<|tool_call_end|>',
        '<|tool_call_start|>[get_weather(unit="F"',
    ),
    "mistral": (f"[TOOL_CALLS][{OSLO}]", OSLO),
    "mistral-args": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "x"}',
        "[TOOL_CALLS]get_weather[ARGS]{}",
    ),
    "mistral-ids": ("[TOOL_CALLS]now[CALL_ID]abcdefgh1[ARGS]{}", "[TOOL_CALLS]now[CALL_ID]a["),
    "granite3": (f"<|tool_call|>[{OSLO}]", f"<|tool_call|>{OSLO}"),
    "glm": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>New\n<York></arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>days",
    ),
    "deepseek": (
        f'{DEEP}get_weather<｜tool▁sep｜>{{"city": "x"}}{DEEP_END}',
        f"{DEEP}other<",
    ),
    "deepseek-block": (
        f'{DEEP}function<｜tool▁sep｜>get_weather\n```json\n{{"city": "x"}}\n```{DEEP_END}',
        f'{DEEP}function<｜tool▁sep｜>get_weather\n```json\n{{"city": 1}}',
    ),
    "gemma4": (
        '<|tool_call>call:get_weather{city:<|"|>O, {s}<|"|>,days:3}<tool_call|>',
        "<|tool_call>call:get_weather{days:3}",
    ),
    "harmony": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "x"}',
        "<|channel|>final<|message|>",
    ),
    "llama3": (OSLO.replace("arguments", "parameters"), '{"name": "other"'),
}


def held(shape: str, tools=TOOLS, **options):
    return forced_calls(VOCABULARY, dialect_of(SHAPES[shape]), tools, **options)


def read(shape: str, text: str, tools=TOOLS):
    parser = OutputParser(ChatFormat.of(SHAPES[shape]), tools=tools)
    events = parser.push(text) + parser.flush("stop")
    assert not any(isinstance(e, Text) for e in events), (text, events)
    names = [e.name for e in events if isinstance(e, ToolCallStart)]
    return [
        (
            n,
            json.loads(
                "".join(e.delta for e in events if isinstance(e, ToolArguments) and e.index == i)
            ),
        )
        for i, n in enumerate(names)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_template_s_own_format_is_held(shape: str) -> None:
    right, wrong = WRITTEN[shape]
    assert follows(held(shape), right)
    assert not follows(held(shape), wrong + " ")
    for text in ("", "Hello", right + " and more", right[:-1]):
        assert not follows(held(shape), text), text
    assert read(shape, right)


def written_by_chance(constraint, seed: int, limit: int = 4000) -> str:
    """A random answer; a quote or a bracket is likelier than a letter, so that it ends."""
    rng, out = random.Random(seed), bytearray()
    closers = [ord(c) for c in '"}])<>/\n']
    for _ in range(limit):
        allowed = np.flatnonzero(constraint.mask()[:END])
        if constraint.mask()[END] and (len(allowed) == 0 or rng.random() < 0.5):
            return out.decode()
        ends = [c for c in closers if constraint.mask()[c]]
        printable = [c for c in allowed if 32 <= c < 127] or list(allowed)
        token = rng.choice(ends) if ends and rng.random() < 0.6 else int(rng.choice(printable))
        constraint.accept(token)
        out.append(token)
    return ""


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_is_written_reads_back_and_fits(shape: str) -> None:
    done = 0
    for seed in range(12):
        text = written_by_chance(held(shape, parallel=seed % 2 == 0), seed)
        calls = read(shape, text) if text else []
        done += bool(calls)
        for name, arguments in calls:
            assert name in ("get_weather", "now")
            assert set(arguments) <= set(WEATHER.properties if name == "get_weather" else ())
            if name == "get_weather":
                assert isinstance(arguments["city"], str)
                assert arguments.get("unit", "C") in ("C", "F")
                days = arguments.get("days", 1)
                assert isinstance(days, int) and 1 <= days <= 14
    assert done >= 3


def test_parallel_calls() -> None:
    two = f"<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{OSLO}\n</tool_call>"
    assert follows(held("hermes"), two) and not follows(held("hermes", parallel=False), two)
    assert len(read("hermes", two)) == 2


PATTERN = {"type": "object", "properties": {"d": {"type": "string", "pattern": "^[0-9]+$"}}}
NEVER = {"type": "object", "properties": {"d": {"not": {"type": "string"}}}}


def test_what_cannot_be_held_is_refused_for_strict_tools_alone() -> None:
    for shape, parameters in [("hermes", NEVER), ("qwen-xml", PATTERN), ("lfm2", NEVER)]:
        assert held(shape, (Tool("f", parameters=parameters),))
        with pytest.raises(UsageError, match=r"strict|not"):
            held(shape, (Tool("f", parameters=parameters, strict=True),))
    assert held("hermes", (Tool("f", parameters=PATTERN, strict=True),))
    with pytest.raises(UsageError, match="object"):
        held("hermes", (Tool("f", parameters={"type": "array"}),))


def test_references_resolve_in_every_format() -> None:
    node = {"type": "object", "properties": {"kid": {"$ref": "#/$defs/n"}}}
    tool = Tool("f", parameters={"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}})
    call = '{"name": "f", "arguments": {"n": {"kid": {"kid": {}}}}}'
    assert follows(held("hermes", (tool,)), f"<tool_call>\n{call}\n</tool_call>")
    assert not follows(held("hermes", (tool,)), f"<tool_call>\n{call.replace('{}', '3')}")
    text = '<|tool_call_start|>[f(n={"kid": {}})]<|tool_call_end|>'
    assert follows(held("lfm2", (tool,)), text) and read("lfm2", text, (tool,))


def test_lfm2_writes_json_where_a_name_is_no_python_name() -> None:
    tool = Tool("get-weather", parameters=WEATHER.parameters)
    text = f"<|tool_call_start|>[{OSLO.replace('_', '-')}]<|tool_call_end|>"
    assert follows(held("lfm2", (tool,)), text)
    assert read("lfm2", text, (tool,))[0][0] == "get-weather"


def test_control_tokens_stand_for_markers() -> None:
    marker = types.SimpleNamespace(id=257, text="<tool_call>", control=True)
    tokenizer = types.SimpleNamespace(special_tokens=(marker,))
    vocabulary = types.SimpleNamespace(
        tokenizer=tokenizer, get=VOCABULARY.get, warm=VOCABULARY.warm,
        ends=VOCABULARY.ends, n_tokens=VOCABULARY.n_tokens,
    )  # fmt: skip
    constraint = forced_calls(vocabulary, dialect_of(HERMES), TOOLS)  # type: ignore[arg-type]
    assert list(np.flatnonzero(constraint.mask())) == [257]


def test_values_of_a_union_read_as_their_type() -> None:
    schema = {"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    tool = Tool("f", parameters={**schema, "required": ["n"]})
    text = "<tool_call>\n<function=f>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"
    for value in (5, None):
        written = text.format(json.dumps(value))
        assert follows(held("qwen-xml", (tool,)), written)
        assert read("qwen-xml", written, (tool,)) == [("f", {"n": value})]
    assert not follows(held("qwen-xml", (tool,)), text.format("x"))


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_on_offer_are_held_and_text_is_free(shape: str) -> None:
    def offered():
        return offered_calls(VOCABULARY, dialect_of(SHAPES[shape]), TOOLS)

    right, wrong = WRITTEN[shape]
    lead = "<|channel|>final<|message|>" if shape == "harmony" else ""
    assert follows(offered(), right)
    assert follows(offered(), lead + "Just words: 3 < 5 [1] {2}\n")
    if shape not in ("llama3", "harmony"):
        assert follows(offered(), "Let me look. " + right + "\nDone?" + right)
    if shape not in ("mistral", "granite3", "harmony"):
        # What is wrong as a call is wrong here too, once its marker has been written.
        assert not follows(offered(), wrong + " ")


def test_a_tag_without_its_frame_is_no_way_out() -> None:
    constraint = offered_calls(VOCABULARY, dialect_of(XML), TOOLS)
    assert not follows(constraint.clone(), "x <function=shell>")
    assert not follows(constraint.clone(), "x <function=a> <tool_call>")
    assert follows(constraint.clone(), "x <function and <tool_cal")
