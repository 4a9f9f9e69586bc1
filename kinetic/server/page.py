"""The chat page at `/`: one file, nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from kinetic.server.body import service_of
from kinetic.server.errors import ApiError

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


async def page(request: Request) -> Response:
    """GET /; a program that asks whether somebody is there gets 200 too."""
    if not service_of(request).options.webui:
        if request.method == "HEAD":
            return Response()
        raise ApiError(404, "the chat page is turned off; the API is at /v1")
    text = (files("kinetic.server") / "static" / "index.html").read_text("utf-8")
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(text, headers=headers, media_type="text/html")
