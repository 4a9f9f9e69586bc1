"""llama-server's dialect: completion, infill, tokens, templates, properties, slots, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kinetic._version import __version__
from kinetic.runtime.request import Token
from kinetic.server.asks import Ask
from kinetic.server.body import read, service_of
from kinetic.server.errors import ApiError, error_body
from kinetic.server.events import Answers, Finish, Piece, Quiet, Whole
from kinetic.server.fields import (
    Json,
    SamplingFields,
    check_length,
    encode,
    refuse_receipt,
    salt_of,
    sampling_params,
    stops,
)
from kinetic.server.openai import ChatFields, chat_shape, prompt_ids, timings
from kinetic.server.reply import KEEP_ALIVE, Stream, json_response, sse, whole
from kinetic.server.service import Service
from kinetic.server.shaping import Shape, shaped
from kinetic.text.events import Text

_FIM = {
    "pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<PRE>",
        "<\uff5cfim\u2581begin\uff5c>",
    ),
    "suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<SUF>",
        "<\uff5cfim\u2581hole\uff5c>",
    ),
    "mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<MID>",
        "<\uff5cfim\u2581end\uff5c>",
    ),
}
"""Texts of the tokens that mark the parts of a text with a hole, in the words of several
families."""


class Lora(Struct, kw_only=True):
    """How much of an adapter an answer is to have."""

    id: int
    scale: float = 1.0


class CompletionBody(SamplingFields, kw_only=True):
    """The body of /completion."""

    prompt: str | list[Any] | None = None
    n_predict: Annotated[int, Meta(ge=-2)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    stream: bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=100)] | None = None
    grammar: str | None = None
    json_schema: Json | bool | None = None
    n_keep: int | None = None
    lora: list[Lora] | None = None
    response_fields: list[str] | None = None
    receipt: bool | None = None


class Extra(Struct, kw_only=True):
    """A text that stands before the one with the hole."""

    text: str
    filename: str | None = None


class InfillBody(CompletionBody, kw_only=True):
    """The body of /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] | None = None


class TokenizeBody(Struct, kw_only=True):
    """The body of /tokenize."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """The body of /detokenize."""

    tokens: list[int]


async def completion(request: Request) -> Response:
    """POST /completion and /completions."""
    service = service_of(request)
    body = await read(request, CompletionBody)
    if body.prompt is None:
        raise ApiError(400, "prompt is missing; give it", "prompt")
    prompts = await asyncio.to_thread(prompt_ids, service, body.prompt)
    return await _complete(request, service, body, prompts)


async def infill(request: Request) -> Response:
    """POST /infill."""
    service = service_of(request)
    body = await read(request, InfillBody)
    ids = await asyncio.to_thread(_infill_ids, service, body)
    return await _complete(request, service, body, [ids])


async def _complete(
    request: Request, service: Service, body: CompletionBody, prompts: list[list[int]]
) -> Response:
    salt = salt_of(request, body.cache_salt)
    ask = await asyncio.to_thread(_ask, service, body, salt)
    for ids in prompts:
        check_length(ids, service)
    asks = [dataclasses.replace(ask, prompt_ids=ids) for ids in prompts]
    if body.stream:
        if len(asks) > 1:
            raise ApiError(400, "a stream answers one prompt; send one request a prompt", "prompt")
        answers = await Answers.start(service, asks[0])
        return Stream(answers, _stream(service, answers, body.response_fields), _failed)
    found = []
    for one in asks:
        answers = await Answers.start(service, one)
        (answer,) = await whole(request, answers)
        told = _whole(service, one, answer, answers.record.slot)
        found.append(_chosen(told, body.response_fields))
    many = isinstance(body.prompt, list) and len(found) > 1
    return json_response(found if many else found[0])


def _ask(service: Service, body: CompletionBody, salt: str) -> Ask:
    refuse_receipt(body.receipt)
    _check_lora(service, body.lora or ())
    limit = body.n_predict if body.max_tokens is None else body.max_tokens
    shape = Shape(grammar=body.grammar, schema=body.json_schema, schema_field="json_schema")
    return Ask(
        prompt_ids=(),
        params=sampling_params(body, service),
        max_tokens=None if limit is None or limit < 0 else limit,
        stop=stops(body.stop),
        logprobs=body.n_probs or None,
        salt=salt,
        ignore_eos=bool(body.ignore_eos),
        **shaped(service, shape, None),
    )


def _check_lora(service: Service, wanted: Sequence[Lora]) -> None:
    """Raises: ApiError for adapters, or shares of them, that the model was not loaded with."""
    loaded = service.model.adapters
    for one in wanted:
        if not 0 <= one.id < len(loaded):
            known = f"ids 0 to {len(loaded) - 1}" if loaded else "none; start it with --lora"
            raise ApiError(
                400,
                f"lora names {one.id}, which is no adapter here; the server has {known}",
                "lora",
            )
        if one.scale != loaded[one.id][1]:
            raise ApiError(
                400,
                f"the scale of lora {one.id} is {loaded[one.id][1]:g} for every request; "
                "set another with --lora-scaled when the server starts",
                "lora",
            )


def _infill_ids(service: Service, body: InfillBody) -> list[int]:
    tokenizer = service.model.tokenizer
    parts = {part: fim_token(service, part) for part in _FIM}
    if None in parts.values():
        raise ApiError(
            400, "this model does not fill in the middle of a text; use /completion instead"
        )
    pre, suf, mid = (parts[name] or 0 for name in ("pre", "suf", "mid"))
    lead = "".join(extra.text + "\n" for extra in body.input_extra or ())
    prefix = tokenizer.encode(lead + body.input_prefix)
    if isinstance(body.prompt, str):
        prefix += tokenizer.encode(body.prompt)
    ids = [pre, *prefix, suf, *tokenizer.encode(body.input_suffix), mid]
    bos = tokenizer.bos_id
    return [bos, *ids] if tokenizer.add_bos and bos is not None else ids


def fim_token(service: Service, part: str) -> int | None:
    """The token that marks a part of a text with a hole, where the model has one."""
    tokenizer = service.model.tokenizer
    named = tokenizer.vocab.special_id(f"fim_{part}_token_id")
    if named is not None:
        return named
    texts = _FIM[part]
    return next((t.id for t in tokenizer.special_tokens if t.text in texts), None)


# Answers. ----------------------------------------------------------------------------------


def _chosen(told: Json, fields: Sequence[str] | None) -> Json:
    """Only some fields of an answer; `a/b` is `b` inside `a`."""
    if not fields:
        return told
    out: Json = {}
    for path in fields:
        value: Any = told
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            out[path] = value
    return out


async def _stream(
    service: Service, answers: Answers, fields: Sequence[str] | None
) -> AsyncIterator[bytes]:
    ask, count, gathered = answers.ask, 0, Whole()
    async for event in answers:
        if isinstance(event, Piece):
            gathered.add(event)
            count += len(event.tokens)
            out: Json = {
                "index": 0,
                "content": event.what.text if isinstance(event.what, Text) else "",
                "tokens": [t.id for t in event.tokens],
                "stop": False,
                "id_slot": answers.record.slot or 0,
                "tokens_predicted": count,
                "tokens_evaluated": len(ask.prompt_ids),
            }
            yield sse(encode(out | _probabilities(service, ask, event.tokens)))
        elif isinstance(event, Finish):
            last_tokens = event.tokens
            gathered.add(event)
            last = _whole(service, ask, gathered, answers.record.slot)
            last |= {"content": "", "tokens": [t.id for t in last_tokens]}
            last |= _probabilities(service, ask, last_tokens)
            yield sse(encode(_chosen(last, fields)))
        elif isinstance(event, Quiet):
            yield KEEP_ALIVE


def _failed(error: ApiError) -> bytes:
    return sse(encode(error_body("llama", error)))


def _whole(service: Service, ask: Ask, answer: Whole, slot: int | None) -> Json:
    counts, finish = answer.counts, answer.finish
    word = finish.stop_text if finish is not None else None
    kind = "limit"
    if word is not None:
        kind = "word"
    elif finish is not None and finish.ended:
        kind = "eos"
    tokenizer = service.model.tokenizer
    out = {
        "index": 0,
        "content": answer.text,
        "tokens": [t.id for t in answer.tokens],
        "id_slot": slot or 0,
        "stop": True,
        "model": service.name,
        "tokens_predicted": counts.generated_tokens,
        "tokens_evaluated": counts.prompt_tokens,
        "generation_settings": settings(service, ask),
        "prompt": tokenizer.decode(ask.prompt_ids, render_special=True),
        "has_new_line": "\n" in answer.text,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word or "",
        "tokens_cached": counts.prompt_tokens + counts.generated_tokens - 1,
        "timings": timings(counts),
    }
    return out | _probabilities(service, ask, answer.tokens)


def _probabilities(service: Service, ask: Ask, tokens: Sequence[Token]) -> Json:
    if ask.logprobs is None:
        return {}
    spell = service.model.tokenizer.token_bytes

    def named(token: int, logprob: float | None) -> Json:
        data = spell(token)
        text = data.decode("utf-8", "replace")
        return {"id": token, "token": text, "bytes": list(data), "logprob": logprob}

    return {
        "completion_probabilities": [
            named(t.id, t.logprob) | {"top_logprobs": [named(i, p) for i, p in t.top]}
            for t in tokens
        ]
    }


def settings(service: Service, ask: Ask) -> Json:
    """A request's settings as llama-server reports them."""
    params = dataclasses.asdict(ask.params)
    params["logit_bias"] = [
        {"token": token, "bias": max(bias, -1e9)} for token, bias in ask.params.logit_bias.items()
    ]
    limit = -1 if ask.max_tokens is None else ask.max_tokens
    params["seed"] = 0xFFFFFFFF if ask.params.seed is None else ask.params.seed
    return params | {
        "n_predict": limit,
        "max_tokens": limit,
        "n_probs": ask.logprobs or 0,
        "stop": list(ask.stop),
        "ignore_eos": ask.ignore_eos,
        "n_ctx": service.n_ctx,
        "stream": True,
    }


# Tokens and templates. ---------------------------------------------------------------------


async def tokenize(request: Request) -> Response:
    """POST /tokenize."""
    service = service_of(request)
    body = await read(request, TokenizeBody)
    tokenizer = service.model.tokenizer
    ids = await asyncio.to_thread(
        tokenizer.encode,
        body.content,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    if not body.with_pieces:
        return json_response({"tokens": ids})
    return json_response({"tokens": [{"id": i, "piece": _piece(service, i)} for i in ids]})


def _piece(service: Service, token: int) -> str | list[int]:
    data = service.model.tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: Request) -> Response:
    """POST /detokenize."""
    service = service_of(request)
    body = await read(request, DetokenizeBody)
    for token in body.tokens:
        if not 0 <= token < service.n_vocab:
            raise ApiError(
                400,
                f"tokens holds {token}, which is no token of this model; its tokens are 0 to "
                f"{service.n_vocab - 1}",
                "tokens",
            )
    text = service.model.tokenizer.decode(body.tokens, render_special=True)
    return json_response({"content": text})


async def apply_template(request: Request) -> Response:
    """POST /apply-template."""
    service = service_of(request)
    body = await read(request, ChatFields)
    prompt, _ = await asyncio.to_thread(chat_shape, service, body)
    return json_response({"prompt": prompt.text})


# The server itself. ------------------------------------------------------------------------


async def props(request: Request) -> Response:
    """GET /props."""
    service = service_of(request)
    tokenizer, template = service.model.tokenizer, service.model.chat_template
    source = template.source if template is not None else ""

    def spelled(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return json_response(
        {
            "default_generation_settings": {
                "id": 0,
                "n_ctx": service.n_ctx,
                "params": settings(service, Ask((), service.defaults)),
            },
            "total_slots": service.slots.n,
            "model_alias": service.name,
            "model_path": service.path.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": source,
            "chat_template_caps": {"supports_tools": "tools" in source},
            "bos_token": spelled(tokenizer.bos_id),
            "eos_token": spelled(tokenizer.eos_id),
            "build_info": f"kinetic {__version__}",
            "device": service.model.device_name,
            "is_sleeping": False,
        }
    )


async def slots(request: Request) -> Response:
    """GET /slots."""
    service = service_of(request)
    return json_response(service.slots.describe(service.n_ctx))


async def metrics(request: Request) -> Response:
    """GET /metrics."""
    service = service_of(request)
    text = service.metrics.text(service.slots)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
