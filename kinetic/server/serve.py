"""Sockets: Starlette on Hypercorn, with a limit of connections and a graceful stop.

Hypercorn's own `serve` has no limit of connections and no way to end answers that outlive the
drain, so its parts are put together here: one `TCPServer` a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config

from kinetic.errors import UsageError
from kinetic.server.app import build_app
from kinetic.server.security import MAX_HEAD
from kinetic.server.service import Service

log = logging.getLogger("kinetic.server")
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
)
_BUSY_BODY = (
    b'{"error":{"message":"too many connections are open; close one or try again",'
    b'"type":"unavailable_error","param":null,"code":"too_many_connections"}}'
)
_WRITE_STALL_MS = 60_000


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host.

    Raises: UsageError where the host or the port cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise UsageError(f"--host {host} is no address of this computer; use 127.0.0.1") from None
    sockets: list[socket.socket] = []
    for family, kind, proto, _, address in dict.fromkeys(found):
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            if port == 0 and sockets:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sock.bind(address)
            sock.listen(128)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if sockets and error.errno == errno.EADDRNOTAVAIL:
                continue  # a host name with an IPv6 address on a system without IPv6
            for other in sockets:
                other.close()
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} is in use by another program; choose another with --port"
                ) from None
            raise UsageError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another"
            ) from None
        sockets.append(sock)
    return sockets


class _Connection(TCPServer):
    """A connection that is over as soon as the client has closed it, not when it times out."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


class Server:
    """One model on some sockets, until it is told to stop."""

    def __init__(self, service: Service, sockets: list[socket.socket]) -> None:
        self.service, self.sockets = service, sockets
        self.port = sockets[0].getsockname()[1]
        self._app = ASGIWrapper(build_app(service))  # type: ignore[arg-type]
        options = service.options
        config = self._config = Config()
        # Before a request's head is complete the connection counts as idle, so this is also
        # how long a head may take.
        config.keep_alive_timeout = options.arrival
        config.include_server_header = False
        config.h11_max_incomplete_size = MAX_HEAD
        config.accesslog = None
        config.errorlog = None
        self._context = WorkerContext(None)
        self._connections: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Stop: once gracefully, a second time at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; then let answers end within the drain time."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for name in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(name, self.stop)
        servers = [await asyncio.start_server(self._connected, sock=sock) for sock in self.sockets]
        ready()
        await self._stop.wait()
        for server in servers:
            server.close()
        await self._drain()

    async def _drain(self) -> None:
        service = self.service
        service.stopping = True
        await self._context.terminated.set()  # idle connections close at once
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(service.options.drain):
                while service.answers and not self._hurry.is_set():
                    await asyncio.sleep(0.05)
        for answers in list(service.answers):
            answers.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self.service.options.max_connections:
            await _turn_away(reader, writer)
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            _limit_stalls(writer)
            loop = asyncio.get_running_loop()
            state: dict[str, Any] = {}
            await _Connection(self._app, loop, self._config, self._context, state, reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:
            log.exception("a connection broke off")
            writer.transport.abort()
        finally:
            self._connections.discard(task)


def _limit_stalls(writer: asyncio.StreamWriter) -> None:
    """A client that stops reading is cut off, where the system can do that."""
    sock = writer.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _WRITE_STALL_MS)


async def _turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(1):
            # A close with unread bytes would be a reset, which can overtake the answer.
            with contextlib.suppress(asyncio.LimitOverrunError):
                await reader.readuntil(b"\r\n\r\n")
            writer.write(_BUSY % (len(_BUSY_BODY), _BUSY_BODY))
            await writer.drain()
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
    writer.transport.abort()
