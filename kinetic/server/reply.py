"""Sending answers: whole or as a stream, and ending the generation when the client has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kinetic.server.errors import ApiError
from kinetic.server.events import Answers, Whole

T = TypeVar("T")
log = logging.getLogger("kinetic.server")


class ClientGone(Exception):
    """Nobody is there to be answered."""


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A value as a JSON response."""
    return Response(
        msgspec.json.encode(value), status, dict(headers or {}), media_type="application/json"
    )


async def whole(request: Request, answers: Answers) -> list[Whole]:
    """All of an answer.

    Raises: ClientGone, once the generation has been ended; ApiError.
    """
    async with answers:
        return await while_connected(request, answers.whole())


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is given up when the client leaves.

    Raises: ClientGone, and whatever the work raises.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        await _stop(working, gone)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Stream(Response):
    """Chunks of bytes as they come; `failed` words an error that comes too late for a status."""

    def __init__(
        self,
        answers: Answers,
        chunks: AsyncIterator[bytes],
        failed: Callable[[ApiError], bytes],
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(media_type=media_type)
        self._answers, self._chunks, self._failed = answers, chunks, failed
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or stop when the client has left."""
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            async with self._answers:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
        finally:
            await _stop(sending, gone)

    async def _send_all(self, send: Send) -> None:
        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for chunk in self._chunks:
                await body(chunk)
        except ApiError as error:
            await body(self._failed(error))
        except Exception:
            log.exception("a stream broke off")
            await body(self._failed(ApiError(500, "the server failed; its log says where")))
        await body(b"", more=False)


def sse(data: bytes, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + data + b"\n\n"


KEEP_ALIVE = b": still working\n\n"
DONE = b"data: [DONE]\n\n"
