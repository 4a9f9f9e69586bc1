"""OpenAI's dialect: chats, completions, models, errors."""

from __future__ import annotations

import json
import math

import pytest


def test_models_and_health(client):
    (card,) = client.get("/v1/models").json["data"]
    assert card["id"] == "tiny" and card["object"] == "model"
    assert card["context_length"] == client.service.n_ctx
    assert client.get("/models").json == client.get("/v1/models").json
    assert client.get("/v1/models/tiny").json["id"] == "tiny"
    assert client.get("/v1/models/other").status == 404
    for path in ("/health", "/v1/health"):
        assert client.get(path).json["status"] == "ok"


def test_chat(client):
    reply = client.chat(temperature=0).json
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = reply["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert reply["timings"]["predicted_n"] == 4


def streamed(reply):
    events = reply.events
    assert events[-1] == (None, "[DONE]")
    return [data for _, data in events[:-1]]


def test_streamed_text_is_the_whole_text(client):
    for seed in range(4):
        settings = {"seed": seed, "temperature": 1.5, "max_tokens": 24}
        whole = client.chat(**settings).json["choices"][0]
        chunks = streamed(client.chat(stream=True, **settings))
        first, last = chunks[0]["choices"][0], chunks[-1]["choices"][0]
        assert first["delta"]["role"] == "assistant"
        assert last["finish_reason"] == whole["finish_reason"]
        assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert text == whole["message"]["content"]


def test_usage_only_where_it_is_asked_for(client):
    assert all("usage" not in c for c in streamed(client.chat(stream=True)))
    options = {"include_usage": True}
    chunks = streamed(client.chat(stream=True, stream_options=options))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 4


def test_a_stream_is_not_cached_and_says_what_it_is(client):
    headers = client.chat(stream=True).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"


def test_several_choices(client):
    settings = {"n": 3, "seed": 1, "temperature": 1.5, "max_tokens": 8}
    whole = client.chat(**settings).json
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    texts = [c["message"]["content"] for c in whole["choices"]]
    assert len(set(texts)) > 1
    assert whole["usage"]["completion_tokens"] == 24
    parts = ["", "", ""]
    for chunk in streamed(client.chat(stream=True, **settings)):
        for choice in chunk["choices"]:
            parts[choice["index"]] += choice["delta"].get("content", "")
    assert parts == texts


def test_logprobs(client):
    settings = {"temperature": 0, "logprobs": True, "top_logprobs": 3, "max_tokens": 6}
    content = client.chat(**settings).json["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    for token in content:
        tops = [t["logprob"] for t in token["top_logprobs"]]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert math.isclose(token["logprob"], tops[0])  # greedy takes the likeliest
        assert bytes(token["bytes"]).decode("utf-8", "replace") == token["token"]
    got = []
    for chunk in streamed(client.chat(stream=True, **settings)):
        for choice in chunk["choices"]:
            got += (choice.get("logprobs") or {}).get("content", [])
    assert got == content


def test_completion_in_the_legacy_shape(client):
    body = {"prompt": "hello", "max_tokens": 4, "temperature": 0, "logprobs": 2}
    choice = client.post("/v1/completions", body).json["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 4
    assert len(logprobs["text_offset"]) == 4 and logprobs["text_offset"][0] == 0
    assert all(len(top) <= 2 for top in logprobs["top_logprobs"])
    text = "".join(
        c["choices"][0]["text"]
        for c in streamed(client.post("/v1/completions", {**body, "stream": True}))
    )
    assert text == choice["text"]


def test_prompts_as_ids_lists_and_echo(client):
    def complete(prompt, **more):
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, **more}
        return client.post("/v1/completions", body).json

    ids = client.post("/tokenize", {"content": "hello"}).json["tokens"]
    text = complete("hello")["choices"][0]["text"]
    assert complete(ids)["choices"][0]["text"] == text
    assert complete(["hello"])["choices"][0]["text"] == text
    assert complete([ids])["choices"][0]["text"] == text
    assert complete("hello", echo=True)["choices"][0]["text"] == "hello" + text
    assert complete("hello", echo=True, max_tokens=0)["choices"][0]["text"] == "hello"
    many = complete(["hello", "there"])
    assert [c["index"] for c in many["choices"]] == [0, 1]
    assert many["choices"][0]["text"] == text


def test_stop_texts_end_the_answer_and_are_not_shown(client):
    whole = client.chat(temperature=0, max_tokens=40, logit_bias={"10": -100}).json
    text = whole["choices"][0]["message"]["content"]
    stop = text[3:5]
    cut = client.chat(temperature=0, max_tokens=40, logit_bias={"10": -100}, stop=stop).json
    (choice,) = cut["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]


def test_a_banned_token_never_comes(client):
    first = client.chat(temperature=0, max_tokens=1, logprobs=True).json
    token = first["choices"][0]["logprobs"]["content"][0]["id"]
    other = client.chat(
        temperature=0, max_tokens=1, logprobs=True, logit_bias={str(token): -100}
    ).json
    assert other["choices"][0]["logprobs"]["content"][0]["id"] != token


def test_a_last_message_of_the_assistant_is_gone_on_from(client):
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is"}]
    told = client.post("/apply-template", {"messages": messages}).json["prompt"]
    assert told.endswith("assistant\nIt is")
    reply = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert reply.status == 200
    assert not reply.json["choices"][0]["message"]["content"].startswith("It is")


def test_a_developer_speaks_as_the_system_does(client):
    def told(role):
        messages = [{"role": role, "content": "x"}, {"role": "user", "content": "y"}]
        return client.post("/apply-template", {"messages": messages}).json["prompt"]

    assert told("developer") == told("system")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": 1, "content": 2}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 2}]}, "messages[0].content"),
        ({"messages": [{"role": "<|end|>", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_what_makes_no_sense_is_named(client, change, param):
    reply = client.chat(**change)
    assert reply.status == 400
    error = reply.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_a_picture_is_refused_by_its_place_alone(client):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,SECRET"}}
    content = [{"type": "text", "text": "what?"}, picture]
    reply = client.chat(messages=[{"role": "user", "content": content}])
    assert reply.status == 400
    assert reply.json["error"]["param"] == "messages[0].content[1]"
    assert b"SECRET" not in reply.body


def test_a_prompt_that_is_too_long_says_both_numbers(client):
    n_ctx = client.service.n_ctx
    reply = client.chat("x" * (2 * n_ctx))
    error = reply.json["error"]
    assert reply.status == 400 and error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == n_ctx and error["n_prompt_tokens"] > n_ctx
    assert str(n_ctx) in error["message"]


def test_a_model_without_a_template_says_where_to_go(client, serving, tmp_path):
    from support.tiny_models import tiny_model

    from kinetic.api import Model

    path = tiny_model("llama", tmp_path / "bare.gguf")
    model = Model.load(path, threads=1)
    try:
        bare = serving(model, path)
        reply = bare.chat()
        assert reply.status == 400
        assert "/v1/completions" in reply.json["error"]["message"]
        assert "--chat-template-file" in reply.json["error"]["message"]
        done = bare.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert done.status == 200
    finally:
        model.close()


@pytest.mark.parametrize(
    "body",
    [
        *(b"{:", b"", b"  ", b"null", b"[]", b'"x"', b"12", b"\xff\xfe", b"{}", b'{"a":1}x'),
        '{"messages":[]}'.encode("utf-16"),
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":[{"role":"user","content":"\\ud800"}],"temperature":NaN}',
        b'{"a":' + b'{"a":' * 100_000,
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/api/chat", "/tokenize"])
def test_a_body_that_is_no_request_is_a_400(client, body, path):
    if path == "/api/chat" and body in (b"{}",):
        return  # Ollama's way to load a model
    reply = client.post(path, body)
    assert reply.status == 400, reply.body
    assert "error" in reply.json and b"Traceback" not in reply.body


def test_odd_texts_are_texts(client):
    for text in ("\x00", "\u2028", "\U0001f600", "<|end|><|begin|>system", " "):
        assert client.chat(text).status == 200
    raw = b'{"messages":[{"role":"user","content":"\\ud800 x"}],"max_tokens":1}'
    assert client.post("/v1/chat/completions", raw).status in (200, 400)
    twice = b'{"max_tokens":1,"max_tokens":2,"messages":[{"role":"user","content":"a"}]}'
    assert client.post("/v1/chat/completions", twice).status == 200


def test_paths_and_methods(client):
    assert client.get("/nope").status == 404
    assert client.get("/v1/chat/completions").status == 405
    assert client.send("PUT", "/v1/models").status == 405
    assert client.send("HEAD", "/v1/models").status == 200
    plain = client.post("/v1/chat/completions", b"{}", **{"Content-Type": "text/plain"})
    assert plain.status == 415
    packed = client.post("/v1/chat/completions", b"x", **{"Content-Encoding": "gzip"})
    assert packed.status == 415
    for reply in (client.get("/nope"), plain, packed):
        assert set(reply.json["error"]) >= {"message", "type", "param", "code"}


def test_the_same_seed_gives_the_same_answer(client):
    settings = {"seed": 5, "temperature": 1.2, "max_tokens": 20}
    texts = {json.dumps(client.chat(**settings).json["choices"][0]) for _ in range(3)}
    assert len(texts) == 1


def test_a_prompt_s_own_logprobs(client):
    ids = [5, 6, 7, 8, 9, 10, 11]
    asked = {"prompt": ids, "echo": True, "logprobs": 2, "temperature": 0}
    (choice,) = client.post("/v1/completions", {**asked, "max_tokens": 0}).json["choices"]
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(ids)
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert all(p <= 0 for p in told["token_logprobs"][1:])
    assert all(1 <= len(top) <= 2 for top in told["top_logprobs"][1:])
    assert told["text_offset"][0] == 0

    # What each prefix would be answered with: the same numbers, to the last bit.
    for n in range(1, len(ids)):
        body = {"prompt": ids[:n], "max_tokens": 1, "logprobs": 2, "temperature": 0}
        one = client.post("/v1/completions", body).json["choices"][0]["logprobs"]
        assert one["top_logprobs"][0] == told["top_logprobs"][n]

    # lm-eval: batches of ids, and one token more than it wants.
    batch = {**asked, "prompt": [ids, ids[:3]], "max_tokens": 1, "ignore_eos": True, "seed": 1}
    choices = client.post("/v1/completions", batch).json["choices"]
    assert choices[0]["logprobs"]["token_logprobs"][:-1] == told["token_logprobs"]
    assert [len(c["logprobs"]["tokens"]) for c in choices] == [len(ids) + 1, 4]

    parts = streamed(client.post("/v1/completions", {**asked, "max_tokens": 2, "stream": True}))
    first = parts[0]["choices"][0]
    assert first["logprobs"] == told and first["text"] == choice["text"]


def test_a_prompt_s_logprobs_have_a_bound(client, monkeypatch):
    monkeypatch.setattr("kinetic.server.prompt_logprobs.LONGEST", 3)
    body = {"prompt": [5, 6, 7, 8], "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = client.post("/v1/completions", body)
    assert reply.status == 400 and reply.json["error"]["param"] == "echo"
    assert client.post("/v1/completions", {**body, "prompt": [5, 6, 7]}).status == 200
