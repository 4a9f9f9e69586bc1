"""`GET /openapi.json`: the routes as they are, their bodies from the shapes that check them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kinetic._version import __version__
from kinetic.server import anthropic, llama_server, ollama, openai, responses, vectors
from kinetic.server.errors import dialect_of
from kinetic.server.fields import Json
from kinetic.server.reply import json_response

BODIES: dict[Any, type] = {
    openai.chat_completions: openai.ChatFields,
    openai.completions: openai.CompletionFields,
    openai.prefill: openai.ChatFields,
    responses.responses: responses.ResponsesBody,
    anthropic.messages: anthropic.MessagesBody,
    anthropic.count_tokens: anthropic.MessagesBody,
    ollama.chat: ollama.ChatBody,
    ollama.generate: ollama.GenerateBody,
    ollama.show: ollama.ShowBody,
    llama_server.completion: llama_server.CompletionBody,
    llama_server.infill: llama_server.InfillBody,
    llama_server.tokenize: llama_server.TokenizeBody,
    llama_server.detokenize: llama_server.DetokenizeBody,
    llama_server.apply_template: openai.ChatFields,
    vectors.embeddings: vectors.EmbeddingsBody,
    vectors.llama_embedding: vectors.LlamaEmbeddingBody,
    vectors.ollama_embed: vectors.OllamaEmbedBody,
    vectors.ollama_embeddings: vectors.OllamaEmbedBody,
    vectors.rerank: vectors.RerankBody,
}
_STREAMS = {
    **dict.fromkeys((openai.chat_completions, openai.completions), "text/event-stream"),
    **dict.fromkeys((responses.responses, anthropic.messages), "text/event-stream"),
    **dict.fromkeys((llama_server.completion, llama_server.infill), "text/event-stream"),
    **dict.fromkeys((ollama.chat, ollama.generate), "application/x-ndjson"),
}
_OTHER_TYPES = {"/": "text/html", "/metrics": "text/plain", "/v1/metrics": "text/plain"}
_ERRORS = {
    "400": "The request makes no sense or cannot be served.",
    "401": "The API key is missing or wrong.",
    "403": "The Host or the Origin is not let in.",
    "404": "There is no such thing here.",
    "405": "The path does not take this method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "414": "The path is too long.",
    "415": "The body is not JSON that says so.",
    "431": "The headers are too large.",
    "500": "The server failed.",
    "503": "Too many requests wait, or the server is stopping.",
}


async def describe(request: Request) -> Response:
    """GET /openapi.json."""
    return json_response(document(request.app.routes))


def document(routes: Sequence[BaseRoute]) -> Json:
    """The OpenAPI document of some routes."""
    shapes = [*dict.fromkeys(BODIES.values())]
    schemas, components = msgspec.json.schema_components(
        shapes, ref_template="#/components/schemas/{name}"
    )
    named = dict(zip(shapes, schemas, strict=True))
    paths: dict[str, Json] = {}
    for route in routes:
        if not isinstance(route, Route):
            continue
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(path, method, route, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kinetic",
            "version": __version__,
            "description": "One model in the words of OpenAI, Anthropic, Ollama and llama-server.",
        },
        "paths": paths,
        "components": {
            "schemas": {name.lstrip("_"): schema for name, schema in components.items()}
            | {"Error": {"type": "object"}},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _operation(path: str, method: str, route: Route, named: dict[type, Json]) -> Json:
    endpoint = route.endpoint
    kind = _OTHER_TYPES.get(path, "application/json")
    content: Json = {kind: {"schema": {} if kind == "application/json" else {"type": "string"}}}
    if endpoint in _STREAMS:
        content[_STREAMS[endpoint]] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    out: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}_{path}").strip("_"),
        "tags": [dialect_of(path)],
        "summary": _summary(endpoint),
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{code: {"description": words, "content": error} for code, words in _ERRORS.items()},
        },
    }
    if "{" in path:
        names = re.findall(r"\{(\w+)\}", path)
        out["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    body = BODIES.get(endpoint)
    if body is not None:
        schema = {"application/json": {"schema": named[body]}}
        out["requestBody"] = {"required": True, "content": schema}
    return out


def _summary(endpoint: object) -> str:
    words = (getattr(endpoint, "__doc__", None) or "").strip().splitlines()
    return words[0] if words else ""
