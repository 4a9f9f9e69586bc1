"""Embeddings and reranking, in the words of every dialect that has them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from kinetic.errors import KineticError
from kinetic.server.body import read, service_of
from kinetic.server.errors import ApiError, from_kinetic
from kinetic.server.fields import Json
from kinetic.server.ollama import tagged
from kinetic.server.reply import json_response
from kinetic.server.service import Service

MAX_TEXTS = 256
Input = str | list[Any]


class EmbeddingsBody(Struct, kw_only=True):
    """The body of /v1/embeddings."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None


class LlamaEmbeddingBody(Struct, kw_only=True):
    """The body of /embedding."""

    content: Input | None = None
    input: Input | None = None
    embd_normalize: int | None = None


class OllamaEmbedBody(Struct, kw_only=True):
    """The body of /api/embed, and of the older /api/embeddings."""

    model: str | None = None
    input: Input | None = None
    prompt: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class RerankBody(Struct, kw_only=True):
    """The body of /v1/rerank; `texts` is another program's word for the documents."""

    query: str
    documents: list[str | Json] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    model: str | None = None


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings."""
    service = service_of(request)
    body = await read(request, EmbeddingsBody)
    texts = _texts(body.input, "input")
    vectors, tokens = await _embed(service, texts, body.dimensions)

    def shown(vector: np.ndarray) -> object:
        if body.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    data = [
        {"object": "embedding", "index": i, "embedding": shown(v)} for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "model": service.name, "data": data, "usage": usage})


async def llama_embedding(request: Request) -> Response:
    """POST /embedding and /embeddings."""
    service = service_of(request)
    body = await read(request, LlamaEmbeddingBody)
    given = body.content if body.content is not None else body.input
    if given is None:
        raise ApiError(400, "content is missing; give it", "content")
    vectors, _ = await _embed(service, _texts(given, "content"), None, body.embd_normalize != -1)
    found = [{"index": i, "embedding": [v.tolist()]} for i, v in enumerate(vectors)]
    return json_response(found)


async def ollama_embed(request: Request) -> Response:
    """POST /api/embed."""
    service, started = service_of(request), time.perf_counter()
    body = await read(request, OllamaEmbedBody)
    service.need_pooling(rank=False)
    vectors: list[np.ndarray] = []
    tokens = 0
    if body.input:  # as with Ollama, a request without texts only loads the model
        vectors, tokens = await _embed(
            service,
            _texts(body.input, "input"),
            body.dimensions,
            truncate=body.truncate is not False,
        )
    return json_response(
        {
            "model": body.model or tagged(service),
            "embeddings": [v.tolist() for v in vectors],
            "total_duration": int((time.perf_counter() - started) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": tokens,
        }
    )


async def ollama_embeddings(request: Request) -> Response:
    """POST /api/embeddings."""
    service = service_of(request)
    body = await read(request, OllamaEmbedBody)
    service.need_pooling(rank=False)
    if not body.prompt:  # as with Ollama, this only loads the model
        return json_response({"embedding": []})
    vectors, _ = await _embed(service, [body.prompt], None, truncate=True)
    return json_response({"embedding": vectors[0].tolist()})


async def rerank(request: Request) -> Response:
    """POST /v1/rerank."""
    service = service_of(request)
    body = await read(request, RerankBody)
    service.need_pooling(rank=True)
    given = body.documents if body.documents is not None else body.texts
    if not given:
        raise ApiError(400, "documents is empty; give at least one text", "documents")
    if len(given) > MAX_TEXTS:
        raise ApiError(400, f"documents takes at most {MAX_TEXTS} texts; send fewer", "documents")
    documents = [_document(d, i) for i, d in enumerate(given)]
    try:
        scores = await asyncio.to_thread(
            service.model.rank,
            body.query,
            documents,
            raw=bool(body.raw_scores),
            truncate=bool(body.truncate),
        )
    except KineticError as error:
        raise from_kinetic(error) from None
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if body.top_n is not None and body.top_n > 0:
        order = order[: body.top_n]
    if body.documents is None:
        texts = [{"text": documents[i]} if body.return_text else {} for i in order]
        return json_response(
            [{"index": i, "score": scores[i]} | t for i, t in zip(order, texts, strict=True)]
        )
    results: list[Json] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    tokens = await asyncio.to_thread(_count, service, [body.query, *documents])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response(
        {"object": "list", "model": service.name, "results": results, "usage": usage}
    )


def _document(given: str | Json, index: int) -> str:
    text = given if isinstance(given, str) else given.get("text")
    if not isinstance(text, str):
        where = f"documents[{index}]"
        raise ApiError(400, f"{where} must be a string or an object with a text", where)
    return text


def _texts(given: Input, param: str) -> list[str | list[int]]:
    """One text, a list of texts, token ids, or a list of such lists.

    Raises: ApiError.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{param} is empty; give at least one text", param)
    if _is_ids(given):
        return [given]
    if len(given) > MAX_TEXTS:
        raise ApiError(400, f"{param} takes at most {MAX_TEXTS} texts; send fewer", param)
    for i, text in enumerate(given):
        if not isinstance(text, str) and not (isinstance(text, list) and _is_ids(text)):
            raise ApiError(400, f"{param}[{i}] must be a string or a list of token ids", param)
    return given


def _is_ids(given: Sequence[object]) -> bool:
    return all(isinstance(i, int) and not isinstance(i, bool) for i in given)


async def _embed(
    service: Service,
    texts: list[str | list[int]],
    dimensions: int | None,
    normalize: bool = True,
    truncate: bool = False,
) -> tuple[list[np.ndarray], int]:
    """The vectors of some texts, and how many tokens these have."""
    service.need_pooling(rank=False)
    try:
        vectors = await asyncio.to_thread(
            service.model.embed,
            texts,
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
        )
    except KineticError as error:
        raise from_kinetic(error) from None
    return vectors, await asyncio.to_thread(_count, service, texts)


def _count(service: Service, texts: Sequence[str | list[int]]) -> int:
    encode = service.model.tokenizer.encode
    return sum(len(encode(t, add_special=True) if isinstance(t, str) else t) for t in texts)
