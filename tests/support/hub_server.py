"""A hub on this machine that behaves as badly as a test asks for.

    with FakeHub({"org/repo": {"model.gguf": data}}) as hub:
        hub.cut_after = 100_000       # every answer breaks off there, the first few times
        kinetic pull org/repo with HF_ENDPOINT=hub.url

It keeps what it was asked in `requests`, so that a test can see what was fetched twice.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """One request; `range` is what of the file it asked for."""

    path: str
    headers: dict[str, str]
    range: tuple[int, int] | None = None
    sent: int = 0


@dataclass
class FakeHub:
    """Repositories as {name: {path: bytes}}, and what is wrong with the server."""

    repos: dict[str, dict[str, bytes]]
    token: str | None = None
    """Without this bearer token the answer is 401."""
    gated: bool = False
    """403 even with the token."""
    busy: int = 0
    """So many requests for files get a 429."""
    retry_after: str | None = "0"
    cut_after: int | None = None
    cuts: int = 10**9
    wrong_at: int | None = None
    """The first answer that holds this byte has it wrong."""
    always_wrong: bool = False
    ranges: bool = True
    shift: int = 0
    """Answer with a range that starts so many bytes later than asked."""
    total_lie: int = 0
    """Added to the file's size in every Content-Range."""
    listed_lie: int = 0
    """Added to the file's size in the list."""
    page: bool = False
    """A web page with status 200 in place of a file."""
    list_page: bool = False
    empty: bool = False
    bytes_per_second: int | None = None
    redirect_to: FakeHub | None = None
    expire_after: int | None = None
    """As the host that is redirected to: 403 after so many requests."""
    version: int = 1
    """Part of the ETag."""
    no_sha: bool = False
    extra: dict[str, object] = field(default_factory=dict)
    """More fields of a repository's description."""
    conversions: list[str] = field(default_factory=list)
    certificate: Path | None = None
    """Speak TLS with this certificate; the key lies beside it as `.key`."""
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        hub = self
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    hub.answer(self)
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if self.certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.certificate.with_suffix(".key"))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"
        # Another name of this machine, so that a redirect there goes to another host.
        self.other_url = self.url.replace("127.0.0.1", "localhost")
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def file_requests(self) -> list[Request]:
        """Requests for files, without those for lists."""
        return [r for r in self.requests if "/resolve/" in r.path]

    def answer(self, http: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(http.path)
        request = Request(unquote(parts.path), {k.lower(): v for k, v in http.headers.items()})
        with self.lock:
            self.requests.append(request)
            seen = sum(1 for r in self.requests if "/resolve/" in r.path)
        if (
            self.token is not None
            and request.headers.get("authorization") != f"Bearer {self.token}"
        ):
            return _status(http, 401)
        if self.gated:
            return _status(http, 403)
        if request.path == "/api/models":
            wanted = parse_qs(parts.query).get("filter", [""])[0]
            found = self.conversions if wanted.startswith("base_model:quantized:") else []
            return _json(http, [{"id": name} for name in found])
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)", request.path)
        if listed is not None:
            return self._list(http, listed[1])
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", request.path)
        data = self.repos.get(file[1], {}).get(file[2]) if file is not None else None
        if data is None:
            return _status(http, 404)
        with self.lock:
            busy, self.busy = self.busy > 0, max(self.busy - 1, 0)
        if busy:
            headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return _status(http, 429, headers)
        if self.expire_after is not None and seen > self.expire_after:
            self.expire_after = None
            return _status(http, 403)
        if self.redirect_to is not None:
            url = self.redirect_to.other_url + http.path
            return _status(http, 302, {"Location": url})
        self._file(http, request, data)

    def _list(self, http: BaseHTTPRequestHandler, name: str) -> None:
        if self.list_page:
            return _page(http)
        files = self.repos.get(name)
        if files is None:
            return _status(http, 404)
        siblings = []
        for path, data in files.items():
            size = len(data) + self.listed_lie
            git = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
            entry: dict[str, object] = {"rfilename": path, "size": size, "blobId": git}
            if not self.no_sha:
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha, "size": size, "pointerSize": 135}
            siblings.append(entry)
        _json(http, {"id": name, "sha": REVISION, "siblings": siblings, **self.extra})

    def _file(self, http: BaseHTTPRequestHandler, request: Request, data: bytes) -> None:
        if self.page:
            return _page(http)
        if self.empty:
            return _status(http, 200)
        etag = f'"v{self.version}-{len(data)}"'
        told = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        first, last, status = 0, len(data) - 1, 200
        condition = request.headers.get("if-range")
        if told is not None and self.ranges and condition in (None, etag):
            first, last, status = int(told[1]) + self.shift, min(int(told[2]), last), 206
            request.range = (first, last + 1)
        body = bytearray(data[first : last + 1])
        self._spoil(body, first)
        http.send_response(status)
        http.send_header("ETag", etag)
        http.send_header("Content-Length", str(len(body)))
        http.send_header("Content-Type", "application/octet-stream")
        if status == 206:
            total = len(data) + self.total_lie
            http.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        http.end_headers()
        self._send(http, request, bytes(body))

    def _spoil(self, body: bytearray, first: int) -> None:
        with self.lock:
            at = self.wrong_at
            if at is not None and first <= at < first + len(body):
                body[at - first] ^= 0xFF
                if not self.always_wrong:
                    self.wrong_at = None

    def _send(self, http: BaseHTTPRequestHandler, request: Request, body: bytes) -> None:
        with self.lock:
            spared = not self.ranges and "range" in request.headers  # the client leaves anyway
            cut = self.cut_after is not None and len(body) > self.cut_after
            cut = cut and self.cuts > 0 and not spared
            self.cuts -= cut
        if cut:
            body = body[: self.cut_after]
        for at in range(0, len(body), 16384):
            block = body[at : at + 16384]
            http.wfile.write(block)
            request.sent += len(block)
            if self.bytes_per_second:
                time.sleep(len(block) / self.bytes_per_second)
        http.wfile.flush()
        if cut:
            http.close_connection = True


def _status(
    http: BaseHTTPRequestHandler, status: int, headers: dict[str, str] | None = None
) -> None:
    http.send_response(status)
    for name, value in (headers or {}).items():
        http.send_header(name, value)
    http.send_header("Content-Length", "0")
    http.end_headers()


def _json(http: BaseHTTPRequestHandler, value: object) -> None:
    _body(http, json.dumps(value).encode(), "application/json")


def _page(http: BaseHTTPRequestHandler) -> None:
    _body(http, b"<html><body>Please log in</body></html>", "text/html; charset=utf-8")


def _body(http: BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
    http.send_response(200)
    http.send_header("Content-Type", kind)
    http.send_header("Content-Length", str(len(body)))
    http.end_headers()
    http.wfile.write(body)
