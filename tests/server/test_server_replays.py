"""What well-known programs send, with their fields and headers, is answered."""

from __future__ import annotations

import pytest

SAID = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
]
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
SAMPLERS = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "typical_p": 1,
    "repetition_penalty": 1.1,
    "rep_pen": 1.1,
    "rep_pen_range": 1024,
    "tfs": 1,
    "seed": 5,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "sampler_order": [6, 0, 1],
    "ban_eos_token": False,
    "smoothing": 0,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "add_bos_token": True,
}
CLIENTS = {
    "Open WebUI, OpenAI mode": (
        "/v1/chat/completions",
        {"model": "tiny", "messages": SAID, "stream": True, "stream_options": None},
        {"Authorization": "Bearer sk-1", "User-Agent": "Python/3.11 aiohttp/3.11"},
    ),
    "Open WebUI, Ollama mode": (
        "/api/chat",
        {
            "model": "tiny:latest",
            "messages": [{"role": "user", "content": "hi"}],
            "options": {"num_predict": 3, "num_ctx": 2048, "top_k": 20, "stop": ["x"]},
            "stream": True,
            "keep_alive": "5m",
        },
        {"Content-Type": "application/json"},
    ),
    "Continue, chat": (
        "/v1/chat/completions",
        {"messages": SAID, "stream": True, "stop": ["</s>", "\n\n\n"], "temperature": 0.5},
        {"X-Api-Key": "none"},
    ),
    "Continue, autocomplete": (
        "/v1/completions",
        {"prompt": "def f(", "stop": ["\n"], "stream": True, "logprobs": None},
        {},
    ),
    "SillyTavern, text": ("/v1/completions", {"prompt": "hi", "stream": True, **SAMPLERS}, {}),
    "SillyTavern, llama-server": (
        "/completion",
        {"prompt": "hi", "n_predict": 3, "stream": True, "cache_prompt": True, **SAMPLERS},
        {},
    ),
    "SillyTavern, chat": (
        "/v1/chat/completions",
        {
            "messages": SAID,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "seed": 3,
            "logit_bias": {"5": -100, "6": 1.5},
        },
        {},
    ),
    "LangChain": (
        "/v1/chat/completions",
        {"messages": SAID, "n": 1, "tools": [TOOL], "tool_choice": "auto", "top_p": None}
        | {"parallel_tool_calls": False, "stop": None, "stream": False},
        {"User-Agent": "OpenAI/Python 1.109"},
    ),
    "LlamaIndex": (
        "/v1/chat/completions",
        {"messages": SAID, "max_completion_tokens": 3, "temperature": 0.1},
        {"User-Agent": "OpenAI/Python 1.109", "X-Stainless-Lang": "python"},
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_known_program_is_answered(client, name):
    path, body, headers = CLIENTS[name]
    if "n_predict" not in body and "options" not in body and "max_completion_tokens" not in body:
        body = {**body, "max_tokens": 3}
    reply = client.post(path, body, **headers)
    assert reply.status == 200, reply.body
    if path.startswith("/v1") and body.get("stream"):
        assert reply.events[-1] == (None, "[DONE]")


def test_a_browser_gets_the_page(client):
    page = client.get("/", Accept="text/html")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"http://" not in page.body and b"https://" not in page.body
    assert client.chat(stream=True).status == 200


def test_the_page_can_be_turned_off(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, webui=False)
    assert client.get("/").status == 404
    assert client.send("HEAD", "/").status == 200


def test_every_route_describes_itself(client):
    document = client.get("/openapi.json").json
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/completion"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][name]["properties"]


def test_prefill_runs_ahead_of_a_message(client):
    talk = [{"role": "user", "content": "Here is the report: all is well. What does it"}]
    reply = client.post("/v1/prefill", {"messages": talk})
    assert reply.json["object"] == "prefill" and reply.json["cached_tokens"] > 10
    whole = client.post("/v1/messages/count_tokens", {"messages": talk}).json["input_tokens"]
    assert reply.json["cached_tokens"] < whole


def test_prefill_is_what_the_request_begins_with(client):
    text = "Here is the report: " + "all is well. " * 8 + "What does it"
    more = [{"role": "user", "content": text + " say?"}]
    asked = {"messages": more, "max_tokens": 12, "temperature": 1.2, "seed": 3}
    cold = client.post("/v1/chat/completions", {**asked, "cache_salt": "cold"}).json
    ahead = {"messages": [{"role": "user", "content": text}], "cache_salt": "warm"}
    ran = client.post("/v1/prefill", ahead).json["cached_tokens"]
    warm = client.post("/v1/chat/completions", {**asked, "cache_salt": "warm"}).json
    assert warm["choices"] == cold["choices"]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.7 * ran > 0
