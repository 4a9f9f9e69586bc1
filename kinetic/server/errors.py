"""What goes wrong with a request, and how each dialect says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.responses import Response

from kinetic.errors import (
    ContextError,
    InternalError,
    KineticError,
    QueueFull,
    TemplateError,
    UnsupportedError,
    UsageError,
)

Dialect = Literal["openai", "anthropic", "ollama", "llama"]

LLAMA_PATHS = frozenset(
    f"/{name}"
    for name in (
        *("completion", "completions", "tokenize", "detokenize", "apply-template", "props"),
        *("slots", "metrics", "embedding", "embeddings", "infill", "lora-adapters"),
    )
)

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error; `message` is one sentence that says what to do."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """OpenAI's word for this class of errors."""
        return _KINDS.get(self.status, "invalid_request_error")


def dialect_of(path: str) -> Dialect:
    """The dialect whose words a path's errors are in."""
    if path.startswith("/api/"):
        return "ollama"
    if path.startswith(("/v1/messages", "/messages")):
        return "anthropic"
    if path in LLAMA_PATHS or path.startswith("/slots"):
        return "llama"
    return "openai"


def error_body(dialect: Dialect, error: ApiError) -> dict[str, object]:
    """The body of an error in a dialect's own shape."""
    if dialect == "ollama":
        return {"error": error.message}
    if dialect == "anthropic":
        kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    inner: dict[str, object] = {"message": error.message, "type": error.kind}
    if dialect == "llama":
        inner = {"code": error.status, **inner}
    else:
        inner |= {"param": error.param, "code": error.code}
    return {"error": inner | dict(error.extra)}


def error_response(dialect: Dialect, error: ApiError) -> Response:
    """An error as an HTTP response."""
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Response(
        msgspec.json.encode(error_body(dialect, error)),
        error.status,
        headers,
        media_type="application/json",
    )


def cut_off() -> ApiError:
    """What a client is told whose answer the server ended: never that it is complete."""
    return ApiError(
        503,
        "the answer was cut off, as the server is stopping; send the request again",
        code="cut_off",
        retry_after=5,
    )


def from_kinetic(error: KineticError) -> ApiError:
    """An error of the engine as one of the API."""
    if isinstance(error, QueueFull):
        return ApiError(503, str(error), code="queue_full", retry_after=1)
    if isinstance(error, UsageError | ContextError | TemplateError):
        return ApiError(400, str(error))
    if isinstance(error, UnsupportedError):
        return ApiError(400, str(error), code="not_supported")
    if isinstance(error, InternalError):
        # Its words name the insides of the program, which are for the log.
        return ApiError(500, "the engine failed on this request; the server's log says where")
    return ApiError(500, str(error))
