"""A call that must be made is made, and fits its schema, whatever the model would rather say."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 120}, "ok": {"const": "YES"}},
    "required": ["n", "ok"],
}
HI = [{"role": "user", "content": "hi"}]


def function(name: str, **more):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


TOOLS = [function("first"), function("second")]
NAMED = {"type": "function", "function": {"name": "second"}}


def fits(arguments) -> bool:
    return set(arguments) == {"n", "ok"} and 3 <= arguments["n"] <= 120 and arguments["ok"] == "YES"


@pytest.mark.parametrize("seed", range(3))
def test_every_dialect_is_made_to_call(client, seed):
    free = {"temperature": 1.5, "seed": seed}
    asked = {**free, "max_tokens": 400, "parallel_tool_calls": False}
    for choice, names in [("required", {"first", "second"}), (NAMED, {"second"})]:
        body = {"tools": TOOLS, "tool_choice": choice, **asked}
        answer = client.chat(**body).json["choices"][0]
        (call,) = answer["message"]["tool_calls"]
        assert answer["finish_reason"] == "tool_calls" and call["function"]["name"] in names
        assert fits(json.loads(call["function"]["arguments"]))
        deltas = [c["choices"][0]["delta"] for _, c in client.chat(**body, stream=True).events[:-1]]
        parts = [p["function"] for d in deltas for p in d.get("tool_calls") or ()]
        assert "".join(p.get("arguments") or "" for p in parts) == call["function"]["arguments"]

    tools = [{"name": t["function"]["name"], "input_schema": SCHEMA} for t in TOOLS]
    choice = {"type": "tool", "name": "second", "disable_parallel_tool_use": True}
    body = {"messages": HI, "max_tokens": 400, "tools": tools, "tool_choice": choice, **free}
    reply = client.post("/v1/messages", body).json
    assert reply["stop_reason"] == "tool_use"
    (block,) = [b for b in reply["content"] if b["type"] == "tool_use"]
    assert block["name"] == "second" and fits(block["input"])

    tools = [
        {"type": "function", "name": t["function"]["name"], "parameters": SCHEMA} for t in TOOLS
    ]
    body = {
        "input": "hi",
        "max_output_tokens": 400,
        "tools": tools,
        "tool_choice": {"type": "function", "name": "second"},
        "parallel_tool_calls": False,
        **free,
    }
    reply = client.post("/v1/responses", body).json
    (item,) = [o for o in reply["output"] if o["type"] == "function_call"]
    assert item["name"] == "second" and fits(json.loads(item["arguments"]))


def test_a_call_cut_by_the_limit_is_no_call(client):  # TC-18
    answer = client.chat(tools=TOOLS, tool_choice="required", max_tokens=4).json["choices"][0]
    assert answer["finish_reason"] == "length" and not answer["message"].get("tool_calls")


def test_a_strict_tool_that_cannot_be_held_is_refused(client):
    never = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    tool = function("f", parameters=never, strict=True)
    reply = client.chat(tools=[tool], tool_choice="required", max_tokens=4)
    assert reply.status == 400 and b"not" in reply.body


def test_a_strict_tool_on_offer_is_held_where_it_is_called(client):
    tools = [function("first", strict=True)]
    for seed in range(3):
        asked = {"tools": tools, "temperature": 1.5, "seed": seed, "max_tokens": 60}
        answer = client.chat(**asked).json["choices"][0]
        for call in answer["message"].get("tool_calls") or ():
            assert fits(json.loads(call["function"]["arguments"]))
    never = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    reply = client.chat(tools=[function("f", parameters=never, strict=True)], max_tokens=4)
    assert reply.status == 400 and b"not" in reply.body
