"""Answers held to JSON, schemas and grammars, and what cannot be held to."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 120}, "ok": {"const": "YES"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
HI = [{"role": "user", "content": "hi"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": SCHEMA}}
BAD = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(abc$"}}}


def holds(text):
    value = json.loads(text)
    return set(value) == {"n", "ok"} and 3 <= value["n"] <= 120 and value["ok"] == "YES"


@pytest.mark.parametrize("seed", range(3))
def test_every_dialect_holds_to_a_schema(client, seed):
    free = {"temperature": 1.5, "seed": seed}
    chat = client.chat(response_format=FORMAT, max_tokens=300, **free).json["choices"][0]
    assert chat["finish_reason"] == "stop" and holds(chat["message"]["content"])
    chunks = client.chat(response_format=FORMAT, max_tokens=300, stream=True, **free).events[:-1]
    text = "".join(c["choices"][0]["delta"].get("content", "") for _, c in chunks)
    assert text == chat["message"]["content"]
    body = {"prompt": "x", "response_format": FORMAT, "max_tokens": 300, **free}
    assert holds(client.post("/v1/completions", body).json["choices"][0]["text"])
    body = {"prompt": "x", "json_schema": SCHEMA, "n_predict": 300, **free}
    assert holds(client.post("/completion", body).json["content"])
    options = {"num_predict": 300, **free}
    body = {"messages": HI, "format": SCHEMA, "stream": False, "options": options}
    assert holds(client.post("/api/chat", body).json["message"]["content"])
    body = {"prompt": "hi", "format": SCHEMA, "stream": False, "options": options}
    assert holds(client.post("/api/generate", body).json["response"])
    body = {"messages": HI, "max_tokens": 300, "output_format": {"schema": SCHEMA}, **free}
    assert holds(client.post("/v1/messages", body).json["content"][0]["text"])
    text = {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}}
    body = {"input": "hi", "max_output_tokens": 300, "text": text, **free}
    reply = client.post("/v1/responses", body).json
    assert holds(reply["output"][0]["content"][0]["text"])


def test_any_json(client):
    for seed in range(3):
        settings = {"temperature": 1.5, "seed": seed, "max_tokens": 200}
        chat = client.chat(response_format={"type": "json_object"}, **settings).json["choices"][0]
        if chat["finish_reason"] == "stop":
            json.loads(chat["message"]["content"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": HI,
                "response_format": {"type": "json_schema", "json_schema": {"schema": BAD}},
            },
        ),
        ("/v1/chat/completions", {"messages": HI, "response_format": {"type": "json_schema"}}),
        ("/completion", {"prompt": "x", "json_schema": BAD}),
        ("/completion", {"prompt": "x", "grammar": "reply ::= 'ok'"}),
        ("/v1/chat/completions", {"messages": HI, "grammar": "root ::= ("}),
        ("/api/chat", {"messages": HI, "format": BAD, "stream": False}),
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "output_format": {"schema": BAD}}),
    ],
)
def test_what_cannot_be_held_to_is_refused(client, path, body):
    reply = client.post(path, body)
    assert reply.status == 400, reply.body
    assert b"error" in reply.body and b"/kinetic" not in reply.body


def test_one_form_at_a_time(client):
    both = client.chat(response_format=FORMAT, grammar='root ::= "a"')
    assert both.status == 400


def test_every_route_with_a_grammar_holds_to_it(client):
    grammar = 'root ::= "<" [a-z]{2,4} ">" | "(" root ")"'
    for seed in range(3):
        free = {"temperature": 1.5, "seed": seed, "grammar": grammar}
        texts = [
            client.chat(max_tokens=60, **free).json["choices"][0]["message"]["content"],
            client.post("/v1/completions", {"prompt": "x", "max_tokens": 60, **free}).json[
                "choices"
            ][0]["text"],
            client.post("/completion", {"prompt": "x", "n_predict": 60, **free}).json["content"],
        ]
        for text in texts:
            text = text.lstrip("(").rstrip(")")
            assert re.fullmatch("<[a-z]{2,4}>", text) or not text.endswith(">"), text


@pytest.mark.parametrize("seed", range(3))
def test_a_grammar_holds_answers(client, seed):
    grammar = 'root ::= "yes" | "no" [a-c]{2}'
    free = {"temperature": 1.5, "seed": seed}
    texts = [
        client.chat(grammar=grammar, max_tokens=20, **free).json["choices"][0]["message"][
            "content"
        ],
        client.post("/completion", {"prompt": "x", "grammar": grammar, **free}).json["content"],
    ]
    for text in texts:
        assert text == "yes" or (text[:2] == "no" and set(text[2:]) <= set("abc")), text


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Nice"]}},
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "get_time")
]


@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_comes(client, seed):
    settings = {"tools": TOOLS, "temperature": 1.5, "seed": seed, "max_tokens": 400}
    choice = client.chat(tool_choice="required", **settings).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("get_weather", "get_time")
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Nice")
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = client.chat(tool_choice=named, **settings).json["choices"][0]
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["get_time"]
    body = {
        "messages": HI,
        "max_tokens": 400,
        "seed": seed,
        "tools": [{"name": "shot", "input_schema": TOOLS[0]["function"]["parameters"]}],
        "tool_choice": {"type": "any"},
    }
    message = client.post("/v1/messages", body).json
    assert message["stop_reason"] == "tool_use" and message["content"][-1]["name"] == "shot"


def test_a_forced_call_cut_by_the_limit_is_no_call(client):
    reply = client.chat(tools=TOOLS, tool_choice="required", max_tokens=6).json
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_a_forced_call_and_a_form_are_two_things(client):
    both = client.chat(tools=TOOLS, tool_choice="required", response_format=FORMAT)
    assert both.status == 400
