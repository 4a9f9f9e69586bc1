"""A real server on a real socket, serving a tiny model from a thread of the test's process."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import tiny_model

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("msgspec")

from kinetic.api import Model
from kinetic.server.serve import Server, listen
from kinetic.server.service import ServerOptions, Service

TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}"
    "</call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


@dataclass
class Reply:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes
    json: Any = field(default=None)

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        """The server-sent events, as (name, data)."""
        out = []
        for block in self.body.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            if not lines:
                continue
            name = next((x[7:] for x in lines if x.startswith("event: ")), None)
            data = "\n".join(x[6:] for x in lines if x.startswith("data: "))
            out.append((name, data if data == "[DONE]" else json.loads(data)))
        return out

    @property
    def lines(self) -> list[Any]:
        """The lines of JSON."""
        return [json.loads(line) for line in self.body.splitlines()]


class Client:
    """Speaks to one server."""

    def __init__(self, server: Server, service: Service) -> None:
        self.server, self.service, self.port = server, service, server.port

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own; a body that is not bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, data, {**sent, **(headers or {})})
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        reply = Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, raw)
        if "json" in reply.headers.get("content-type", "") and b"\n" not in raw.strip():
            reply.json = json.loads(raw) if raw else None
        return reply

    def get(self, path: str, **headers: str) -> Reply:
        """GET."""
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        """POST."""
        return self.send("POST", path, body, headers)

    def chat(self, text: str = "hi", **more: object) -> Reply:
        """A chat completion with one user message."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
        return self.post("/v1/chat/completions", body)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a chat template."""
    path = tmp_path_factory.mktemp("server") / "tiny.gguf"
    return tiny_model("qwen2", path, metadata={"tokenizer.chat_template": TEMPLATE})


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[Model]:
    """The tiny model, loaded."""
    model = Model.load(tiny_path, threads=1, parallel=2, queue_limit=4)
    yield model
    model.close()


Serve = Callable[..., Client]


@pytest.fixture(scope="session")
def serving() -> Iterator[Serve]:
    """Starts servers; they stop at the end of the session."""
    running: list[tuple[Server, asyncio.AbstractEventLoop, threading.Thread]] = []

    def serve(model: Model, path: Path, **options: Any) -> Client:
        chosen = ServerOptions(**{"port": 0, "parallel": 2, "drain": 1.0, **options})
        service = Service(model, path, chosen)
        server = Server(service, listen("127.0.0.1", 0))
        ready = threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def run() -> None:
            loops.append(asyncio.get_running_loop())
            await server.run(ready.set)

        thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        thread.start()
        assert ready.wait(20)
        running.append((server, loops[0], thread))
        return Client(server, service)

    yield serve
    for server, loop, thread in running:
        if not loop.is_closed():
            loop.call_soon_threadsafe(server.stop)
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def client(serving: Serve, tiny: Model, tiny_path: Path) -> Client:
    """A server of the tiny model with the default options."""
    return serving(tiny, tiny_path)
