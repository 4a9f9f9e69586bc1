"""Connections, bodies, time, queues, and clients that leave."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time

import pytest

LONG = {"ignore_eos": True, "temperature": 1.5, "max_tokens": 900}


def metric(client, name):
    for line in client.get("/metrics").body.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"there is no metric {name}")


def until(true, seconds=10.0):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)


def begin(client, path, body):
    """Send a request and read nothing."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", client.port), timeout=10)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    sock.sendall(head.encode() + data)
    return sock


CHAT = {"messages": [{"role": "user", "content": "hi"}], **LONG}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/completion", {"prompt": "hi", **LONG}),
        ("/api/chat", {"messages": CHAT["messages"], "options": {"num_predict": 900}}),
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 900}),
    ],
)
def test_when_the_client_leaves_the_answer_ends(client, slow_steps, path, body, stream):
    before = metric(client, "kinetic:requests_cancelled_total")
    sock = begin(client, path, {**body, "stream": stream})
    until(lambda: metric(client, "llamacpp:requests_processing") == 1)
    left = time.monotonic()
    sock.close()
    until(lambda: metric(client, "kinetic:requests_cancelled_total") == before + 1)
    assert time.monotonic() - left < 2
    assert metric(client, "llamacpp:requests_processing") == 0


@pytest.fixture
def slow_steps(tiny, monkeypatch):
    """Steps of the engine take at least 20 ms, so that an answer can be left in the middle."""
    step = tiny.engine.step

    def slow(*arguments, **named):
        time.sleep(0.02)
        return step(*arguments, **named)

    monkeypatch.setattr(tiny.engine, "step", slow)


def test_a_full_queue_is_a_503_with_a_time_to_come_back(client, slow_steps):
    running = [begin(client, "/v1/chat/completions", {**CHAT, "stream": True}) for _ in range(6)]
    try:
        until(lambda: metric(client, "llamacpp:requests_processing") == 2)
        until(lambda: metric(client, "llamacpp:requests_deferred") == 4)
        reply = client.chat()
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json["error"]["code"] == "queue_full"
    finally:
        for sock in running:
            sock.close()
    until(lambda: metric(client, "llamacpp:requests_processing") == 0)
    until(lambda: metric(client, "llamacpp:requests_deferred") == 0)
    assert client.chat().status == 200


def test_too_many_connections(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, max_connections=3)
    held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(3)]
    try:
        reply = client.get("/health")
        assert reply.status == 503 and "retry-after" in reply.headers
    finally:
        for sock in held:
            sock.close()

    def answers():
        return client.get("/health").status == 200

    until(answers, 5)


def test_what_does_not_arrive_in_time_is_cut_off(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, arrival=0.5)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as sock:
        sock.sendall(head)  # and no more
        started = time.monotonic()
        assert sock.recv(100) == b""
        assert time.monotonic() - started < 5
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as sock:
        sock.sendall(head + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        assert sock.recv(100).startswith(b"HTTP/1.1 408")


def test_a_request_may_come_a_byte_at_a_time(client):
    body = json.dumps({"messages": CHAT["messages"], "max_tokens": 1}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head + body:
            sock.send(bytes([byte]))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_bodies_and_heads_have_bounds(serving, tiny, tiny_path):
    client = serving(tiny, tiny_path, max_body=1000)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(2 << 30))
    connection.endheaders()
    assert connection.getresponse().status == 413
    chunks = iter([b"x" * 600, b"x" * 600])
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/messages", chunks, headers, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["type"] == "request_too_large"
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20))
        assert sock.recv(100).startswith(b"HTTP/1.1 431")


def test_long_silence_is_broken(serving, tiny, tiny_path, monkeypatch):
    client = serving(tiny, tiny_path, keep_alive=0.05)
    step = tiny.engine.step

    def slow(*arguments, **named):
        time.sleep(0.3)
        return step(*arguments, **named)

    monkeypatch.setattr(tiny.engine, "step", slow)
    messages = CHAT["messages"]
    stream = client.chat(stream=True, max_tokens=2)
    assert stream.body.count(b": still working\n\n") >= 2
    assert stream.events[-1] == (None, "[DONE]")
    body = {"messages": messages, "max_tokens": 2, "stream": True}
    names = [name for name, _ in client.post("/v1/messages", body).events]
    assert names.count("ping") >= 2
    lines = client.post("/api/chat", {"messages": messages, "options": {"num_predict": 2}}).lines
    assert sum(line["message"]["content"] == "" for line in lines) >= 2


def test_an_engine_that_fails_in_mid_stream_says_so(client, tiny, monkeypatch):
    step, calls = tiny.engine.step, []

    def failing(*arguments, **named):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("secret insides")
        return step(*arguments, **named)

    monkeypatch.setattr(tiny.engine, "step", failing)
    messages = CHAT["messages"]
    told = client.chat(stream=True, max_tokens=50, ignore_eos=True)
    assert "error" in told.events[-1][1] and b"[DONE]" not in told.body
    calls.clear()
    body = {"messages": messages, "max_tokens": 50, "stream": True}
    assert client.post("/v1/messages", body).events[-1][0] == "error"
    calls.clear()
    lines = client.post("/api/chat", {"messages": messages}).lines
    assert "error" in lines[-1]
    calls.clear()
    whole = client.chat(max_tokens=50, ignore_eos=True)
    assert whole.status == 500
    assert all(b"secret" not in body for body in (told.body, whole.body))
    monkeypatch.undo()
    assert client.chat().status == 200


def test_a_graceful_stop_lets_answers_end(serving, tiny, tiny_path, slow_steps):
    client = serving(tiny, tiny_path, drain=20.0)
    found = []
    asking = threading.Thread(
        target=lambda: found.append(client.chat(max_tokens=30, ignore_eos=True))
    )
    asking.start()
    until(lambda: client.service.slots.busy == 1)
    idle = socket.create_connection(("127.0.0.1", client.port), timeout=10)
    until(lambda: len(client.server._connections) == 2)
    stop(client)
    asking.join(20)
    assert found[0].status == 200
    assert found[0].json["usage"]["completion_tokens"] == 30
    assert idle.recv(10) == b""  # an idle connection is closed at once
    with pytest.raises(OSError):
        client.get("/health")


def test_a_stop_does_not_wait_longer_than_it_may(serving, tiny, tiny_path, slow_steps):
    client = serving(tiny, tiny_path, drain=0.2)
    sock = begin(client, "/v1/chat/completions", {**CHAT, "stream": True})
    until(lambda: client.service.slots.busy == 1)
    started = time.monotonic()
    stop(client)
    while sock.recv(1 << 16):
        pass
    assert time.monotonic() - started < 5


ASKS = {
    "/v1/chat/completions": {**CHAT, "receipt": True},
    "/v1/completions": {"prompt": "hi", **LONG},
    "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 900, "seed": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 900},
    "/api/chat": {"messages": CHAT["messages"], "options": {"num_predict": 900}},
    "/completion": {"prompt": "hi", **LONG},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ASKS)
def test_an_answer_that_a_stop_cuts_off_never_says_that_it_is_complete(
    serving, tiny, tiny_path, slow_steps, path, stream
):
    client = serving(tiny, tiny_path, drain=0.2)
    found = []
    asking = threading.Thread(
        target=lambda: found.append(client.post(path, {**ASKS[path], "stream": stream}))
    )
    asking.start()
    until(lambda: client.service.slots.busy == 1)
    stop(client)
    asking.join(20)
    (reply,) = found
    if not stream:
        assert reply.status == 503 and "retry-after" in reply.headers
        assert b"cut off" in reply.body
        return
    assert reply.status == 200 and b"[DONE]" not in reply.body
    for word in (b"receipt", b"end_turn", b"message_stop", b"response.completed", b"done_reason"):
        assert word not in reply.body
    last = reply.lines[-1] if path == "/api/chat" else reply.events[-1][1]
    assert "cut off" in json.dumps(last) and b"response.incomplete" not in reply.body
    told = last["response"] if path == "/v1/responses" else last
    assert told["error"]


def stop(client):
    """What SIGTERM does."""
    loop = next(iter(client.service.answers))._loop
    assert isinstance(loop, asyncio.AbstractEventLoop)
    loop.call_soon_threadsafe(client.server.stop)
