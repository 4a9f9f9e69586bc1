#!/usr/bin/env python3
"""Treat a running server badly, then check that it still answers and has not grown.

    python scripts/server_abuse.py -- kinetic serve model.gguf -c 512 --port 8091
    python scripts/server_abuse.py --long -- kinetic serve model.gguf --port 8091

Malformed JSON, wrong types, oversized bodies and headers, chunked bodies, HTTP/2 prefaces, bad
input on every dialect's routes, one byte at a time, disconnects before the body and in the
middle of a stream, 100 connections at once, 8 chats at once. `--long` also waits for a client
that stalls to be cut off. Only the standard library and psutil; ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import psutil

HOST = "127.0.0.1"
JSON = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "Say hello."}]
GROWTH = 0.05
"""How much the memory in use may grow in the last round of everything."""


class Failed(Exception):
    """The server did not behave."""


def request(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 60,
) -> tuple[int, bytes]:
    """One request; its status and body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(port: int, data: bytes, timeout: float = 10) -> bytes:
    """Send bytes and read what comes until the server closes or falls silent."""
    out = b""
    with socket.create_connection((HOST, port), timeout=timeout) as sock:
        try:
            sock.sendall(data)
            sock.settimeout(3)
            while piece := sock.recv(1 << 16):
                out += piece
        except OSError:
            pass
    return out


def expect(what: str, status: int, wanted: Sequence[int]) -> None:
    """Raises: Failed where a status is not one of those wanted."""
    if status not in wanted:
        raise Failed(f"{what}: status {status}, not one of {', '.join(map(str, wanted))}")


# The abuses. -------------------------------------------------------------------------------

BODIES = [
    *(b"{:", b"", b"null", b"[]", b'"x"', b"12", b"\xff\xfe", b"\x00", b'{"a":1}x', b"{'a':1}"),
    *(b'{"messages":null}', b'{"messages":[{}]}', b'{"messages":[{"role":1,"content":2}]}'),
    *(b'{"prompt":{"a":1}}', b'{"messages":[],"temperature":"hot"}', b'{"messages":{}}'),
    '{"messages":[]}'.encode("utf-16"),
    b'{"a":' + b"[" * 100_000,
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"max_tokens":-5}',
    b'{"messages":[{"role":"user","content":"x"}],"n":1e99}',
]
PATHS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/completion", "/tokenize", "/detokenize", "/infill"),
    *("/embedding", "/apply-template", "/api/chat", "/api/generate", "/api/embed"),
]
# What loads a model in Ollama's words, or counts nothing, is a request like any other.
MAY_BE_FINE = (200, 400, 415)


def malformed(port: int) -> None:
    """Bodies that are no requests, on every route."""
    for path in PATHS:
        for body in BODIES:
            status, answer = request(port, "POST", path, body, JSON)
            fine = (400,) if body[:1] != b"{" or body[1:2] == b":" else MAY_BE_FINE
            expect(f"POST {path} {body[:40]!r}", status, fine)
            if status >= 400 and b"error" not in answer:
                raise Failed(f"POST {path}: the error says nothing")
            if b"Traceback" in answer:
                raise Failed(f"POST {path}: the error shows a traceback")


def wrong_addresses(port: int) -> None:
    """Paths and methods that do not exist."""
    for path in ("/nope", "/v1", "/../etc/passwd", "/%00", "/" + "a" * 5000, "//", "/v1/models/x"):
        expect(f"GET {path[:30]}", request(port, "GET", path)[0], (400, 404))
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        status, _ = request(port, method, "/v1/chat/completions")
        expect(f"{method} /v1/chat/completions", status, (400, 404, 405, 501))
    status, _ = request(port, "POST", "/v1/chat/completions", b"{}", {"Content-Type": "text/plain"})
    expect("a body of plain text", status, (415,))
    status, _ = request(port, "GET", "/v1/models", headers={"Host": "evil.example"})
    expect("a Host that is not this computer", status, (403,))
    status, _ = request(port, "POST", "/api/chat", b"{}", {"Origin": "https://evil.example"})
    expect("an Origin that is not this computer", status, (403,))


def oversized(port: int) -> None:
    """Bodies and headers that are too big, or lie about their size."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\n"
    huge = raw(port, f"{head}Content-Length: {2 << 30}\r\n\r\n".encode())
    if b" 413" not in huge[:20]:
        raise Failed(f"a body of 2 GB: {huge[:60]!r}")
    wide = raw(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20))
    if wide and b" 431" not in wide[:20] and b" 400" not in wide[:20]:
        raise Failed(f"a header of 1 MB: {wide[:60]!r}")
    for length in ("-1", "abc", "99999999999999999999999", "1, 2"):
        answer = raw(port, f"{head}Content-Length: {length}\r\n\r\n{{}}".encode())
        if b" 2" in answer[:12]:
            raise Failed(f"Content-Length {length}: {answer[:60]!r}")
    long_text = json.dumps({"messages": [{"role": "user", "content": "word " * 200_000}]})
    status, _ = request(port, "POST", "/v1/chat/completions", long_text.encode(), JSON)
    expect("a prompt of a million characters", status, (400,))


def chunked(port: int) -> None:
    """Chunked bodies, good and bad; HTTP/2's preface; no HTTP at all."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"content":"a"}'
    good = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    if b" 200" not in raw(port, head + good)[:20]:
        raise Failed("a chunked body was not taken")
    for bad in (b"zz\r\nx\r\n", b"-1\r\n\r\n", b"ffffffffffffffffff\r\nx", b"1\r\nxx\r\n"):
        raw(port, head + bad)
    raw(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 64)
    for noise in (b"\x16\x03\x01\x02\x00\x01", b"\x00" * 4096, b"GET\r\n\r\n", b"\r\n" * 100):
        raw(port, noise, timeout=5)


def slow_sender(port: int) -> None:
    """A request that comes one byte at a time is a request."""
    body = b'{"content":"hello"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection((HOST, port), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head + body:
            sock.send(bytes([byte]))
            time.sleep(0.002)
        answer = sock.recv(100)
    if b" 200" not in answer[:20]:
        raise Failed(f"one byte at a time: {answer[:60]!r}")


def leavers(port: int) -> None:
    """Clients that leave before the body and in the middle of an answer."""
    body = json.dumps({"messages": HI, "max_tokens": 200, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    for sent in (b"", b"P", head[:40], head, head + body[:10]):
        with socket.create_connection((HOST, port), timeout=10) as sock:
            sock.sendall(sent)
    for _ in range(3):
        with socket.create_connection((HOST, port), timeout=60) as sock:
            sock.sendall(head + body)
            sock.recv(64)
    still = body.replace(b"true", b"false")
    head = re.sub(rb"Length: \d+", b"Length: %d" % len(still), head)
    with socket.create_connection((HOST, port), timeout=10) as sock:
        sock.sendall(head + still)
        time.sleep(0.2)


def crowd(port: int) -> None:
    """A hundred connections at once: all are answered or turned away."""
    held = []
    try:
        for _ in range(100):
            held.append(socket.create_connection((HOST, port), timeout=10))
        served = refused = 0
        for sock in held:
            try:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = sock.recv(200)
            except OSError:
                answer = b""
            served += b" 200" in answer[:20]
            refused += b" 503" in answer[:20] or not answer
        if served + refused != 100 or not served:
            raise Failed(f"of 100 connections {served} were served and {refused} turned away")
    finally:
        for sock in held:
            sock.close()


def chats(port: int) -> None:
    """Eight chats at once: all are answered."""
    found: list[int] = []

    def one(number: int) -> None:
        content = f"Count to {number + 3}."
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
        data = json.dumps(body).encode()
        found.append(request(port, "POST", "/v1/chat/completions", data, JSON, 300)[0])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for status in found:
        expect("one of 8 chats at once", status, (200, 503))
    if not found.count(200):
        raise Failed("none of 8 chats at once was answered")


def stalled(port: int) -> None:
    """A client that sends its head and then nothing is cut off after 30 seconds."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    started = time.monotonic()
    for sent in (head, head + b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n"):
        with socket.create_connection((HOST, port), timeout=60) as sock:
            sock.sendall(sent)
            sock.recv(100)
    if time.monotonic() - started > 90:
        raise Failed("a client that stalls is not cut off")


ABUSES: list[tuple[str, Callable[[int], None]]] = [
    ("malformed bodies", malformed),
    ("wrong paths, methods, types and names", wrong_addresses),
    ("oversized bodies and headers", oversized),
    ("chunked bodies, HTTP/2, noise", chunked),
    ("one byte at a time", slow_sender),
    ("clients that leave", leavers),
    ("100 connections", crowd),
    ("8 chats at once", chats),
]


def still_answers(port: int) -> None:
    """Raises: Failed where the server no longer answers."""
    deadline = time.monotonic() + 60
    body = json.dumps({"messages": HI, "max_tokens": 4}).encode()
    while True:
        try:
            status, _ = request(port, "POST", "/v1/chat/completions", body, JSON)
        except OSError:
            status = 0
        if status == 200:
            return
        if time.monotonic() > deadline:
            raise Failed(f"the server no longer answers (status {status})")
        time.sleep(0.2)


def settled(process: psutil.Process, port: int) -> int:
    """The memory in use once nothing is under way. *Units*: bytes."""
    time.sleep(1)
    still_answers(port)
    return int(process.memory_info().rss)


def wait_until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    """Raises: Failed where the server does not come up."""
    for _ in range(1200):
        if server.poll() is not None:
            raise Failed(f"the server ended with {server.returncode}")
        try:
            if request(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise Failed("the server did not come up")


def main() -> int:
    """Start the server, abuse it, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="also wait for stalls to be cut off")
    parser.add_argument("--rounds", type=int, default=3, help="how often to do it all [3]")
    parser.add_argument("command", nargs="+", help="after --: the server to start")
    arguments = parser.parse_args()
    command: list[str] = arguments.command
    port = int(command[command.index("--port") + 1]) if "--port" in command else 8080
    server = subprocess.Popen(command)
    failures = 0
    try:
        wait_until_ready(port, server)
        process = psutil.Process(server.pid)
        abuses = [*ABUSES, *([("stalled clients", stalled)] if arguments.long else [])]
        sizes: list[int] = []
        for turn in range(arguments.rounds):
            for name, abuse in abuses if not turn else ABUSES:
                try:
                    abuse(port)
                    still_answers(port)
                    verdict = "ok"
                except (Failed, OSError, http.client.HTTPException) as error:
                    failures += 1
                    verdict = f"FAILED: {error}"
                print(f"{name:40} {verdict}", flush=True)
            sizes.append(settled(process, port))
        # Pools fill and allocators settle in the first rounds; a leak grows in every one.
        growth = sizes[-1] / sizes[-2] - 1 if len(sizes) > 1 else 0.0
        mib = " then ".join(f"{size / 2**20:.1f} MiB" for size in sizes)
        fine = growth <= GROWTH
        failures += not fine
        print(f"{'memory':40} {'ok' if fine else 'FAILED'}: {mib} ({growth:+.1%})")
    finally:
        server.terminate()
        try:
            server.wait(40)
        except subprocess.TimeoutExpired:
            server.kill()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
