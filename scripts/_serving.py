"""Starting the servers that scripts compare, and talking to them. Standard library alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _setup import stop

HOST = "127.0.0.1"
_LOADING = 180
"""Seconds that a server may take to come up."""


@dataclass(frozen=True)
class Heard:
    """One streamed answer. *Units*: seconds since it was asked for."""

    first: float
    last: float
    tokens: int
    text: str


class Running:
    """A server that answers."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, method: str, path: str, body: object = None, timeout: float = 600
    ) -> tuple[int, Any]:
        """One request: its status, and its body as JSON, or as text where it is none."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw.decode("utf-8", "replace")

    def stream(self, path: str, body: dict[str, object]) -> Heard:
        """A streamed completion or chat; every event with text counts as a token at least."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=600)
        started = time.perf_counter()
        first = last = 0.0
        text, count = "", 0
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        try:
            connection.request(
                "POST", path, json.dumps(body | usage), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                stop(f"{path} answered {response.status}: {response.read()[:300]!r}")
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                found = event.get("usage") or {}
                count = found.get("completion_tokens", count)
                for choice in event.get("choices") or ():
                    piece = choice.get("text") or (choice.get("delta") or {}).get("content")
                    if piece:
                        last = time.perf_counter() - started
                        first = first or last
                        text += piece
        finally:
            connection.close()
        return Heard(first, last, count, text)


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[Running]:
    """A server on a free port, up and answering; it ends with the block."""
    port = free_port()
    process = subprocess.Popen(
        [*command, "--host", HOST, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    running = Running(port)
    try:
        end = time.monotonic() + _LOADING
        while True:
            if process.poll() is not None:
                stop(f"{command[0]} ended with {process.returncode}: {' '.join(command)}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if running.send("GET", "/health", timeout=5)[0] == 200:
                    break
            if time.monotonic() > end:
                stop(f"{command[0]} did not come up within {_LOADING} seconds.")
            time.sleep(0.1)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def find_llama_server(given: str | None, folder: str | None = None) -> str | None:
    """llama-server, where there is one."""
    return shutil.which(given or "llama-server", path=folder)


def llama_command(program: str, model: Path, parallel: int, *more: str) -> list[str]:
    """llama-server on the CPU, without its page."""
    plain = ("--no-webui", "-ngl", "0", "-dev", "none")
    return [program, "-m", str(model), "--parallel", str(parallel), *plain, *more]
