"""Who may ask: the Host and Origin of a request, API keys, content types.

Three dangers: a web page that rebinds its own host name to this computer (Host), a web page
that sends requests from the user's browser (Origin, content type), and everybody else on the
network (keys).
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kinetic.server.errors import ApiError, dialect_of, error_response
from kinetic.server.service import ServerOptions

_APP_SCHEMES = (
    *("app", "file", "tauri", "vscode-webview", "vscode-file", "capacitor"),
    *("chrome-extension", "moz-extension", "safari-web-extension"),
)
_OPEN_PATHS = ("/health", "/v1/health", "/")
MAX_HEAD = 64 << 10
_MAX_TARGET = 16 << 10
_METHODS = "GET, POST, HEAD, OPTIONS, DELETE"


def is_loopback(host: str) -> bool:
    """Whether a host, without its port, is this computer."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def host_of(value: str) -> str:
    """The host of a Host header, its port left out."""
    if value.startswith("["):
        return value[: value.find("]") + 1]
    return value.rpartition(":")[0] if ":" in value else value


def _check_head(scope: Scope, headers: Headers) -> None:
    """Raises: ApiError for a head that is too big, or that may be read in two ways."""
    close = {"Connection": "close"}
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if target > _MAX_TARGET:
        raise ApiError(
            414, f"the path is longer than {_MAX_TARGET} bytes; send less", headers=close
        )
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
        raise ApiError(
            431, f"the headers are larger than {MAX_HEAD} bytes; send less", headers=close
        )
    if "transfer-encoding" in headers and "content-length" in headers:
        # What stands between client and server may believe the other one of them.
        raise ApiError(400, "give Transfer-Encoding or Content-Length, not both", headers=close)
    host = headers.get("host", "")
    port = host.removeprefix(host_of(host)).removeprefix(":")
    if port and not (port.isascii() and port.isdecimal() and int(port[:6]) < 1 << 16):
        raise ApiError(400, "the Host of this request has a port that is no number; correct it")


class Guard:
    """Refuses what may not come in, before a body is read; answers preflights."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app, self.options = app, options
        self._hosts = {host.lower() for host in options.allow_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in options.allow_origins}
        self._keys = [key.encode() for key in options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
                return
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        allowed = not origin or self._origin_allowed(origin, headers.get("host", ""))
        response: Response | None = None
        try:
            _check_head(scope, headers)
            self._check_host(headers)
            if not allowed:
                raise ApiError(
                    403,
                    "requests from this web page's Origin are refused; start the server with "
                    "--allow-origin to let it in",
                )
            if scope["method"] == "OPTIONS":
                response = self._preflight(headers)
            else:
                scope["kinetic.api_key"] = self._check_key(scope["path"], headers)
                self._check_type(scope, headers)
        except ApiError as error:
            response = error_response(dialect_of(scope["path"]), error)
        passed = self._with_origin(send, origin) if origin and allowed else send
        if response is not None:
            await response(scope, receive, passed)
        else:
            await self.app(scope, receive, passed)

    def _check_host(self, headers: Headers) -> None:
        """On a loopback address without a key, only this computer's own names are answered."""
        if self.options.api_keys or not is_loopback(self.options.host):
            return
        host = host_of(headers.get("host", "")).lower()
        if not is_loopback(host) and host not in self._hosts and "*" not in self._hosts:
            raise ApiError(
                403,
                "the Host of this request is not this computer; ask for localhost, or start the "
                "server with --allow-host",
            )

    def _origin_allowed(self, origin: str, host: str) -> bool:
        origin = origin.lower().rstrip("/")
        if origin in self._origins or "*" in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme in _APP_SCHEMES:
            return True
        if parts.scheme not in ("http", "https"):
            return False
        # A page that came from this very server may speak to it.
        return is_loopback(name) or (parts.netloc == host.lower() and bool(host))

    def _check_key(self, path: str, headers: Headers) -> str:
        if not self._keys or path in _OPEN_PATHS:
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        data = given.encode("utf-8", "replace")
        # Every key is compared, so that the time taken tells nothing.
        if not sum(hmac.compare_digest(data, key) for key in self._keys):
            raise ApiError(
                401,
                "the API key is missing or wrong; send Authorization: Bearer KEY or X-Api-Key: KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return given

    def _check_type(self, scope: Scope, headers: Headers) -> None:
        """OpenAI's and Anthropic's routes take JSON that says so.

        A web page cannot send that to another site without asking first.
        """
        if scope["method"] != "POST" or dialect_of(scope["path"]) in ("ollama", "llama"):
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(415, "send the body as JSON, with Content-Type: application/json")

    def _preflight(self, headers: Headers) -> Response:
        wanted = headers.get("access-control-request-headers", "")
        return Response(
            status_code=204,
            headers={
                "Allow": _METHODS,
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": wanted or "content-type, authorization, x-api-key",
                "Access-Control-Max-Age": "600",
            },
        )

    @staticmethod
    def _with_origin(send: Send, origin: str) -> Send:
        async def with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Credentials are never allowed, and no origin but an allowed one is named.
                more = [(b"access-control-allow-origin", origin.encode("latin-1", "replace"))]
                more.append((b"vary", b"Origin"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        return with_origin
