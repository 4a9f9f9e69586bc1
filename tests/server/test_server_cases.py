"""Complaints that users of other engines had and no other file tests; `cases.json` lists all."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_server_limits import CHAT, begin, metric, slow_steps, until  # noqa: F401 (a fixture)

from kinetic.text.chat_template import ChatTemplate
from kinetic.text.detokenizer import StreamDecoder
from kinetic.text.grammar import AfterReasoning

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "guard": {"const": "YES"}},
    "required": ["answer", "guard"],
    "additionalProperties": False,
}
THINKING = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}<|begin|>{{ m.content }}<|end|>"
    "{% endfor %}"
)


class Listening:
    """The model with another template; what it is asked for is kept."""

    def __init__(self, model, template):
        self._model = model
        self.chat_template = ChatTemplate(template, model.tokenizer)
        self.asked = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def start(self, request, on_event):
        self.asked.append(request)
        return self._model.start(request, on_event)

    @property
    def prompt(self):
        """The last prompt as text."""
        return self.tokenizer.decode(self.asked[-1].prompt_ids, render_special=True)


@pytest.fixture(scope="module")
def thinking(serving, tiny, tiny_path):
    model = Listening(tiny, THINKING)
    client = serving(model, tiny_path)
    client.model = model
    return client


FORMATS = [
    (
        "/v1/chat/completions",
        {
            "messages": HI,
            "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        },
    ),
    (
        "/v1/responses",
        {
            "input": "hi",
            "max_output_tokens": 3,
            "text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}},
        },
    ),
    (
        "/v1/messages",
        {
            "messages": HI,
            "max_tokens": 3,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    ("/api/chat", {"messages": HI, "stream": False, "format": SCHEMA}),
    ("/api/generate", {"prompt": "hi", "stream": False, "format": SCHEMA}),
]


@pytest.mark.parametrize(("path", "body"), FORMATS)
def test_a_form_begins_after_the_thinking_on_every_route(thinking, path, body):  # RS-01
    body = {**body, "options": {"num_predict": 3}} if path.startswith("/api") else body
    assert thinking.post(path, body).status == 200
    assert isinstance(thinking.model.asked[-1].constraint, AfterReasoning)


def test_a_begun_answer_is_gone_on_from_where_thinking_is_on(thinking):  # RS-03, RS-05
    said = "<think>easy</think>The answer is"
    messages = [*HI, {"role": "assistant", "content": said}]
    reply = thinking.chat(messages=messages, max_tokens=2)
    assert reply.status == 200
    assert thinking.model.prompt.endswith("easy</think>The answer is")
    assert thinking.model.prompt.count("<think>") == 1
    message = reply.json["choices"][0]["message"]
    assert not message.get("reasoning_content") and not message["content"].startswith("The")

    begun = {"role": "assistant", "content": "I choose ("}
    reply = thinking.post("/v1/messages", {"messages": [*HI, begun], "max_tokens": 8}).json
    assert reply["content"][0]["type"] == "text"
    assert thinking.model.prompt.endswith("</think>\n\nI choose (")


def test_a_template_s_own_refusal_is_told_and_the_next_request_works(serving, tiny, tiny_path):
    client = serving(Listening(tiny, STRICT), tiny_path)  # CT-01
    twice = [{"role": "user", "content": c} for c in "ab"]
    reply = client.chat(messages=twice)
    assert reply.status == 400 and "Roles must alternate." in reply.json["error"]["message"]
    assert client.chat().status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_form_holds_from_the_first_brace_on(client, stream):  # JS-20, JS-21
    form = {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        asked = {"response_format": form, "max_tokens": 200, "temperature": 1.5, "seed": seed}
        reply = client.chat(stream=stream, **asked)
        if stream:
            chunks = [data["choices"][0]["delta"] for _, data in reply.events[:-1]]
            text = "".join(delta.get("content") or "" for delta in chunks)
        else:
            text = reply.json["choices"][0]["message"]["content"]
        assert text[0] == "{"
        document = json.loads(text)
        assert set(document) == {"answer", "guard"} and document["guard"] == "YES"


def test_a_begun_token_of_the_start_is_not_doubled(client):  # CT-13
    bos = client.service.model.tokenizer.bos_id
    if bos is None:
        pytest.skip("the model has no start token")
    ids = client.service.model.tokenizer.encode_prompt("x")
    assert ids.count(bos) <= 1


# Streams. ----------------------------------------------------------------------------------


def pieces(tokens: list[bytes]) -> list[str]:
    decoder = StreamDecoder(lambda token: tokens[token])
    out = [decoder.push(i) for i in range(len(tokens))]
    return [text for text in [*out, decoder.flush()] if text]


def test_characters_wait_for_their_last_byte():  # ST-01
    cut = ["48", "69", "f09f", "9880", "e4", "bda0", "e5a5bd"]
    assert pieces([bytes.fromhex(x) for x in cut]) == ["H", "i", "\U0001f600", "\u4f60", "\u597d"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("eda080", "\ufffd\ufffd\ufffd"),
        ("f0808041", "\ufffd\ufffd\ufffdA"),
        ("e28041", "\ufffdA"),
        ("c328", "\ufffd("),
    ],
)
def test_bytes_that_are_no_text_are_the_same_in_pieces(data, text):  # ST-03
    whole = bytes.fromhex(data)
    assert "".join(pieces([whole])) == text
    assert "".join(pieces([whole[i : i + 1] for i in range(len(whole))])) == text


def test_who_leaves_the_queue_takes_nobody_along(serving, tiny, tiny_path, slow_steps):  # noqa: F811
    # ST-10, ST-11: one that waits leaves: those that run go on, and it is never begun.
    model = Listening(tiny, THINKING)
    client = serving(model, tiny_path)
    answers = []

    def ask(seed):
        answers.append(client.chat(max_tokens=60, ignore_eos=True, seed=seed).json)

    running = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in running:
        thread.start()
    until(lambda: metric(client, "llamacpp:requests_processing") == 2)
    before = metric(client, "llamacpp:prompt_tokens_total")
    sock = begin(client, "/v1/chat/completions", {**CHAT, "stream": False})
    until(lambda: metric(client, "llamacpp:requests_deferred") == 1)
    sock.close()
    until(lambda: metric(client, "llamacpp:requests_deferred") == 0)
    assert metric(client, "llamacpp:requests_processing") == 2
    for thread in running:
        thread.join(60)
    assert [a["usage"]["completion_tokens"] for a in answers] == [60, 60]
    prompts = sum(a["usage"]["prompt_tokens"] for a in answers)
    cached = sum(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)
    assert metric(client, "llamacpp:prompt_tokens_total") - before <= prompts - cached


# Sizes and prefixes. -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 9000}], "stream": False}),
        ("/api/generate", {"prompt": "x" * 9000, "stream": False}),
        ("/completion", {"prompt": "x" * 9000}),
        ("/v1/responses", {"input": "x" * 9000}),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(client, path, body):  # OL-01
    reply = client.post(path, body)
    assert reply.status == 400
    assert f"> {client.service.n_ctx - 1} maximum" in reply.body.decode()


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_s_own_template_is_refused_on_both_routes(client, path):  # OL-11
    reply = client.post(path, {"prompt": "hi", "messages": HI, "template": "X", "stream": False})
    assert reply.status == 400 and "template" in reply.json["error"]


def test_a_system_text_reaches_the_prompt(client):  # OL-11
    def count(**more):
        body = {"prompt": "hi", "stream": False, "options": {"num_predict": 1}, **more}
        return client.post("/api/generate", body).json["prompt_eval_count"]

    assert count(system="You are a coder.") > count()


def test_a_header_that_changes_does_not_cost_the_prefix(client):  # AN-01, AN-06
    def usage(number):
        marked = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
        billing = f"x-anthropic-billing-header: cc_version=9; cch={number};"
        body = {
            "max_tokens": 1,
            "system": [
                {"type": "text", "text": billing},
                {"type": "text", "text": "You are a coder. " * 20, **marked},
            ],
            "tools": [{"name": "t", "input_schema": {"type": "object"}, **marked}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hey", **marked}]}],
        }
        return client.post("/v1/messages", body).json["usage"]

    usage(1)
    again = usage(2)
    fresh = again["input_tokens"] + again["cache_creation_input_tokens"]
    assert again["cache_read_input_tokens"] > 0.8 * (again["cache_read_input_tokens"] + fresh)


def test_what_claude_code_sends_first(serving, tiny, tiny_path):  # AN-10
    client = serving(tiny, tiny_path, api_keys=("k",))
    assert client.send("HEAD", "/").status == 200
    assert client.get("/v1/models", **{"X-Api-Key": "k"}).status == 200
    headers = {"X-Api-Key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "a-1,b-2"}
    body = {"messages": HI, "max_tokens": 1, "stream": True}
    reply = client.post("/v1/messages?beta=true", body, **headers)
    assert reply.status == 200 and "ping" in [name for name, _ in reply.events]


def test_many_random_tokens_at_once_are_refused_one_by_one(client):  # RB-06
    rng = random.Random(1)
    ids = [rng.randrange(client.service.n_vocab) for _ in range(40960)]
    short = [i for i in ids[:600] if i not in client.service.model.tokenizer.end_ids]

    def ask(n):
        prompt = ids if n % 2 else short
        return client.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).status

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, range(8)))
    assert set(statuses[1::2]) == {400} and set(statuses[::2]) <= {200, 503}
    assert client.chat().status == 200


@pytest.mark.parametrize(
    "body",
    [b'{"prompt": "test", "suffix": test}', b'{"prompt":{"a":1}}', b'{"system_prompt":"text"}'],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/v1/chat/completions"])
def test_bodies_that_ended_other_servers(client, path, body):  # RB-01, RB-08
    assert client.post(path, body).status == 400
    assert client.get("/health").status == 200


@pytest.mark.parametrize(("choice", "calls"), [("none", False), ("auto", None), ("required", True)])
def test_a_choice_by_word_is_followed(client, choice, calls):  # TC-16
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    message = client.chat(tools=[tool], tool_choice=choice, max_tokens=60).json["choices"][0]
    if calls is not None:
        assert bool(message["message"].get("tool_calls")) is calls or (
            message["finish_reason"] == "length"
        )
    for kind in ("any", "auto", "none"):
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        body = {"messages": HI, "max_tokens": 4, "tools": tools, "tool_choice": {"type": kind}}
        assert client.post("/v1/messages", body).status == 200


def test_a_preflight_of_an_unknown_page_gets_nothing(client):  # RB-05, OL-08
    def ask(origin):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        return client.send("OPTIONS", "/v1/chat/completions", headers=headers)

    refused = ask("https://evil.example")
    assert "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-credentials" not in refused.headers
    let_in = ask("chrome-extension://abc")
    assert let_in.status in (200, 204)
    assert let_in.headers["access-control-allow-origin"] == "chrome-extension://abc"


def test_definitions_that_refer_to_each_other_resolve(client):  # JS-08
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/B"}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {
            "A": {"type": "integer", "minimum": 0, "maximum": 99},
            "B": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
    for seed in range(3):
        asked = {"response_format": form, "max_tokens": 200, "temperature": 1.5, "seed": seed}
        document = json.loads(client.chat(**asked).json["choices"][0]["message"]["content"])
        assert 0 <= document["a"] <= 99 and 0 <= document["b"]["a"] <= 99
