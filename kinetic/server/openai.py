"""OpenAI's dialect: models, chat completions, completions."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from kinetic.runtime.request import Counts, Token
from kinetic.server.asks import Ask
from kinetic.server.body import read, service_of
from kinetic.server.errors import ApiError, error_body
from kinetic.server.events import Answers, Finish, Piece, Quiet, Whole
from kinetic.server.fields import (
    Json,
    OpenAISampling,
    check_length,
    encode,
    refuse_receipt,
    salt_of,
    sampling_params,
    stops,
)
from kinetic.server.prompt_logprobs import score
from kinetic.server.prompts import Conversation, Prompt, chat_prompt, think_of
from kinetic.server.receipts import add_receipts, receipt_of
from kinetic.server.reply import DONE, KEEP_ALIVE, Stream, json_response, sse, whole
from kinetic.server.service import Service
from kinetic.server.shaping import Shape, choose_tools, response_format_shape, shaped
from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallStart

Count = Annotated[int, Meta(ge=1)]
MAX_CHOICES = 16


class StreamOptions(Struct, kw_only=True):
    """How a stream ends."""

    include_usage: bool | None = None


class GenerationFields(OpenAISampling, kw_only=True):
    """What chats and completions share."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: Json | None = None
    grammar: str | None = None
    receipt: bool | None = None
    user: str | None = None


class ChatFields(GenerationFields, kw_only=True):
    """The body of a chat completion."""

    messages: list[Json]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: Json | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    enable_thinking: bool | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    functions: list[Json] | None = None
    function_call: str | Json | None = None


class CompletionFields(GenerationFields, kw_only=True):
    """The body of a completion."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


# Requests. ---------------------------------------------------------------------------------


async def models(request: Request) -> Response:
    """GET /v1/models."""
    service = service_of(request)
    return json_response({"object": "list", "data": [model_card(service)]})


async def one_model(request: Request) -> Response:
    """GET /v1/models/{id}."""
    service = service_of(request)
    if request.path_params["id"] != service.name:
        raise ApiError(404, f"the one model served here is {service.name!r}; name that one")
    return json_response(model_card(service))


def model_card(service: Service) -> Json:
    """The served model as OpenAI lists models."""
    meta = service.model.graph.meta
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "kinetic",
        "context_length": service.n_ctx,
        "meta": {
            "n_vocab": service.n_vocab,
            "n_ctx": service.n_ctx,
            "n_ctx_train": meta.n_ctx_train,
            "size": service.path.stat().st_size if service.path.exists() else None,
        },
    }


async def health(request: Request) -> Response:
    """GET /health and /v1/health."""
    slots = service_of(request).slots
    return json_response({"status": "ok", "slots_idle": slots.idle, "slots_processing": slots.busy})


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions."""
    service = service_of(request)
    body = await read(request, ChatFields)
    ask = await asyncio.to_thread(_chat_ask, service, body, salt_of(request, body.cache_salt))
    answers = await Answers.start(service, ask)
    reply = _Chat(service, body.model)
    if body.stream:
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return Stream(answers, _stream(answers, reply, usage), failed)
    out = reply.whole(await whole(request, answers), ask)
    await add_receipts(answers, out, out["choices"])
    return json_response(out)


def _chat_ask(service: Service, body: ChatFields, salt: str) -> Ask:
    prompt, shape = chat_shape(service, body)
    check_length(prompt.ids, service)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit is not None and limit < 1:
        raise ApiError(400, "max_tokens must be at least 1", "max_tokens")
    logprobs = None
    if body.logprobs or body.top_logprobs is not None:
        logprobs = body.top_logprobs or 0
    return Ask(
        prompt_ids=prompt.ids,
        params=sampling_params(body, service),
        max_tokens=limit,
        stop=stops(body.stop),
        n=body.n or 1,
        logprobs=logprobs,
        salt=salt,
        ignore_eos=bool(body.ignore_eos),
        receipt=bool(body.receipt),
        given=body.messages,
        **shaped(service, shape, prompt),
    )


def chat_shape(service: Service, body: ChatFields) -> tuple[Prompt, Shape]:
    """The prompt of a chat, and what its answer must look like."""
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(body, old) is not None:
            raise ApiError(400, f"{old} is not supported; use {new} instead", old)
    think = body.enable_thinking
    if think is None:
        think = think_of(body.reasoning_effort)
    tools, choice = choose_tools(body.tools, body.tool_choice)
    talk = Conversation(
        messages=body.messages,
        tools=tools,
        kwargs=body.chat_template_kwargs,
        think=think,
        effort=body.reasoning_effort,
    )
    shape = Shape(
        chat=True,
        choice=choice,
        parallel_calls=body.parallel_tool_calls,
        reasoning=body.reasoning_format != "none",
        grammar=body.grammar,
        tools=body.tools,
        tool_choice=body.tool_choice,
        **response_format_shape(body.response_format),
    )
    return chat_prompt(service, talk), shape


async def prefill(request: Request) -> Response:
    """POST /v1/prefill: run what will stay of a prompt that is still being written."""
    service = service_of(request)
    body = await read(request, ChatFields)
    salt = salt_of(request, body.cache_salt)
    ask = await asyncio.to_thread(_prefill_ask, service, body, salt)
    if ask is None:
        return json_response({"object": "prefill", "cached_tokens": 0})
    answers = await Answers.start(service, ask)
    (done,) = await whole(request, answers)
    cached = max(done.counts.cached_tokens, answers.record.prompt_done)
    return json_response({"object": "prefill", "cached_tokens": cached})


def _prefill_ask(service: Service, body: ChatFields, salt: str) -> Ask | None:
    """The part of the prompt that does not depend on how the last word goes on."""
    refuse_receipt(body.receipt)
    if not body.messages:
        raise ApiError(400, "messages is empty; give at least one message", "messages")
    prompt, _ = chat_shape(service, body)
    *before, last = body.messages
    text = last.get("content")
    cut = text.rstrip().rpartition(" ")[0] if isinstance(text, str) else ""
    changed = [*before, {**last, "content": cut + "\u2026\u2026"}]
    other, _ = chat_shape(service, msgspec.structs.replace(body, messages=changed))
    same = 0
    for one, two in zip(prompt.ids, other.ids, strict=False):
        if one != two:
            break
        same += 1
    check_length(prompt.ids, service)
    ids = prompt.ids[:same]
    if not ids or {"zero-wait", "warm-start"} & set(service.model.scheduler.off):
        return None
    return Ask(ids, service.defaults, max_tokens=0, salt=salt, ahead=True)


async def completions(request: Request) -> Response:
    """POST /v1/completions."""
    service = service_of(request)
    body = await read(request, CompletionFields)
    asks = await asyncio.to_thread(
        _completion_asks, service, body, salt_of(request, body.cache_salt)
    )
    reply = _Completion(service, body.model, bool(body.echo))
    if body.stream:
        if len(asks) > 1:
            raise ApiError(400, "a stream answers one prompt; send one request a prompt", "prompt")
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        answers = await Answers.start(service, await _scored(service, body, asks[0]))
        return Stream(answers, _stream(answers, reply, usage), failed)
    choices: list[Json] = []
    counts: list[list[Counts]] = []
    receipts: Json = {}
    for unscored in asks:
        ask = await _scored(service, body, unscored)
        if ask.max_tokens == 0:
            found = [Whole(finish=Finish(0, "length", Counts(len(ask.prompt_ids)), 0))]
        else:
            answers = await Answers.start(service, ask)
            found = await whole(request, answers)
        told = [reply.choice(len(choices) + i, c, ask) for i, c in enumerate(found)]
        if ask.receipt:
            await add_receipts(answers, receipts, told)
        choices += told
        counts.append([c.counts for c in found])
    return json_response({**reply.all(choices, counts), **receipts})


async def _scored(service: Service, body: CompletionFields, ask: Ask) -> Ask:
    """With the prompt's own log-probabilities, where they are asked for."""
    if not body.echo or ask.logprobs is None:
        return ask
    return replace(ask, prompt_scores=await score(service, ask.prompt_ids, ask.logprobs))


def _completion_asks(service: Service, body: CompletionFields, salt: str) -> list[Ask]:
    if body.suffix:
        raise ApiError(
            400, "suffix is not supported here; /infill fills in the middle of a text", "suffix"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(
            400, "best_of is not supported unless it is n; ask for n answers and choose", "best_of"
        )
    prompts = prompt_ids(service, body.prompt)
    for ids in prompts:
        check_length(ids, service)
    if body.max_tokens is not None and body.max_tokens < (0 if body.echo else 1):
        raise ApiError(400, "max_tokens must be at least 1", "max_tokens")
    logprobs: int | None = None
    if body.logprobs is not None and body.logprobs is not False:
        logprobs = 1 if body.logprobs is True else body.logprobs
    if body.receipt and (body.max_tokens == 0 or len(prompts) > 1):
        raise ApiError(400, "a receipt is of one prompt that is answered", "receipt")
    shape = Shape(grammar=body.grammar, **response_format_shape(body.response_format))
    ask = Ask(
        prompt_ids=(),
        params=sampling_params(body, service),
        max_tokens=body.max_tokens,
        stop=stops(body.stop),
        n=body.n or 1,
        logprobs=logprobs,
        salt=salt,
        ignore_eos=bool(body.ignore_eos),
        receipt=bool(body.receipt),
        given=body.prompt,
        **shaped(service, shape, None),
    )
    return [replace(ask, prompt_ids=ids) for ids in prompts]


def prompt_ids(service: Service, prompt: str | list[Any]) -> list[list[int]]:
    """The prompts of a request: a text, token ids, both mixed, or a list of such.

    Raises: ApiError.
    """
    tokenizer = service.model.tokenizer
    if isinstance(prompt, str):
        return [tokenizer.encode_prompt(prompt)]
    if not prompt:
        raise ApiError(400, "the prompt is empty; give some text to go on from", "prompt")
    if all(isinstance(part, list) for part in prompt):
        return [ids for part in prompt for ids in prompt_ids(service, part)]
    if all(isinstance(part, str) for part in prompt):
        return [tokenizer.encode_prompt(part) for part in prompt]
    ids: list[int] = []
    for part in prompt:
        if isinstance(part, str):
            ids += tokenizer.encode(part, parse_special=True)
        elif isinstance(part, int) and not isinstance(part, bool) and 0 <= part < service.n_vocab:
            ids.append(part)
        else:
            raise ApiError(
                400,
                f"the prompt holds {str(part)[:40]!r}, which is no token of this model; "
                f"its tokens are 0 to {service.n_vocab - 1}",
                "prompt",
            )
    return [ids]


# Answers. ----------------------------------------------------------------------------------


class _Reply(ABC):
    """An answer in OpenAI's words."""

    prefix, kind, chunk_kind = "", "", ""

    def __init__(self, service: Service, model: str | None) -> None:
        self.service = service
        self.head: Json = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": f"kinetic-{service.model.device_class}",
        }

    def whole(self, choices: Sequence[Whole], ask: Ask) -> Json:
        """The answer at once."""
        told = [self.choice(i, c, ask) for i, c in enumerate(choices)]
        return self.all(told, [[c.counts for c in choices]])

    def all(self, choices: list[Json], counts: Sequence[Sequence[Counts]]) -> Json:
        """The choices of several prompts."""
        return {
            **self.head,
            "object": self.kind,
            "choices": choices,
            "usage": usage(counts),
            "timings": timings(counts[0][0]),
        }

    def chunk(self, choices: list[Json], **more: object) -> bytes:
        """One event of a stream."""
        return sse(encode({**self.head, "object": self.chunk_kind, "choices": choices, **more}))

    @abstractmethod
    def choice(self, index: int, whole: Whole, ask: Ask) -> Json:
        """One choice of a whole answer."""

    def first(self, index: int, ask: Ask) -> Json | None:
        """What opens a choice of a stream."""
        return None

    @abstractmethod
    def piece(self, piece: Piece, ask: Ask) -> Json | None:
        """Part of a choice."""

    @abstractmethod
    def last(self, finish: Finish, ask: Ask) -> Json:
        """What closes a choice."""


class _Chat(_Reply):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, whole: Whole, ask: Ask) -> Json:
        message: Json = {"role": "assistant", "content": whole.text}
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        if whole.calls:
            message["content"] = whole.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in whole.calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(whole.tokens, ask),
            "finish_reason": whole.reason,
        }

    def first(self, index: int, ask: Ask) -> Json | None:
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, piece: Piece, ask: Ask) -> Json | None:
        what = piece.what
        delta: Json = {}
        if isinstance(what, Text):
            delta = {"content": what.text}
        elif isinstance(what, Reasoning):
            delta = {"reasoning_content": what.text}
        elif isinstance(what, ToolCallStart):
            call = {"name": what.name, "arguments": ""}
            delta = {"tool_calls": [_call_delta(what.index, call, what.id)]}
        elif isinstance(what, ToolArguments):
            delta = {"tool_calls": [_call_delta(what.index, {"arguments": what.delta})]}
        elif not piece.tokens:
            return None
        return self._delta(piece.choice, delta, self._logprobs(piece.tokens, ask))

    def last(self, finish: Finish, ask: Ask) -> Json:
        choice = self._delta(finish.choice, {}, self._logprobs(finish.tokens, ask) or None)
        return {**choice, "finish_reason": finish.reason}

    @staticmethod
    def _delta(index: int, delta: Json, logprobs: Json | None = None) -> Json:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, tokens: Sequence[Token], ask: Ask) -> Json | None:
        if ask.logprobs is None or not tokens:
            return None if ask.logprobs is None else {"content": [], "refusal": None}
        return {"content": [self._token(t) for t in tokens], "refusal": None}

    def _token(self, token: Token) -> Json:
        top = [self._named(i, logprob) for i, logprob in token.top]
        return {**self._named(token.id, token.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float | None) -> Json:
        data = self.service.model.tokenizer.token_bytes(token_id)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data), "id": token_id}


class _Completion(_Reply):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, model: str | None, echo: bool = False) -> None:
        super().__init__(service, model)
        self._with_echo = echo
        self._offsets: dict[int, int] = {}

    def choice(self, index: int, whole: Whole, ask: Ask) -> Json:
        return {
            "index": index,
            "text": self._echo(ask) + whole.text,
            "logprobs": self._logprobs(index, [*ask.prompt_scores, *whole.tokens], ask),
            "finish_reason": whole.reason,
        }

    def first(self, index: int, ask: Ask) -> Json | None:
        if not self._with_echo:
            return None
        told = self._logprobs(index, ask.prompt_scores, ask) if ask.prompt_scores else None
        return self._text(index, self._echo(ask), told)

    def _echo(self, ask: Ask) -> str:
        return self.service.model.tokenizer.decode(ask.prompt_ids) if self._with_echo else ""

    def piece(self, piece: Piece, ask: Ask) -> Json | None:
        text = piece.what.text if isinstance(piece.what, Text | Reasoning) else ""
        return self._text(piece.choice, text, self._logprobs(piece.choice, piece.tokens, ask))

    def last(self, finish: Finish, ask: Ask) -> Json:
        logprobs = self._logprobs(finish.choice, finish.tokens, ask) if finish.tokens else None
        choice = self._text(finish.choice, "", logprobs)
        return {**choice, "finish_reason": finish.reason}

    @staticmethod
    def _text(index: int, text: str, logprobs: Json | None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, index: int, tokens: Sequence[Token], ask: Ask) -> Json | None:
        if ask.logprobs is None:
            return None
        spell = self.service.model.tokenizer.token_bytes
        at = self._offsets.get(index, 0 if ask.prompt_scores else len(self._echo(ask)))
        out: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            text = spell(token.id).decode("utf-8", "replace")
            out["tokens"].append(text)
            out["token_logprobs"].append(token.logprob)
            top = {spell(i).decode("utf-8", "replace"): logprob for i, logprob in token.top}
            out["top_logprobs"].append(top if ask.logprobs and top else None)
            out["text_offset"].append(at)
            at += len(text)
        self._offsets[index] = at
        return out


def _call_delta(index: int, function: Json, call_id: str | None = None) -> Json:
    named = {} if call_id is None else {"id": call_id, "type": "function"}
    return {"index": index, **named, "function": function}


async def _stream(answers: Answers, reply: _Reply, with_usage: bool) -> AsyncIterator[bytes]:
    ask = answers.ask
    counts: list[Counts] = []
    for i in range(ask.n):
        if (first := reply.first(i, ask)) is not None:
            yield reply.chunk([first])
    async for event in answers:
        if isinstance(event, Piece):
            if (piece := reply.piece(event, ask)) is not None:
                yield reply.chunk([piece])
        elif isinstance(event, Finish):
            counts.append(event.counts)
            done = len(counts) == ask.n
            more: Json = {"timings": timings(event.counts)} if done else {}
            last = reply.last(event, ask)
            if ask.receipt:
                target = more if ask.n == 1 else last
                target["receipt"] = await receipt_of(answers, event.choice)
            yield reply.chunk([last], **more)
        elif isinstance(event, Quiet):
            yield KEEP_ALIVE
    if with_usage:
        yield reply.chunk([], usage=usage([counts]))
    yield DONE


def failed(error: ApiError) -> bytes:
    """An error in the middle of a stream; no `[DONE]` follows it."""
    return sse(encode(error_body("openai", error)))


def usage(counts: Sequence[Sequence[Counts]]) -> Json:
    """The token counts of some prompts; the prompt of several choices counts once."""
    prompt = sum(choices[0].prompt_tokens for choices in counts)
    generated = sum(c.generated_tokens for choices in counts for c in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(c[0].cached_tokens for c in counts)},
    }


def timings(counts: Counts) -> Json:
    """Speed in llama-server's words."""
    run = counts.prompt_tokens - counts.cached_tokens
    out: Json = {"cache_n": counts.cached_tokens}
    pairs = (
        ("prompt", run, counts.prompt_seconds),
        ("predicted", counts.generated_tokens, counts.generate_seconds),
    )
    for name, tokens, seconds in pairs:
        out |= {
            f"{name}_n": tokens,
            f"{name}_ms": seconds * 1000,
            f"{name}_per_token_ms": seconds * 1000 / tokens if tokens else 0.0,
            f"{name}_per_second": tokens / seconds if seconds > 0 else 0.0,
        }
    if counts.drafted:
        out |= {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted}
    return out
