"""Thinking and tool calls in every dialect, from a model whose words are given."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

from kinetic import generation
from kinetic.runtime.request import Counts, Token
from kinetic.text.chat_template import ChatTemplate

TEMPLATE = (
    "{% if tools %}Call in <tool_call></tool_call>: {{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% elif open_thought %}<think>\n{% endif %}{% endif %}"
)
TOOL = {
    "name": "get_weather",
    "description": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FUNCTION = {"type": "function", "function": TOOL}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
HI = [{"role": "user", "content": "hi"}]


class Scripted:
    """A model that says what it is told to, a few characters a token."""

    def __init__(self, model):
        self._model = model
        self.chat_template = ChatTemplate(TEMPLATE, model.tokenizer)
        self.words, self.size, self.reason = "", 3, "end"
        self.prompt, self.cancelled = "", False

    def __getattr__(self, name):
        return getattr(self._model, name)

    def start(self, request, on_event):
        self.prompt = self.tokenizer.decode(request.prompt_ids, render_special=True)
        self.cancelled = False
        pieces = [self.words[i : i + self.size] for i in range(0, len(self.words), self.size)]

        def speak():
            for piece in pieces:
                on_event(generation.TextEvent(piece, Token(5)))
            counts = Counts(prompt_tokens=9, generated_tokens=len(pieces))
            on_event(generation.FinishEvent(self.reason, counts, 1))

        threading.Thread(target=speak).start()
        return self

    def cancel(self):
        self.cancelled = True


@pytest.fixture(scope="module")
def scripted(serving, tiny, tiny_path):
    model = Scripted(tiny)
    client = serving(model, tiny_path)
    client.model = model
    return client


def say(scripted, words, size=3, reason="end"):
    scripted.model.words, scripted.model.size, scripted.model.reason = words, size, reason


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_tells_thinking_and_calls_apart(scripted, size, stream):
    say(scripted, f"<think>\nLet me see.\n</think>\n\nOne moment. {CALL}", size)
    reply = scripted.chat(tools=[FUNCTION], stream=stream, max_tokens=500)
    if stream:
        message, reason = gathered(reply)
    else:
        message = reply.json["choices"][0]["message"]
        reason = reply.json["choices"][0]["finish_reason"]
    assert message["reasoning_content"] == "Let me see."
    assert message["content"].strip() == "One moment."
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert reason == "tool_calls"


def gathered(reply):
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for _, chunk in reply.events[:-1]:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or ():
                calls = message["tool_calls"]
                if part["index"] == len(calls):
                    calls.append({**part, "function": {"name": "", "arguments": ""}})
                for key, value in part["function"].items():
                    calls[part["index"]]["function"][key] += value
            reason = choice["finish_reason"] or reason
    return message, reason


def test_a_call_without_text_has_no_content(scripted):
    say(scripted, CALL)
    message = scripted.chat(tools=[FUNCTION]).json["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


def test_without_tools_a_call_is_text(scripted):
    say(scripted, CALL)
    message = scripted.chat().json["choices"][0]["message"]
    assert message["content"] == CALL and "tool_calls" not in message
    hidden = scripted.chat(tools=[FUNCTION], tool_choice="none").json["choices"][0]["message"]
    assert hidden["content"] == CALL
    assert "get_weather" not in scripted.model.prompt


def test_a_call_cut_by_the_limit_is_text(scripted):
    half = CALL[: len(CALL) // 2]
    say(scripted, half, reason="length")
    choice = scripted.chat(tools=[FUNCTION]).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == half and "tool_calls" not in choice["message"]


def test_one_call_only_where_one_is_wanted(scripted):
    say(scripted, f"{CALL}\n{CALL}")
    both = scripted.chat(tools=[FUNCTION]).json["choices"][0]["message"]["tool_calls"]
    assert len(both) == 2 and both[0]["id"] != both[1]["id"]
    one = scripted.chat(tools=[FUNCTION], parallel_tool_calls=False).json["choices"][0]
    assert len(one["message"]["tool_calls"]) == 1 and one["finish_reason"] == "tool_calls"
    assert scripted.model.cancelled


def test_an_open_thought_in_the_prompt_counts(scripted):
    say(scripted, "Hm.</think>Yes.")
    reply = scripted.chat(chat_template_kwargs={"open_thought": True})
    message = reply.json["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm." and message["content"] == "Yes."


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}),
        ("/v1/chat/completions", {"enable_thinking": False}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("/v1/messages", {"thinking": {"type": "disabled"}}),
        ("/api/chat", {"think": False}),
        ("/v1/responses", {"reasoning": {"effort": "none"}}),
    ],
)
def test_every_dialect_can_turn_thinking_off(scripted, path, more):
    say(scripted, "Yes.")
    body = {"messages": HI, "input": "hi", "max_tokens": 9, **more}
    assert scripted.post(path, body).status == 200
    assert scripted.model.prompt.endswith("</think>\n\n")
    plain = {"messages": HI, "input": "hi", "max_tokens": 9}
    scripted.post(path, plain)
    assert scripted.model.prompt.endswith("assistant\n")


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_tells_thinking_and_calls_apart(scripted, stream):
    say(scripted, f"<think>Hm.</think>One moment.\n{CALL}")
    body = {
        "messages": HI,
        "max_tokens": 99,
        "stream": stream,
        "tools": [{"name": "get_weather", "input_schema": TOOL["parameters"]}],
    }
    reply = scripted.post("/v1/messages", body)
    if not stream:
        thinking, text, call = reply.json["content"]
        assert thinking["thinking"] == "Hm." and text["text"].strip() == "One moment."
        assert call["name"] == "get_weather" and call["input"] == {"city": "Oslo"}
        assert reply.json["stop_reason"] == "tool_use"
        return
    starts = [d["content_block"] for n, d in reply.events if n == "content_block_start"]
    assert [b["type"] for b in starts] == ["thinking", "text", "tool_use"]
    arguments = "".join(
        d["delta"].get("partial_json", "") for n, d in reply.events if n == "content_block_delta"
    )
    assert json.loads(arguments) == {"city": "Oslo"}
    assert reply.events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_ollama_tells_thinking_and_calls_apart(scripted):
    say(scripted, f"<think>Hm.</think>{CALL}")
    body = {"messages": HI, "tools": [FUNCTION]}
    whole = scripted.post("/api/chat", {**body, "stream": False}).json["message"]
    assert whole["thinking"] == "Hm." and whole["content"] == ""
    assert whole["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    lines = [line["message"] for line in scripted.post("/api/chat", body).lines]
    assert "".join(line.get("thinking", "") for line in lines) == "Hm."
    calls = [c for line in lines for c in line.get("tool_calls", ())]
    assert [c["function"]["name"] for c in calls] == ["get_weather"]


def test_responses_tell_thinking_and_calls_apart(scripted):
    say(scripted, f"<think>Hm.</think>One moment.\n{CALL}")
    body = {"input": "hi", "tools": [{"type": "function", **TOOL}]}
    whole = scripted.post("/v1/responses", body).json
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call"] and whole["status"] == "completed"
    assert json.loads(whole["output"][2]["arguments"]) == {"city": "Oslo"}
    events = scripted.post("/v1/responses", {**body, "stream": True}).events
    last = events[-1][1]["response"]
    assert events[-1][0] == "response.completed"
    assert [item["type"] for item in last["output"]] == kinds
    added = [d["output_index"] for n, d in events if n == "response.output_item.added"]
    done = [d["output_index"] for n, d in events if n == "response.output_item.done"]
    assert added == done == [0, 1, 2]
    order = [n for n, _ in itertools.groupby(n for n, _ in events if "function_call" in n)]
    assert order == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        {"tools": [FUNCTION, FUNCTION]},
        {"tools": [FUNCTION], "tool_choice": "sometimes"},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        {"tool_choice": "required"},
    ],
)
def test_tools_that_make_no_sense_are_refused(scripted, more):
    assert scripted.chat(**more).status == 400


def test_call_ids_take_the_form_that_a_template_insists_on():
    from kinetic.server.prompts import _short_ids

    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = _short_ids({"role": "assistant", "tool_calls": [call]})["tool_calls"][0]["id"]
    answered = _short_ids({"role": "tool", "tool_call_id": "call_0"})["tool_call_id"]
    assert asked == answered and len(asked) == 9 and asked.isalnum()
