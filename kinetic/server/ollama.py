"""Ollama's dialect: chat and generate as lines of JSON, and what it tells of models."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from kinetic._version import __version__
from kinetic.server.asks import Ask
from kinetic.server.body import invalid, read, service_of
from kinetic.server.errors import ApiError, error_body
from kinetic.server.events import Answers, Call, Finish, Piece, Quiet, Whole
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
from kinetic.server.llama_server import fim_token
from kinetic.server.openai import prompt_ids
from kinetic.server.prompts import Conversation, Prompt, chat_prompt
from kinetic.server.reply import Stream, json_response, whole
from kinetic.server.service import Service
from kinetic.server.shaping import Shape, choose_tools, shaped
from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallEnd, ToolCallStart

log = logging.getLogger("kinetic.server")
API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients compare it."""
_DURATION = re.compile(r"-?(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+|-?\d+")
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "repeat_penalty"),
    *("repeat_last_n", "presence_penalty", "frequency_penalty", "mirostat"),
    *("mirostat_tau", "mirostat_eta"),
)
_IGNORED = (
    *("num_ctx", "num_predict", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"),
    *("use_mmap", "use_mlock", "numa", "low_vram", "vocab_only", "penalize_newline", "tfs_z"),
)


class _Common(Struct, kw_only=True):
    model: str | None = None
    options: Json | None = None
    stream: bool | None = None
    format: str | Json | None = None
    think: bool | str | None = None
    keep_alive: int | float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    template: str | None = None
    cache_salt: str | None = None
    receipt: bool | None = None


class Options(SamplingFields, kw_only=True):
    """The options that an answer depends on."""

    num_predict: Annotated[int, Meta(ge=-2)] | None = None


class ChatBody(_Common, kw_only=True):
    """The body of /api/chat."""

    messages: list[Json] | None = None
    tools: list[Json] | None = None


class GenerateBody(_Common, kw_only=True):
    """The body of /api/generate."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool | None = None


class ShowBody(Struct, kw_only=True):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


# Models. -----------------------------------------------------------------------------------


async def version(request: Request) -> Response:
    """GET /api/version."""
    return json_response({"version": API_VERSION, "kinetic": __version__})


async def tags(request: Request) -> Response:
    """GET /api/tags."""
    return json_response({"models": [_card(service_of(request))]})


async def running(request: Request) -> Response:
    """GET /api/ps."""
    service = service_of(request)
    card = _card(service)
    del card["modified_at"]
    more: Json = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0}
    return json_response({"models": [card | more | {"context_length": service.n_ctx}]})


async def show(request: Request) -> Response:
    """POST /api/show."""
    service = service_of(request)
    await read(request, ShowBody)
    template = service.model.chat_template
    source = template.source if template is not None else ""
    info = {key: _plain(value) for key, value in service.model.file.metadata.items()}
    stat_time = _time(service.path.stat().st_mtime if service.path.exists() else service.created)
    return json_response(
        {
            "license": str(info.get("general.license") or ""),
            "modelfile": f"FROM {service.path.name}",
            "parameters": f"num_ctx {service.n_ctx}",
            "template": source,
            "details": _details(service),
            "model_info": info,
            "capabilities": capabilities(service),
            "modified_at": stat_time,
        }
    )


def capabilities(service: Service) -> list[str]:
    """What the model can do, in Ollama's words."""
    if service.model.pooling is not None:
        return ["embedding"]
    template = service.model.chat_template
    source = template.source if template is not None else ""
    out = ["completion"]
    if re.search(r"\btools\b", source):
        out.append("tools")
    if "enable_thinking" in source or "<think>" in source:
        out.append("thinking")
    if fim_token(service, "mid") is not None:
        out.append("insert")
    return out


def _plain(value: object) -> object:
    """A metadata value; long lists are left out, as Ollama does."""
    if isinstance(value, str | int | float | bool):
        return value
    item = getattr(value, "item", None)
    if getattr(value, "shape", None) == () and callable(item):
        found: object = item()
        return found
    return None


def _details(service: Service) -> Json:
    meta = service.model.file.metadata
    family = str(meta.get("general.architecture", ""))
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": str(meta.get("general.size_label", "")),
        "quantization_level": _quantization(service.path.name),
    }


def _quantization(file_name: str) -> str:
    found = re.search(r"(?i)\b((?:I?Q\d\w*)|F16|BF16|F32|MXFP4|NVFP4)\b", file_name)
    return found[1].upper() if found else "unknown"


def _card(service: Service) -> Json:
    stat = service.path.stat() if service.path.exists() else None
    name = tagged(service)
    return {
        "name": name,
        "model": name,
        "modified_at": _time(stat.st_mtime if stat else service.created),
        "size": stat.st_size if stat else 0,
        "digest": hashlib.sha256(f"{name}{stat.st_size if stat else 0}".encode()).hexdigest(),
        "details": _details(service),
    }


def tagged(service: Service) -> str:
    """The model's name with a tag, which Ollama's names always have."""
    return service.name if ":" in service.name else f"{service.name}:latest"


def _time(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat().replace("+00:00", "Z")


# Requests. ---------------------------------------------------------------------------------


async def chat(request: Request) -> Response:
    """POST /api/chat."""
    service = service_of(request)
    body = await read(request, ChatBody)
    _check(body)
    if not body.messages:
        return json_response(_loaded(service, body, {"message": _said("")}))
    ask = await asyncio.to_thread(_chat_ask, service, body, salt_of(request, body.cache_salt))
    return await _answer(request, service, body, ask, _Chat(service, body))


async def generate(request: Request) -> Response:
    """POST /api/generate."""
    service = service_of(request)
    body = await read(request, GenerateBody)
    _check(body)
    for name in ("suffix", "context"):
        if getattr(body, name):
            raise ApiError(400, f"{name} is not supported; leave it out, or use /api/chat", name)
    if body.images:
        raise ApiError(400, "images is not supported: this model takes only text", "images")
    if not body.prompt:
        return json_response(_loaded(service, body, {"response": ""}))
    ask = await asyncio.to_thread(_generate_ask, service, body, salt_of(request, body.cache_salt))
    return await _answer(request, service, body, ask, _Generate(service, body))


def _check(body: _Common) -> None:
    refuse_receipt(body.receipt)
    if body.template:
        raise ApiError(400, "template is not supported; start the server with another one")
    if isinstance(body.keep_alive, str) and not _DURATION.fullmatch(body.keep_alive):
        raise ApiError(
            400, f'keep_alive {body.keep_alive[:40]!r} is no duration; give one such as "5m"'
        )
    unknown = set(body.options or {}) - set(_SAMPLING) - set(_IGNORED)
    if unknown:
        log.warning("options that mean nothing here: %s", ", ".join(sorted(unknown))[:200])


def _loaded(service: Service, body: _Common, more: Json) -> Json:
    reason = "unload" if body.keep_alive in (0, "0", "0s") else "load"
    head = {"model": body.model or tagged(service), "created_at": _time(time.time())}
    return {**head, **more, "done": True, "done_reason": reason}


def _chat_ask(service: Service, body: ChatBody, salt: str) -> Ask:
    tools, choice = choose_tools(body.tools, None)
    think, effort = _thinking(body.think)
    talk = Conversation(
        [_message(m, i) for i, m in enumerate(body.messages or ())], tools, None, think, effort
    )
    return _ask(service, body, chat_prompt(service, talk), Shape(chat=True, choice=choice), salt)


def _generate_ask(service: Service, body: GenerateBody, salt: str) -> Ask:
    text = body.prompt or ""
    if body.raw or service.model.chat_template is None:
        (ids,) = prompt_ids(service, text)
        return _ask(service, body, Prompt(ids, text), Shape(), salt)
    messages: list[Json] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    messages.append({"role": "user", "content": text})
    think, effort = _thinking(body.think)
    prompt = chat_prompt(service, Conversation(messages, (), None, think, effort))
    return _ask(service, body, prompt, Shape(chat=True), salt)


def _ask(service: Service, body: _Common, prompt: Prompt, shape: Shape, salt: str) -> Ask:
    check_length(prompt.ids, service)
    options = {k: v for k, v in (body.options or {}).items() if v is not None}
    given = {name: options[name] for name in (*_SAMPLING, "num_predict") if name in options}
    try:
        fields = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise invalid(str(error), "options") from None
    limit = fields.num_predict
    shape = replace(
        shape,
        json_object=body.format == "json",
        schema=body.format if isinstance(body.format, dict) else None,
        schema_field="format",
    )
    if isinstance(body.format, str) and body.format not in ("json", ""):
        raise ApiError(400, 'format must be "json" or a JSON Schema', "format")
    logprobs = (body.top_logprobs or 0) if body.logprobs or body.top_logprobs else None
    return Ask(
        prompt_ids=prompt.ids,
        params=sampling_params(fields, service),
        max_tokens=None if limit is None or limit < 0 else limit,
        stop=stops(fields.stop),
        logprobs=logprobs,
        salt=salt,
        **shaped(service, shape, prompt),
    )


def _thinking(think: bool | str | None) -> tuple[bool | None, str | None]:
    if isinstance(think, str):
        return think not in ("none", "false"), think
    return think, None


def _message(message: Mapping[str, Any], index: int) -> Json:
    """A message in OpenAI's form."""
    if message.get("images"):
        at = f"messages[{index}].images"
        raise ApiError(400, f"{at} is not supported: this model takes only text", at)
    out = {k: v for k, v in message.items() if k not in ("images", "thinking", "tool_calls")}
    if message.get("thinking"):
        out["reasoning_content"] = message["thinking"]
    if "tool_name" in out:
        out.setdefault("name", out["tool_name"])
    if message.get("tool_calls"):
        out["tool_calls"] = message["tool_calls"]
    return out


# Answers. ----------------------------------------------------------------------------------


async def _answer(
    request: Request, service: Service, body: _Common, ask: Ask, told: _Told
) -> Response:
    answers = await Answers.start(service, ask)
    if body.stream is False:
        (answer,) = await whole(request, answers)
        return json_response(told.whole(answer))
    return Stream(answers, told.stream(answers), failed, "application/x-ndjson")


def failed(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return _line(error_body("ollama", error))


def _line(value: Json) -> bytes:
    return encode(value) + b"\n"


def _said(text: str, thinking: str = "", calls: list[Call] | None = None) -> Json:
    out: Json = {"role": "assistant", "content": text}
    if thinking:
        out["thinking"] = thinking
    if calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "function": {
                    "index": i,
                    "name": call.name,
                    "arguments": json.loads(call.arguments or "{}"),
                },
            }
            for i, call in enumerate(calls)
        ]
    return out


class _Told(ABC):
    """An answer in Ollama's words."""

    def __init__(self, service: Service, body: _Common) -> None:
        self.service = service
        self.model = body.model or tagged(service)
        self.started = time.perf_counter()

    @abstractmethod
    def said(self, text: str, thinking: str = "", calls: list[Call] | None = None) -> Json:
        """Part of an answer, or all of it."""

    def whole(self, answer: Whole) -> Json:
        """The answer at once."""
        assert answer.finish is not None
        logprobs = self._logprobs(answer.tokens)
        told = self.said(answer.text, answer.reasoning, answer.calls)
        return self._head() | told | logprobs | self._last(answer.finish)

    async def stream(self, answers: Answers) -> AsyncIterator[bytes]:
        """The answer as lines."""
        calls: list[Call] = []
        async for event in answers:
            if isinstance(event, Piece):
                if (told := self._piece(event, calls)) is not None:
                    yield _line(self._head() | told | {"done": False})
            elif isinstance(event, Finish):
                end = self.said("") | self._logprobs(event.tokens) | self._last(event)
                yield _line(self._head() | end)
            elif isinstance(event, Quiet):
                # Lines have no comments: an empty piece keeps the connection alive.
                yield _line(self._head() | self.said("") | {"done": False})

    def _piece(self, piece: Piece, calls: list[Call]) -> Json | None:
        what = piece.what
        logprobs = self._logprobs(piece.tokens)
        if isinstance(what, Text):
            return self.said(what.text) | logprobs
        if isinstance(what, Reasoning):
            return self.said("", what.text) | logprobs
        if isinstance(what, ToolCallStart):
            calls.append(Call(what.id, what.name))
        elif isinstance(what, ToolArguments):
            calls[what.index].arguments += what.delta
        elif isinstance(what, ToolCallEnd):
            return self.said("", "", [calls[what.index]])
        return None

    def _logprobs(self, tokens: Any) -> Json:
        if not tokens or tokens[0].logprob is None:
            return {}
        spell = self.service.model.tokenizer.token_bytes

        def named(token: int, logprob: float) -> Json:
            data = spell(token)
            return {
                "token": data.decode("utf-8", "replace"),
                "logprob": logprob,
                "bytes": list(data),
            }

        return {
            "logprobs": [
                named(t.id, t.logprob) | {"top_logprobs": [named(i, p) for i, p in t.top]}
                for t in tokens
            ]
        }

    def _head(self) -> Json:
        return {"model": self.model, "created_at": _time(time.time())}

    def _last(self, finish: Finish) -> Json:
        counts = finish.counts
        return {
            "done": True,
            "done_reason": "length" if finish.reason == "length" else "stop",
            "total_duration": int((time.perf_counter() - self.started) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": counts.prompt_tokens,
            "prompt_eval_duration": int(counts.prompt_seconds * 1e9),
            "eval_count": counts.generated_tokens,
            "eval_duration": int(counts.generate_seconds * 1e9),
        }


class _Chat(_Told):
    def said(self, text: str, thinking: str = "", calls: list[Call] | None = None) -> Json:
        return {"message": _said(text, thinking, calls)}


class _Generate(_Told):
    def said(self, text: str, thinking: str = "", calls: list[Call] | None = None) -> Json:
        return {"response": text} | ({"thinking": thinking} if thinking else {})
