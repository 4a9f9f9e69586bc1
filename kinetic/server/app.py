"""Which path is answered by what."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from kinetic.errors import KineticError
from kinetic.server import (
    anthropic,
    llama_server,
    ollama,
    openai,
    openapi,
    page,
    responses,
    vectors,
)
from kinetic.server.errors import ApiError, dialect_of, error_response, from_kinetic
from kinetic.server.reply import ClientGone
from kinetic.server.security import Guard
from kinetic.server.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]
log = logging.getLogger("kinetic.server")

GET: list[tuple[Endpoint, tuple[str, ...]]] = [
    (page.page, ("/",)),
    (openapi.describe, ("/openapi.json",)),
    (openai.health, ("/health", "/v1/health")),
    (openai.models, ("/v1/models", "/models")),
    (openai.one_model, ("/v1/models/{id:path}", "/models/{id:path}")),
    (llama_server.props, ("/props",)),
    (llama_server.slots, ("/slots",)),
    (llama_server.metrics, ("/metrics", "/v1/metrics")),
    (ollama.version, ("/api/version",)),
    (ollama.tags, ("/api/tags",)),
    (ollama.running, ("/api/ps",)),
]
POST: list[tuple[Endpoint, tuple[str, ...]]] = [
    (openai.chat_completions, ("/v1/chat/completions", "/chat/completions")),
    (openai.completions, ("/v1/completions",)),
    (openai.prefill, ("/v1/prefill", "/prefill")),
    (responses.responses, ("/v1/responses", "/responses")),
    (vectors.embeddings, ("/v1/embeddings",)),
    (vectors.rerank, ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")),
    (vectors.llama_embedding, ("/embedding", "/embeddings")),
    (vectors.ollama_embed, ("/api/embed",)),
    (vectors.ollama_embeddings, ("/api/embeddings",)),
    (anthropic.messages, ("/v1/messages", "/messages")),
    (anthropic.count_tokens, ("/v1/messages/count_tokens", "/messages/count_tokens")),
    (ollama.chat, ("/api/chat",)),
    (ollama.generate, ("/api/generate",)),
    (ollama.show, ("/api/show",)),
    (llama_server.completion, ("/completion", "/completions")),
    (llama_server.infill, ("/infill",)),
    (llama_server.tokenize, ("/tokenize",)),
    (llama_server.detokenize, ("/detokenize",)),
    (llama_server.apply_template, ("/apply-template",)),
]


def build_app(service: Service) -> Starlette:
    """The application that serves one model."""
    routes = [Route(path, end, methods=["GET"]) for end, paths in GET for path in paths]
    routes += [Route(path, end, methods=["POST"]) for end, paths in POST for path in paths]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, options=service.options)],
        exception_handlers={
            ApiError: _api_error,
            KineticError: _kinetic_error,
            ClientGone: _nobody,
            ClientDisconnect: _nobody,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )
    app.state.service = service
    app.router.redirect_slashes = False  # a redirect has no words and loses bodies
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(dialect_of(request.url.path), error)


async def _kinetic_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, KineticError)
    return error_response(dialect_of(request.url.path), from_kinetic(error))


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    shown = path[:80].encode("ascii", "replace").decode()
    words = {
        404: f"there is no endpoint {shown}; the list is at /openapi.json",
        405: f"{shown} does not take {request.method}; use {(error.headers or {}).get('Allow')}",
    }
    message = words.get(error.status_code, str(error.detail))
    found = ApiError(error.status_code, message, headers=error.headers or {})
    return error_response(dialect_of(path), found)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    found = ApiError(500, "the server failed on this request; its log says where")
    return error_response(dialect_of(request.url.path), found)
