"""What a request asks for and does not get is refused in words, never left out in silence."""

from __future__ import annotations

import http.client
import socket

import pytest

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, COMPLETION, INFILL = "/v1/responses", "/completion", "/infill"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
HELD = {"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}
BASE = {
    CHAT: {"messages": HI, "max_tokens": 2},
    TEXT: {"prompt": "hi", "max_tokens": 2},
    MESSAGES: {"messages": HI, "max_tokens": 2},
    RESPONSES: {"input": "hi", "max_output_tokens": 2},
    COMPLETION: {"prompt": "hi", "n_predict": 2},
    INFILL: {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    OLLAMA: {"messages": HI, "stream": False},
    GENERATE: {"prompt": "hi", "stream": False},
}


def schema(of):
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": of}}}


def output(call_id):
    return {"input": [{"type": "function_call_output", "output": "1"} | call_id]}


def said_by(role):
    return {"messages": [{"role": role, "content": "x"}, *HI]}


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (MESSAGES, {"output_format": {"type": "json_schema"}}, "output_format.schema"),
        (MESSAGES, {"output_format": {"type": "xml", "schema": {}}}, "output_format.type"),
        (MESSAGES, {"output_format": {}}, "output_format.schema"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        (MESSAGES, {"output_config": {"format": "json"}}, "output_config.format must be"),
        (MESSAGES, {"max_tokens": None}, "max_tokens is missing"),
        (MESSAGES, {"tool_choice": {"type": "required"}}, '"any"'),
        (MESSAGES, {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "offers no tools; give some"),
        (RESPONSES, {"input": None}, "input is missing"),
        (RESPONSES, {"input": []}, "input is missing"),
        (RESPONSES, {"input": ""}, "input is missing"),
        (RESPONSES, {"input": [{"type": "made_up"}]}, "input holds no message"),
        (RESPONSES, output({}), "input[0].call_id"),
        (RESPONSES, output({"call_id": 5}), "input[0].call_id"),
        (RESPONSES, {"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name"),
        (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
        (RESPONSES, {"text": {"format": "json"}}, "text.format must be"),
        (RESPONSES, {"tool_choice": {"type": "function"}}, '{"type": "function", "name": ...}'),
        (RESPONSES, {"tool_choice": "sometimes"}, "tool_choice must be"),
        (RESPONSES, {"input": said_by("king")["messages"]}, "king"),
        (CHAT, said_by("king"), "system, developer, user, assistant or tool"),
        (OLLAMA, said_by("king"), "messages[0].role 'king'"),
        (CHAT, {"functions": []}, "use tools"),
        (CHAT, {"function_call": "auto"}, "use tool_choice"),
        (CHAT, schema({"type": "objekt"}), "schema's /type must be one of null"),
        (CHAT, schema({"minimum": "x"}), "schema's /minimum must be a number"),
        (CHAT, schema({"items": {"required": "a"}}), "schema's /items/required must be a list"),
        (CHAT, schema({"maxLength": -1}), "schema's /maxLength must be a whole number"),
        (CHAT, schema({"enum": []}), "schema's /enum must be a list of at least one value"),
        (CHAT, schema({"multipleOf": 0}), "schema's /multipleOf must be a number above 0"),
        (CHAT, schema({"required": None}), "schema's /required must be a list of strings"),
        (CHAT, schema({"properties": []}), "schema's /properties must be an object"),
        (TEXT, {"suffix": ")"}, "/infill"),
        (TEXT, {"best_of": 3}, "best_of"),
        (TEXT, {"n": 2, "best_of": 1}, "best_of"),
        (COMPLETION, {"samplers": ["top_k", "magic"]}, "'magic'"),
        (COMPLETION, {"samplers": ["temperature", "top_k"]}, "in the order"),
        (COMPLETION, {"samplers": "tk"}, "in the order"),
        (COMPLETION, {"samplers": [3]}, "samplers[0] must be a string"),
        (COMPLETION, {"lora": [{"id": 0, "scale": 0.5}]}, "lora names 0"),
        (COMPLETION, {"lora": [{"id": -1}]}, "lora names -1"),
        (COMPLETION, {"dynatemp_range": -0.5}, "dynatemp_range must be at least 0"),
        (COMPLETION, {"dynatemp_range": 0.5}, "dynatemp_range is not supported"),
        (COMPLETION, HELD, "json_schema and grammar"),
        (INFILL, {"input_prefix": None}, "input_prefix"),
        (INFILL, {"input_extra": [{"text": 5}]}, "input_extra[0].text must be a string"),
        (INFILL, {"input_extra": [{}]}, "input_extra[0].text is missing"),
        (OLLAMA, {"options": {"num_predict": -3}}, "options.num_predict must be at least -2"),
        (OLLAMA, {"options": {"num_predict": "x"}}, "options.num_predict must be a whole number"),
        (
            OLLAMA,
            {"options": {"temperature": "hot"}},
            "options.temperature must be a number, not a string",
        ),
        (OLLAMA, {"options": {"stop": [1]}}, "options.stop[0] must be a string"),
        *(
            (path, {"receipt": True}, "receipt is not supported")
            for path in (MESSAGES, RESPONSES, COMPLETION, OLLAMA, GENERATE)
        ),
    ],
)
def test_it_is_refused_in_words(client, path, more, words):
    reply = client.post(path, BASE[path] | more)
    assert reply.status == 400, reply.body
    told = reply.json["error"]
    message = told if isinstance(told, str) else told["message"]
    assert words in message, message


def test_an_infill_of_nothing_names_what_is_missing(client):
    reply = client.post(INFILL, {})
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("input_prefix is missing")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (MESSAGES, {"output_format": None, "output_config": {"effort": "low"}}),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": {"type": "boolean"}}}),
        (RESPONSES, {"input": [], "instructions": "x"}),
        (CHAT, said_by("developer")),
        (TEXT, {"suffix": "", "best_of": 1}),
        (COMPLETION, {"samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"]}),
        (COMPLETION, {"samplers": "edskypmxt", "dynatemp_range": 0}),
        (COMPLETION, {"lora": []}),
        (OLLAMA, {"options": {"num_predict": 2, "temperature": 1}}),
        (CHAT, {"receipt": False}),
    ],
)
def test_what_makes_sense_is_answered(client, path, more):
    reply = client.post(path, BASE[path] | more)
    assert reply.status == 200, reply.body


def test_a_sampler_that_is_left_out_is_off(client):
    body = {**BASE[COMPLETION], "top_k": 1, "min_p": 0.5}
    told = client.post(COMPLETION, {**body, "samplers": ["top_k", "temperature"]}).json
    settings = told["generation_settings"]
    assert settings["top_k"] == 1 and settings["min_p"] == 0 and settings["top_p"] == 1


def test_response_fields_are_all_that_comes(client):
    fields = ["content", "generation_settings/n_predict", "no_such/field"]
    body = {**BASE[COMPLETION], "response_fields": fields}
    told = client.post(COMPLETION, body).json
    assert set(told) == {"content", "generation_settings/n_predict"}
    assert told["generation_settings/n_predict"] == 2
    last = client.post(COMPLETION, {**body, "stream": True}).events[-1][1]
    assert set(last) == {"content", "generation_settings/n_predict"}


def raw(client, data):
    """The first bytes of what a connection answers to some bytes."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as sock:
        sock.sendall(data)
        return sock.recv(4096)


def test_a_path_or_a_header_that_is_too_long(client):
    host = b" HTTP/1.1\r\nHost: localhost\r\n"
    assert raw(client, b"GET /" + b"x" * 70_000 + host + b"\r\n").startswith(b"HTTP/1.1 4")
    assert raw(client, b"GET /" + b"x" * 20_000 + host + b"\r\n").startswith(b"HTTP/1.1 414")
    long = b"GET /health" + host + b"X: " + b"x" * 70_000 + b"\r\n\r\n"
    assert raw(client, long).startswith(b"HTTP/1.1 431")
    assert client.get("/health").status == 200


@pytest.mark.parametrize("path", ["/health/", "/v1/chat/completions/", "/api/tags/"])
def test_a_path_with_a_slash_too_many_is_a_404_in_words(client, path):
    reply = client.get(path)
    assert reply.status == 404 and "location" not in reply.headers
    assert b"/openapi.json" in reply.body


def test_two_lengths_of_a_body_are_refused(client):
    head = (
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    reply = raw(client, head)
    assert reply.startswith(b"HTTP/1.1 400") and b"close" in reply.lower()


@pytest.mark.parametrize("host", ["localhost:abc", "localhost:99999", "[::1]:x", "[::1]x"])
def test_a_port_that_is_no_number_is_refused(client, host):
    assert client.get("/health", Host=host).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "[::1]:8080", "[::1]", "localhost:"])
def test_a_host_with_a_port_is_let_in(client, host):
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.request("GET", "/health", headers={"Host": host})
    assert connection.getresponse().status == 200
    connection.close()
