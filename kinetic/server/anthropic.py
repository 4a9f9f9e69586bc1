"""Anthropic's dialect: messages and count_tokens."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from kinetic.runtime.request import Counts
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
from kinetic.server.prompts import Conversation, Prompt, chat_prompt
from kinetic.server.reply import Stream, json_response, sse, whole
from kinetic.server.service import Service
from kinetic.server.shaping import Shape, choose_tools, shaped
from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallStart

_BILLING = "x-anthropic-billing-header"
"""A line that one client puts into its system text and changes with every request: it would
make every prompt a new one."""
_NO_PICTURE = "[a picture was left out here: this model reads only text]"
_SIGNATURE = "kinetic"
"""Thinking is given back as it is; nothing needs to be proved about it."""


class MessagesBody(Struct, kw_only=True):
    """The body of /v1/messages."""

    messages: list[Json]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    thinking: Json | None = None
    output_format: Json | None = None
    output_config: Json | None = None
    chat_template_kwargs: Json | None = None
    cache_salt: str | None = None
    seed: int | None = None
    receipt: bool | None = None


async def messages(request: Request) -> Response:
    """POST /v1/messages."""
    service = service_of(request)
    body = await read(request, MessagesBody)
    ask = await asyncio.to_thread(_ask, service, body, salt_of(request, body.cache_salt))
    answers = await Answers.start(service, ask)
    if body.stream:
        return Stream(answers, stream_events(service, answers), failed)
    (answer,) = await whole(request, answers)
    return json_response(_message(service, answer))


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens."""
    service = service_of(request)
    body = await read(request, MessagesBody)
    prompt, _ = await asyncio.to_thread(_prompt, service, body)
    return json_response({"input_tokens": len(prompt.ids)})


# Requests. ---------------------------------------------------------------------------------


def _ask(service: Service, body: MessagesBody, salt: str) -> Ask:
    if body.max_tokens is None:
        raise ApiError(400, "max_tokens is missing; give it", "max_tokens")
    if body.max_tokens < 1:
        raise ApiError(400, "max_tokens must be at least 1", "max_tokens")
    refuse_receipt(body.receipt)
    prompt, shape = _prompt(service, body)
    check_length(prompt.ids, service)
    sampling = SamplingFields(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, seed=body.seed
    )
    return Ask(
        prompt_ids=prompt.ids,
        params=sampling_params(sampling, service),
        max_tokens=body.max_tokens,
        stop=stops(body.stop_sequences),
        salt=salt,
        **shaped(service, shape, prompt),
    )


def _prompt(service: Service, body: MessagesBody) -> tuple[Prompt, Shape]:
    asked = body.tool_choice or {}
    kind = asked.get("type", "auto")
    if kind not in ("auto", "any", "none", "tool"):
        raise ApiError(
            400, 'tool_choice.type must be "auto", "any", "tool" or "none"', "tool_choice.type"
        )
    if kind == "tool" and not isinstance(asked.get("name"), str):
        raise ApiError(400, "tool_choice.name is missing; give a tool's name", "tool_choice.name")
    wanted_call = {"name": asked.get("name")} if kind == "tool" else kind
    offered = [tool for given in body.tools or () if (tool := _tool(given)) is not None]
    tools, choice = choose_tools(offered, wanted_call)
    out: list[Json] = []
    if (system := system_text(body.system)) is not None:
        out.append({"role": "system", "content": system})
    for i, message in enumerate(body.messages):
        out += from_anthropic(message, f"messages[{i}]")
    think = {"enabled": True, "adaptive": True, "disabled": False}.get(
        str((body.thinking or {}).get("type"))
    )
    effort = (body.output_config or {}).get("effort")
    talk = Conversation(
        out, tools, body.chat_template_kwargs, think, effort if isinstance(effort, str) else None
    )
    shape = Shape(
        chat=True,
        choice=choice,
        parallel_calls=False if asked.get("disable_parallel_tool_use") else None,
        schema=_schema(body),
        schema_field="output_format",
    )
    return chat_prompt(service, talk), shape


def _schema(body: MessagesBody) -> Mapping[str, Any] | bool | None:
    """What the answer is held to. Raises: ApiError for a form that cannot be held to."""
    where, wanted = "output_format", body.output_format
    if wanted is None and body.output_config is not None:
        where, wanted = "output_config.format", body.output_config.get("format")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping):
        raise ApiError(400, f"{where} must be an object with a type and a schema", where)
    if wanted.get("type", "json_schema") != "json_schema":
        raise ApiError(400, f'{where}.type must be "json_schema"', f"{where}.type")
    schema = wanted.get("schema")
    if not isinstance(schema, Mapping | bool):
        raise ApiError(400, f"{where}.schema must be a JSON Schema object", f"{where}.schema")
    return schema


def _tool(tool: Mapping[str, Any]) -> Json | None:
    if "input_schema" not in tool or "name" not in tool:
        return None  # one that the vendor's own servers run
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def system_text(system: str | list[Json] | None) -> str | None:
    """The system text of a request."""
    if system is None or isinstance(system, str):
        return system or None
    texts = [b["text"] for b in system if isinstance(b.get("text"), str)]
    return "\n\n".join(t for t in texts if not t.startswith(_BILLING)) or None


def from_anthropic(message: Mapping[str, Any], where: str) -> list[Json]:
    """A message in OpenAI's form; results of tools become messages of their own.

    Raises: ApiError.
    """
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{where}.role must be user or assistant", f"{where}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content must be a string or a list", f"{where}.content")
    out: list[Json] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for i, block in enumerate(content):
        at = f"{where}.content[{i}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "redacted_thinking":
            continue
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": str(block.get("id")), "type": "function", "function": function})
        elif kind == "tool_result":
            result = _result(block.get("content"), at)
            call_id = str(block.get("tool_use_id"))
            out.append({"role": "tool", "tool_call_id": call_id, "content": result})
        else:
            raise ApiError(400, f"{at} is not text, and this model takes only text", at)
    if texts or thoughts or calls or not out:
        own: Json = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            own["reasoning_content"] = "\n".join(thoughts)
        if calls:
            own["tool_calls"] = calls
        out.append(own)
    return out


def _result(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content must be a string or a list", f"{where}.content")
    texts = []
    for part in content:
        is_text = isinstance(part, Mapping) and isinstance(part.get("text"), str)
        # A picture here came from a tool: the talk can go on without it.
        texts.append(part["text"] if is_text else _NO_PICTURE)
    return "\n".join(texts)


# Answers. ----------------------------------------------------------------------------------


def _message(service: Service, answer: Whole) -> Json:
    content: list[Json] = []
    if answer.reasoning:
        thinking = {"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE}
        content.append(thinking)
    if answer.text or not (answer.calls or answer.reasoning):
        content.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        content.append(
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": json.loads(call.arguments or "{}"),
            }
        )
    return {
        **_head(service),
        "content": content,
        **_end(answer.finish),
        "usage": _usage(answer.counts),
    }


def _head(service: Service) -> Json:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": service.name,
    }


def _end(finish: Finish | None) -> Json:
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    reason = reasons.get(finish.reason, "end_turn") if finish is not None else "end_turn"
    word = finish.stop_text if finish is not None else None
    if word is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": word}


def _usage(counts: Counts) -> Json:
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.generated_tokens,
    }


class Blocks:
    """Content blocks as they come: at most one is open, and deltas match its type."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def take(self, what: object) -> list[tuple[str, Json]]:
        """The events of one more piece."""
        if isinstance(what, Text):
            return self._delta("text", {"text": ""}, {"type": "text_delta", "text": what.text})
        if isinstance(what, Reasoning):
            delta = {"type": "thinking_delta", "thinking": what.text}
            return self._delta("thinking", {"thinking": "", "signature": ""}, delta)
        if isinstance(what, ToolCallStart):
            out = self.close()
            return out + self._start("tool_use", {"id": what.id, "name": what.name, "input": {}})
        if isinstance(what, ToolArguments):
            return [self._event({"type": "input_json_delta", "partial_json": what.delta})]
        return []

    def close(self) -> list[tuple[str, Json]]:
        """Close the open block, if there is one."""
        if self._open is None:
            return []
        out = []
        if self._open == "thinking":
            out.append(self._event({"type": "signature_delta", "signature": _SIGNATURE}))
        self._open = None
        stop: Json = {"type": "content_block_stop", "index": self._index}
        return [*out, ("content_block_stop", stop)]

    def _delta(self, kind: str, empty: Json, delta: Json) -> list[tuple[str, Json]]:
        out = []
        if self._open != kind:
            out = self.close() + self._start(kind, empty)
        return [*out, self._event(delta)]

    def _start(self, kind: str, block: Json) -> list[tuple[str, Json]]:
        self._open = kind
        self._index += 1
        start: Json = {"index": self._index, "content_block": {"type": kind, **block}}
        return [("content_block_start", {"type": "content_block_start", **start})]

    def _event(self, delta: Json) -> tuple[str, Json]:
        event: Json = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return "content_block_delta", event


async def stream_events(service: Service, answers: Answers) -> AsyncIterator[bytes]:
    """The events of a streamed message, in Anthropic's order."""
    blocks = Blocks()
    n_prompt = len(answers.ask.prompt_ids)
    start = {
        **_head(service),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(Counts(prompt_tokens=n_prompt)),
    }
    yield _sse("message_start", {"type": "message_start", "message": start})
    yield _PING
    async for event in answers:
        if isinstance(event, Piece):
            for name, data in blocks.take(event.what):
                yield _sse(name, data)
        elif isinstance(event, Finish):
            for name, data in blocks.close():
                yield _sse(name, data)
            delta: Json = {"delta": _end(event), "usage": _usage(event.counts)}
            yield _sse("message_delta", {"type": "message_delta", **delta})
            yield _sse("message_stop", {"type": "message_stop"})
        elif isinstance(event, Quiet):
            yield _PING


def _sse(name: str, data: Json) -> bytes:
    return sse(encode(data), name)


_PING = _sse("ping", {"type": "ping"})


def failed(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return _sse("error", error_body("anthropic", error))
