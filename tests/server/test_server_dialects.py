"""Anthropic's, Ollama's, llama-server's and the Responses dialect, by their shapes."""

from __future__ import annotations

import itertools

import pytest

HI = [{"role": "user", "content": "hi"}]

# Anthropic. --------------------------------------------------------------------------------


def test_messages(client):
    body = {"messages": HI, "max_tokens": 4, "temperature": 0}
    reply = client.post("/v1/messages?beta=true", body, **{"anthropic-version": "2023-06-01"}).json
    assert reply["type"] == "message" and reply["role"] == "assistant"
    (block,) = reply["content"]
    assert block["type"] == "text" and reply["stop_reason"] == "max_tokens"
    usage = reply["usage"]
    counted = client.post("/v1/messages/count_tokens", {"messages": HI}).json["input_tokens"]
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(usage[kind] for kind in kinds) == counted
    assert usage["output_tokens"] == 4


def test_messages_streamed(client):
    body = {"messages": HI, "max_tokens": 8, "temperature": 0}
    whole = client.post("/v1/messages", body).json
    events = client.post("/v1/messages", {**body, "stream": True}).events
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in events)
    text = "".join(d["delta"]["text"] for n, d in events if n == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2][1]["delta"]["stop_reason"] == whole["stop_reason"]


def test_a_stop_sequence_is_named(client):
    body = {"messages": HI, "max_tokens": 40, "temperature": 0}
    text = client.post("/v1/messages", body).json["content"][0]["text"]
    stop = next(c for c in text if c.isprintable() and c != "\ufffd")
    reply = client.post("/v1/messages", {**body, "stop_sequences": [stop]}).json
    assert reply["stop_reason"] == "stop_sequence" and reply["stop_sequence"] == stop


def test_system_texts_tools_and_results_are_taken(client):
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=123;"}
    picture = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}
    body = {
        "max_tokens": 2,
        "system": [billing, {"type": "text", "text": "You are a coder.", **cached}],
        "tools": [
            {"name": "shot", "input_schema": {"type": "object"}, **cached},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "toolu_1", "name": "shot", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "saved"}, picture],
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "plain"},
                    {"type": "tool_result", "tool_use_id": "toolu_3"},
                    {"type": "text", "text": "go on", **cached},
                ],
            },
        ],
    }
    assert client.post("/v1/messages", body).status == 200
    other = {**body, "system": [{**billing, "text": "x-anthropic-billing-header: 9"}]}
    other["system"] += body["system"][1:]

    def count(of):
        return client.post("/v1/messages/count_tokens", of).json["input_tokens"]

    assert count(body) == count(other)  # the changing line is no part of the prompt
    seen = [{"role": "user", "content": [picture]}]
    refused = client.post("/v1/messages", {"max_tokens": 1, "messages": seen})
    assert refused.status == 400 and "messages[0].content[0]" in refused.json["error"]["message"]


def test_blocks_follow_each_other():
    from kinetic.server.anthropic import Blocks
    from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallEnd, ToolCallStart

    blocks = Blocks()
    pieces = [
        *(Text("---"), Reasoning("hm"), Text("o"), Text("k")),
        *(ToolCallStart(0, "a", "f"), ToolArguments(0, "{"), ToolArguments(0, "}")),
        *(ToolCallEnd(0), ToolCallStart(1, "b", "g"), ToolArguments(1, "{}"), ToolCallEnd(1)),
    ]
    events = [e for piece in pieces for e in blocks.take(piece)] + blocks.close()
    open_block = None
    seen = []
    matching = {
        "text": ("text_delta",),
        "thinking": ("thinking_delta", "signature_delta"),
        "tool_use": ("input_json_delta",),
    }
    for name, data in events:
        if name == "content_block_start":
            assert open_block is None and data["index"] == len(seen)
            open_block = data["content_block"]["type"]
            seen.append(open_block)
        elif name == "content_block_stop":
            assert data["index"] == len(seen) - 1
            open_block = None
        else:
            assert data["delta"]["type"] in matching[open_block]
    assert seen == ["text", "thinking", "text", "tool_use", "tool_use"] and open_block is None


def test_anthropic_errors(client):
    too_long = client.post(
        "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x" * 4000}]}
    )
    error = too_long.json
    assert too_long.status == 400 and error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith("prompt is too long: ")
    assert " tokens > " in error["error"]["message"]
    assert client.send("HEAD", "/").status == 200


# Ollama. -----------------------------------------------------------------------------------


def test_ollama_tells_of_its_model(client):
    assert client.get("/api/version").json["version"]
    (card,) = client.get("/api/tags").json["models"]
    assert card["name"] == card["model"] == "tiny:latest" and card["size"] > 0
    assert card["details"]["format"] == "gguf" and card["details"]["family"] == "qwen2"
    (running,) = client.get("/api/ps").json["models"]
    assert running["context_length"] == client.service.n_ctx
    shown = client.post("/api/show", {"model": "tiny"}).json
    assert "completion" in shown["capabilities"]
    assert shown["model_info"]["qwen2.context_length"] == 1024
    assert shown["template"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/chat", {"messages": HI}, lambda x: x["message"]["content"]),
        ("/api/generate", {"prompt": "hi"}, lambda x: x["response"]),
        ("/api/generate", {"prompt": "hi", "raw": True}, lambda x: x["response"]),
    ],
)
def test_ollama_answers(client, path, body, field):
    body = {**body, "options": {"num_predict": 5, "temperature": 0}}
    whole = client.post(path, {**body, "stream": False}).json
    streamed = client.post(path, body)
    assert streamed.headers["content-type"].startswith("application/x-ndjson")
    lines = streamed.lines
    assert "".join(map(field, lines)) == field(whole)
    for last in (lines[-1], whole):
        assert last["done"] is True and last["done_reason"] == "length"
        assert last["eval_count"] == 5 and last["prompt_eval_count"] > 0
        assert last["total_duration"] > 0 and last["eval_duration"] > 0
    assert all(line["done"] is False for line in lines[:-1])


def test_ollama_takes_what_its_clients_send(client):
    def generate(**more):
        body = {"prompt": "hi", "stream": False, "options": {"num_predict": 1}, **more}
        return client.post("/api/generate", body, **{"Content-Type": "text/plain"})

    for keep_alive in (-1, "-1", "5m", "0", 0, 3600, "1h30m"):
        assert generate(keep_alive=keep_alive).status == 200
    assert generate(keep_alive="soon").status == 400
    assert (
        generate(options={"num_predict": 1, "keep_alive": 600, "no_such_option": 1}).status == 200
    )
    loaded = client.post("/api/generate", {"model": "tiny"}).json
    assert loaded["done"] and loaded["done_reason"] == "load"
    assert client.post("/api/chat", {"model": "tiny"}).json["done_reason"] == "load"
    unloaded = client.post("/api/generate", {"model": "tiny", "keep_alive": 0}).json
    assert unloaded["done_reason"] == "unload"


@pytest.mark.parametrize(
    "more",
    [{"suffix": "x"}, {"template": "X"}, {"context": [1]}, {"images": ["eA=="]}, {"format": "xml"}],
)
def test_ollama_refuses_by_name(client, more):
    reply = client.post("/api/generate", {"prompt": "hi", "stream": False, **more})
    assert reply.status == 400
    assert next(iter(more)) in reply.json["error"]


# llama-server. -----------------------------------------------------------------------------


def test_completion_with_tokens_and_probabilities(client):
    body = {"prompt": "hello", "n_predict": 5, "temperature": 0, "n_probs": 2}
    whole = client.post("/completion", body).json
    assert len(whole["tokens"]) == 5 == whole["tokens_predicted"]
    assert whole["stop"] and whole["stop_type"] == "limit" and whole["prompt"] == "hello"
    probabilities = whole["completion_probabilities"]
    assert [p["id"] for p in probabilities] == whole["tokens"]
    assert all(len(p["top_logprobs"]) == 2 for p in probabilities)
    events = [data for _, data in client.post("/completions", {**body, "stream": True}).events]
    assert "".join(e["content"] for e in events) == whole["content"]
    assert list(itertools.chain(*(e["tokens"] for e in events))) == whole["tokens"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]


def test_completion_says_which_word_stopped_it(client):
    body = {"prompt": "hello", "n_predict": 40, "temperature": 0}
    text = client.post("/completion", body).json["content"]
    stop = next(c for c in text if c.isprintable() and c != "\ufffd")
    cut = client.post("/completion", {**body, "stop": [stop]}).json
    assert cut["stop_type"] == "word" and cut["stopping_word"] == stop


def test_tokens_there_and_back(client):
    """TK-08, TK-10: text is taken as it is."""
    for text in ("hello there", "h\u00e9 \U0001f600", "<|end|>"):
        ids = client.post("/tokenize", {"content": text}).json["tokens"]
        assert client.post("/detokenize", {"tokens": ids}).json["content"] == text
    pieces = client.post("/tokenize", {"content": "the", "with_pieces": True}).json["tokens"]
    assert "".join(p["piece"] for p in pieces) == "the"
    apart, newline = (
        client.post("/tokenize", {"content": t}).json["tokens"] for t in ("a\\nb", "a\nb")
    )
    assert apart != newline
    whole = client.post("/tokenize", {"content": "<|end|>", "parse_special": True}).json["tokens"]
    apart = client.post("/tokenize", {"content": "<|end|>", "parse_special": False}).json["tokens"]
    assert len(whole) == 1 < len(apart)
    assert client.post("/detokenize", {"tokens": [10**9]}).status == 400


def test_props_slots_and_metrics(client):
    props = client.get("/props").json
    assert props["total_slots"] == 2 and props["chat_template"]
    assert props["default_generation_settings"]["n_ctx"] == client.service.n_ctx
    assert "/" not in props["model_path"]
    client.chat("a secret word")
    slots = client.get("/slots")
    assert len(slots.json) == 2 and b"secret" not in slots.body
    (first, *_) = (s for s in slots.json if "next_token" in s)
    assert first["next_token"][0]["n_decoded"] > 0
    text = client.get("/metrics").body.decode()
    for name in ("requests_total", "tokens_predicted_total", "requests_deferred", "n_tokens_max"):
        assert f"\nllamacpp:{name} " in text


def test_templates_take_calls_without_content(client):
    arguments = '{"x": 1}'
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": '{"t": "\u00e9"}'},
    ]
    told = client.post("/apply-template", {"messages": messages}).json["prompt"]
    assert "None" not in told and "null" not in told
    assert '<call>f {"x": 1}</call>' in told and '{"t": "\u00e9"}' in told
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{"
    messages.append({"role": "user", "content": "go on"})
    assert client.chat(messages=messages).status in (200, 400)


# Responses. --------------------------------------------------------------------------------


def test_responses(client):
    reply = client.post("/v1/responses", {"input": "hi", "max_output_tokens": 4}).json
    assert reply["object"] == "response" and reply["status"] == "incomplete"
    assert reply["output"][0]["content"][0]["type"] == "output_text"
    assert reply["usage"]["output_tokens"] == 4


def test_responses_streamed(client):
    parts = [{"type": "input_text", "text": "hi"}]
    body = {
        "input": [{"role": "user", "content": parts}],
        "stream": True,
        "max_output_tokens": 8,
        "temperature": 0,
    }
    events = client.post("/v1/responses", body).events
    names = [name for name, _ in events]
    assert [name for name, _ in itertools.groupby(names)] == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.incomplete"),
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    text = "".join(d["delta"] for n, d in events if n == "response.output_text.delta")
    last = events[-1][1]["response"]
    assert last["output"][0]["content"][0]["text"] == text
    assert last["usage"]["output_tokens"] == 8


def test_responses_take_what_codex_sends(client):
    body = {
        "input": "list files",
        "store": False,
        "max_output_tokens": 2,
        "tools": [
            {"type": "function", "name": "shell", "parameters": {"type": "object"}},
            *({"type": kind} for kind in ("web_search", "image_generation")),
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        ],
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "client_metadata": {},
    }
    assert client.post("/v1/responses", body).status == 200
    probe = {"input": [], "instructions": "x", "max_output_tokens": 1}
    assert client.post("/v1/responses", probe).status == 200
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    seen = [
        {"role": "user", "content": "see"},
        {"type": "reasoning", "summary": [], "content": None},
        {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [picture]},
    ]
    body = {"input": seen, "max_output_tokens": 2}
    assert client.post("/v1/responses", body).status == 200
    refused = client.post("/v1/responses", {"input": "x", "previous_response_id": "resp_1"})
    assert refused.status == 400 and "previous_response_id" in refused.json["error"]["message"]


# Vectors. ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/embedding", {"content": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/api/embeddings", {"prompt": "a"}),
    ],
)
def test_a_text_model_says_where_it_is_served(client, path, body):
    reply = client.post(path, body)
    assert reply.status == 400 and b"/v1/chat/completions" in reply.body
