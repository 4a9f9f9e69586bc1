"""An answer's events do not depend on how its text was cut, and say what the text says."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallStart
from kinetic.text.output import ChatFormat, OutputParser
from kinetic.text.reasoning import opened_by, reasoning_style, settled
from kinetic.text.tools import Tool

HERMES = "<tool_call> <think> </think> enable_thinking"
XML = "<tool_call> <function= <think> </think>"
GLM, DEEP, GEMMA = "<arg_key> <tool_call>", "<｜tool▁calls▁begin｜>", "<|tool_call>"
HARMONY = "<|channel|> <|constrain|>"
BROKEN_GEMMA = "<|tool_call>call:f{a}<tool_call|>"
STRING = {"type": "object", "properties": {k: {"type": "string"} for k in ("text", "command")}}
WEATHER = Tool("get_weather", parameters={"properties": {"city": {"type": "string"}}})
SHELL, ECHO, WRITE = (Tool(n, parameters=STRING) for n in ("shell", "echo", "write_file"))
SEARCH = Tool("web_search")
TOOLS = (WEATHER, SHELL, ECHO, WRITE, SEARCH)

# template, text, content, calls
CASES = {
    "TC-01": (
        "<|tool_call_start|>",
        "<|tool_call_start|>[web_search(query='weather in Oslo', n=5)]<|tool_call_end|>",
        "",
        [("web_search", {"query": "weather in Oslo", "n": 5})],
    ),
    "TC-03": (
        "[TOOL_CALLS]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Lima"}',
        "",
        [("get_weather", {"city": "Lima"})],
    ),
    "TC-06": (
        XML,
        "<tool_call>\n<function=shell>\n<parameter=command>\npwd && ls -la > out.txt\n"
        "</parameter>\n</function>\n</tool_call>",
        "",
        [("shell", {"command": "pwd && ls -la > out.txt"})],
    ),
    "TC-08": (
        XML,
        "<tool_call>\n<function=write_file>\n<parameter=text>\nuse </parameter> to close\n"
        "</parameter>\n</function>\n</tool_call>",
        "",
        [("write_file", {"text": "use </parameter> to close"})],
    ),
    "TC-10": (
        XML,
        "Let me look.\n<function=shell>\n<parameter=command>\nls\n</parameter>\n</function>\n"
        "</tool_call>",
        "Let me look.",
        [("shell", {"command": "ls"})],
    ),
    "TC-11": (
        "",
        '{"name":"echo","parameters":"{\\"text\\": \\"hi\\"}"}',
        "",
        [("echo", {"text": "hi"})],
    ),
    "TC-13": (
        "",
        '[get_weather(city="Oslo"), get_weather(city="Nice")]',
        "",
        [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Nice"})],
    ),
    "TC-20": (
        HERMES,
        '<tool_call>{"name": 5, "arguments": [}</tool_call>',
        '<tool_call>{"name": 5, "arguments": [}</tool_call>',
        [],
    ),
    "list": ("", "[1, 2] is a list", "[1, 2] is a list", []),
    "link": ("", "[get](http://x)", "[get](http://x)", []),
    "json": ("", '{"foo": 1}\n', '{"foo": 1}\n', []),
    "two": (
        HERMES,
        'Hm.\n<tool_call>\n{"name": "a", "arguments": {"t": "</tool_call>"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b"}\n</tool_call>',
        "Hm.",
        [("a", {"t": "</tool_call>"}), ("b", {})],
    ),
    "mistral-list": (
        "[TOOL_CALLS]",
        '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}}]',
        "",
        [("a", {}), ("b", {"x": 1})],
    ),
    "glm": (
        GLM,
        "Sure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>a </tool_call> b</arg_value>\n</tool_call>",
        "Sure.",
        [("get_weather", {"city": "a </tool_call> b"})],
    ),
    "glm-broken": (GLM, "<tool_call>a b c</tool_call>", "<tool_call>a b c</tool_call>", []),
    "deepseek": (
        DEEP,
        "Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        '<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"x": [1]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Look.",
        [("a", {}), ("b", {"x": [1]})],
    ),
    "deepseek-block": (
        DEEP,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n"
        '{"x": "`"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [("a", {"x": "`"})],
    ),
    "gemma4": (
        GEMMA,
        '<|tool_call>call:f{a:<|"|>x, <tool_call|> {"y"}<|"|>,b:-1.5,c:[true,null],d:{e:{}}}'
        "<tool_call|><|tool_call>call:g{}<tool_call|>",
        "",
        [
            ("f", {"a": 'x, <tool_call|> {"y"}', "b": -1.5, "c": [True, None], "d": {"e": {}}}),
            ("g", {}),
        ],
    ),
    "harmony": (
        HARMONY,
        "<|channel|>analysis<|message|>Need a tool.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary to=functions.shell "
        '<|constrain|>json<|message|>{"command": "<|"}<|call|>',
        "Let me look.",
        [("shell", {"command": "<|"})],
    ),
    "harmony-role": (
        HARMONY,
        " to=functions.echo<|channel|>commentary json<|message|>{}<|call|>",
        "",
        [("echo", {})],
    ),
    "harmony-answer": (
        HARMONY,
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>Yes",
        "Yes",
        [],
    ),
    "harmony-bare": (HARMONY, "Yes < no <|", "Yes < no <|", []),
    "harmony-broken": (
        HARMONY,
        "<|channel|>commentary to=functions.echo<|message|>{x<|call|>",
        "{x",
        [],
    ),
    "gemma4-broken": (GEMMA, BROKEN_GEMMA, BROKEN_GEMMA, []),
}


def run(template: str, pieces: list[str], end="stop", **options):
    count = iter(range(1000))
    parser = OutputParser(
        ChatFormat.of(template), tools=TOOLS, new_id=lambda: str(next(count)), **options
    )
    events = [e for piece in pieces for e in parser.push(piece)] + parser.flush(end)
    text = "".join(e.text for e in events if isinstance(e, Text))
    thought = "".join(e.text for e in events if isinstance(e, Reasoning))
    names = [e.name for e in events if isinstance(e, ToolCallStart)]
    calls = [
        (n, "".join(e.delta for e in events if isinstance(e, ToolArguments) and e.index == i))
        for i, n in enumerate(names)
    ]
    return text, thought, calls, parser.finish_reason


@pytest.mark.parametrize("name", CASES)
def test_case_cut_in_every_way(name: str) -> None:
    template, text, content, calls = CASES[name]
    cuts = [[text]] + [[text[:i], text[i:]] for i in range(len(text))]
    cuts += [[text[i : i + n] for i in range(0, len(text), n)] for n in (1, 2, 3, 7)]
    for pieces in cuts:
        got, _, found, finish = run(template, pieces)
        assert got == content
        assert [(n, json.loads(a)) for n, a in found] == calls
        assert finish == ("tool_calls" if calls else "stop")


_WORDS = """<tool_call> </tool_call> <function=shell> </function> <parameter=command> </parameter>
    <think> </think> [TOOL_CALLS] [ARGS] shell {"name":"echo"} {"name":"a","arguments":{}}
    <|start|> <|channel|> <|message|> <|end|> <|call|> <|constrain|> final to=functions.shell
    <arg_key>command</arg_key> <arg_value> </arg_value> <tool_call>shell <|tool_call>call:f{ a:
    <tool_call|> <|"|> } <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁sep｜> {}
    <｜tool▁call▁begin｜>a <｜tool▁call▁end｜>
    <|tool_call_start|> <|tool_call_end|> <|tool_call|> [ ] echo(text='a') [echo( < ' " x"""
PARTS = st.sampled_from([*_WORDS.split(), "\n", " "])


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(
        [
            HERMES,
            XML,
            "[TOOL_CALLS]",
            "<|tool_call_start|>",
            "<|tool_call|>",
            "",
            GLM,
            DEEP,
            GEMMA,
            HARMONY,
        ]
    ),
    st.lists(PARTS, max_size=12).map("".join),
    st.lists(st.integers(0, 120), max_size=8),
    st.booleans(),
    st.sampled_from(["stop", "length"]),
)
def test_streamed_equals_unstreamed(template, text, cuts, is_open, end) -> None:
    places = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    whole = run(template, [text], end, is_open=is_open)
    assert run(template, pieces, end, is_open=is_open) == whole
    assert run(template, list(text), end, is_open=is_open) == whole
    for _, arguments in whole[2]:
        json.loads(arguments)


def test_half_a_call_at_the_limit_is_text() -> None:
    text = 'Well <tool_call>{"name": "shell", "arguments": {"com'
    assert run(HERMES, [text], "length") == (text, "", [], "length")


def test_one_call_where_only_one_is_allowed() -> None:
    call = '<tool_call>{"name": "a"}</tool_call>'
    assert run(HERMES, [call + call], parallel=False)[2] == [("a", "{}")]


def test_thinking_is_kept_apart() -> None:
    assert run(HERMES, ["<think>\nhm\n</think>\n\nYes"])[:2] == ("Yes", "hm")
    assert run(HERMES, ["hm</think>Yes"], is_open=True)[:2] == ("Yes", "hm")
    style = reasoning_style(HERMES)
    assert opened_by(style, "<|im_start|>assistant\n<think>\n")
    assert not opened_by(style, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opened_by(style, "user: <think><|im_end|>\n<|im_start|>assistant\n")


def test_harmony_keeps_its_analysis_apart() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    assert run(HARMONY, [text])[:2] == ("Yes", "hm")
    assert run(HARMONY, ["hm<|end|><|start|>assistant<|channel|>final<|message|>Y"], is_open=True)[
        :2
    ] == ("Y", "hm")
    call = "<|channel|>commentary to=functions.echo<|message|>{}<|call|>"
    assert run(HARMONY, [call + "<|start|>assistant" + call], parallel=False)[2] == [("echo", "{}")]
    assert run(HARMONY, [call[:-12]], "length")[2] == []


def test_a_prompt_is_settled_for_a_wish_to_think() -> None:
    with_switch, without = reasoning_style(HERMES), reasoning_style("</think>")
    assert settled(without, False, True) == ("\n</think>\n\n", False)
    assert settled(without, False, False) == ("<think>\n\n</think>\n\n", False)
    assert settled(with_switch, False, False) == ("", False)
    assert settled(reasoning_style(HARMONY), False, False) == ("<|channel|>final<|message|>", False)
    for think in (None, True):
        assert settled(without, think, True) == ("", True)
    assert settled(None, False, False) == ("", False)
