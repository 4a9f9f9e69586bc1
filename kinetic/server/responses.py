"""OpenAI's Responses dialect, as agents such as Codex use it. Nothing is stored."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from kinetic.runtime.request import Counts
from kinetic.server.asks import Ask
from kinetic.server.body import read, service_of
from kinetic.server.errors import ApiError
from kinetic.server.events import Answers, Call, Finish, Piece, Quiet, Whole
from kinetic.server.fields import (
    Json,
    SamplingFields,
    check_length,
    encode,
    refuse_receipt,
    salt_of,
    sampling_params,
)
from kinetic.server.prompts import Conversation, chat_prompt, think_of
from kinetic.server.reply import KEEP_ALIVE, Stream, json_response, sse, whole
from kinetic.server.service import Service
from kinetic.server.shaping import Shape, choose_tools, response_format_shape, shaped
from kinetic.text.events import Reasoning, Text, ToolArguments, ToolCallEnd, ToolCallStart

log = logging.getLogger("kinetic.server")
_NO_PICTURE = "[a picture was left out here: this model reads only text]"
_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


class ResponsesBody(Struct, kw_only=True):
    """The body of /v1/responses."""

    input: str | list[Json] | None = None
    model: str | None = None
    instructions: str | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: int | None = None
    reasoning: Json | None = None
    text: Json | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    metadata: Json | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: Json | None = None
    cache_salt: str | None = None
    seed: int | None = None
    receipt: bool | None = None


async def responses(request: Request) -> Response:
    """POST /v1/responses."""
    service = service_of(request)
    body = await read(request, ResponsesBody)
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name):
            raise ApiError(
                400, f"{name} is not supported: nothing is stored; send the whole input", name
            )
    ask = await asyncio.to_thread(_ask, service, body, salt_of(request, body.cache_salt))
    answers = await Answers.start(service, ask)
    told = Told(service, body)
    if body.stream:
        return Stream(answers, told.stream(answers), told.failed)
    (answer,) = await whole(request, answers)
    return json_response(told.whole(answer))


# Requests. ---------------------------------------------------------------------------------


def _ask(service: Service, body: ResponsesBody, salt: str) -> Ask:
    refuse_receipt(body.receipt)
    if not body.input and not body.instructions:
        raise ApiError(400, "input is missing; give it", "input")
    messages = from_items(body.input or "")
    if not messages and not body.instructions:
        raise ApiError(400, "input holds no message; give one", "input")
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    messages = _one_system(messages)
    if not any(m["role"] != "system" for m in messages):
        messages.append({"role": "user", "content": ""})  # some clients probe with nothing
    tools, choice = choose_tools(_tools(body.tools or []), _choice(body.tool_choice))
    effort = (body.reasoning or {}).get("effort")
    effort = effort if isinstance(effort, str) else None
    talk = Conversation(messages, tools, body.chat_template_kwargs, think_of(effort), effort)
    prompt = chat_prompt(service, talk)
    check_length(prompt.ids, service)
    shape = Shape(
        chat=True,
        choice=choice,
        parallel_calls=body.parallel_tool_calls,
        schema_field="text.format",
        **response_format_shape((body.text or {}).get("format"), "text.format"),
    )
    sampling = SamplingFields(temperature=body.temperature, top_p=body.top_p, seed=body.seed)
    return Ask(
        prompt_ids=prompt.ids,
        params=sampling_params(sampling, service),
        max_tokens=body.max_output_tokens,
        salt=salt,
        **shaped(service, shape, prompt),
    )


def _one_system(messages: list[Json]) -> list[Json]:
    """System and developer texts as one message in front, which every template takes."""
    texts = [str(m["content"]) for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _tools(given: list[Json]) -> list[Json]:
    """The function tools, in the form that chat completions have."""
    out, skipped = [], []
    for i, tool in enumerate(given):
        if tool.get("type") != "function":
            skipped.append(str(tool.get("type"))[:40])
            continue
        if not isinstance(tool.get("name"), str):
            raise ApiError(400, f"tools[{i}].name must be a string", f"tools[{i}].name")
        keys = ("name", "description", "parameters", "strict")
        out.append({"type": "function", "function": {k: tool[k] for k in keys if k in tool}})
    if skipped:
        log.info("tools that are not functions are left out: %s", ", ".join(skipped))
    return out


def _choice(choice: str | Json | None) -> str | Json | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    named = isinstance(choice, dict) and choice.get("type") == "function"
    if not isinstance(choice, dict) or not named or not isinstance(choice.get("name"), str):
        raise ApiError(
            400,
            'tool_choice must be "auto", "none", "required" or {"type": "function", "name": ...}',
            "tool_choice",
        )
    return {"type": "function", "function": {"name": choice["name"]}}


def from_items(given: str | list[Json]) -> list[Json]:
    """Input items as messages in the form of chat completions.

    Raises: ApiError.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    out: list[Json] = []
    for i, item in enumerate(given):
        where, kind = f"input[{i}]", item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if not isinstance(role, str):
                raise ApiError(400, f"{where}.role must be a string", f"{where}.role")
            content = _content(item.get("content"), where, pictures=False)
            _say(out, role, content)
        elif kind == "function_call":
            name = _string(item, "name", where)
            function = {"name": name, "arguments": str(item.get("arguments", ""))}
            call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
            _assistant(out).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"), where, pictures=True)
            call_id = _string(item, "call_id", where)
            out.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif kind == "reasoning":
            thought = _content(item.get("content") or item.get("summary") or "", where, True)
            if thought:
                out.append({"role": "assistant", "content": "", "reasoning_content": thought})
        else:
            log.info("%s of type %s is left out", where, str(kind)[:40])
    return out


def _string(item: Json, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(400, f"{where}.{name} must be a string", f"{where}.{name}")
    return value


def _say(out: list[Json], role: str, content: str) -> None:
    if role == "assistant" and out and out[-1]["role"] == "assistant":
        own = out[-1]
        if not own["content"] and "tool_calls" not in own:
            own["content"] = content
            return
    out.append({"role": role, "content": content})


def _assistant(out: list[Json]) -> Json:
    """The assistant's message that a call belongs to."""
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": ""})
    return out[-1]


def _content(content: object, where: str, pictures: bool) -> str:
    """The text of some parts; with `pictures`, those become a note."""
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if kind in _TEXTS and isinstance(text, str):
            texts.append(text)
        elif pictures:
            texts.append(_NO_PICTURE)
        else:
            at = f"{where}.content[{i}]"
            raise ApiError(400, f"{at} is not text, and this model takes only text", at)
    return "\n".join(texts)


# Answers. ----------------------------------------------------------------------------------


class Told:
    """An answer as items: reasoning, a message, calls; whole, or as they come."""

    def __init__(self, service: Service, body: ResponsesBody) -> None:
        self.service, self.body = service, body
        self.id = f"resp_{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._items: list[Json] = []
        self._sequence = 0

    def response(self, status: str, **more: object) -> Json:
        """The response object."""
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.service.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
            **more,
        }

    def whole(self, answer: Whole) -> Json:
        """The answer at once."""
        items: list[Json] = []
        if answer.reasoning:
            items.append(_reasoning(answer.reasoning))
        if answer.text or not answer.calls:
            items.append(_message(answer.text))
        items += [_call(call) for call in answer.calls]
        return self._ended(items, answer.finish)

    def _ended(self, items: list[Json], finish: Finish | None) -> Json:
        cut = finish is None or finish.reason == "length"
        return self.response(
            "incomplete" if cut else "completed",
            output=items,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=_usage(finish.counts if finish is not None else Counts()),
        )

    async def stream(self, answers: Answers) -> AsyncIterator[bytes]:
        """The events of a streamed response."""
        for name in ("created", "in_progress"):
            begun = {"response": self.response("in_progress")}
            yield self._event(f"response.{name}", begun)
        open_item: _Open | None = None
        async for event in answers:
            if isinstance(event, Quiet):
                yield KEEP_ALIVE
            elif isinstance(event, Piece):
                kind = _KINDS.get(type(event.what))
                if open_item is not None and (
                    open_item.kind != kind or isinstance(event.what, ToolCallStart)
                ):
                    for chunk in self._close(open_item):
                        yield chunk
                    open_item = None
                if open_item is None and kind is not None:
                    open_item = _Open(kind, len(self._items), event.what)
                    for chunk in self._open(open_item):
                        yield chunk
                if open_item is not None:
                    for chunk in self._more(open_item, event.what):
                        yield chunk
            elif isinstance(event, Finish):
                if open_item is None and not self._items:
                    open_item = _Open("message", 0, Text(""))
                    for chunk in self._open(open_item):
                        yield chunk
                if open_item is not None:
                    for chunk in self._close(open_item):
                        yield chunk
                end = self._ended(self._items, event)
                name = "response.completed" if end["status"] == "completed" else _INCOMPLETE
                yield self._event(name, {"response": end})

    def failed(self, error: ApiError) -> bytes:
        """An error in the middle of a stream."""
        inner = {"code": error.code or "server_error", "message": error.message}
        response = self.response("failed", error=inner, output=self._items)
        return self._event("response.failed", {"response": response})

    def _event(self, name: str, data: Json) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return sse(encode({"type": name, "sequence_number": number, **data}), name)

    def _open(self, item: _Open) -> list[bytes]:
        out = [self._event("response.output_item.added", item.where() | {"item": item.empty()})]
        if item.kind == "message":
            part = item.place() | {"part": _output_text("")}
            out.append(self._event("response.content_part.added", part))
        return out

    def _more(self, item: _Open, what: object) -> list[bytes]:
        if isinstance(what, Text):
            item.text += what.text
            delta = item.place() | {"delta": what.text, "logprobs": []}
            return [self._event("response.output_text.delta", delta)]
        if isinstance(what, Reasoning):
            item.text += what.text
            delta = item.place() | {"delta": what.text}
            return [self._event("response.reasoning_text.delta", delta)]
        if isinstance(what, ToolArguments):
            item.text += what.delta
            delta = item.at() | {"delta": what.delta}
            return [self._event("response.function_call_arguments.delta", delta)]
        return []

    def _close(self, item: _Open) -> list[bytes]:
        whole = item.whole()
        out = []
        if item.kind == "message":
            done = item.place() | {"text": item.text, "logprobs": []}
            out.append(self._event("response.output_text.done", done))
            part = item.place() | {"part": _output_text(item.text)}
            out.append(self._event("response.content_part.done", part))
        elif item.kind == "reasoning":
            done = item.place() | {"text": item.text}
            out.append(self._event("response.reasoning_text.done", done))
        else:
            done = item.at() | {"arguments": item.text, "name": item.name}
            out.append(self._event("response.function_call_arguments.done", done))
        out.append(self._event("response.output_item.done", item.where() | {"item": whole}))
        self._items.append(whole)
        return out


_INCOMPLETE = "response.incomplete"
_KINDS: dict[type, str] = {
    Text: "message",
    Reasoning: "reasoning",
    ToolCallStart: "function_call",
    ToolArguments: "function_call",
    ToolCallEnd: "function_call",
}


class _Open:
    """The item of a stream that is being written."""

    def __init__(self, kind: str, index: int, first: object) -> None:
        self.kind, self.index, self.text = kind, index, ""
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self.id = f"{prefix}_{secrets.token_hex(12)}"
        self.name, self.call_id = "", ""
        if isinstance(first, ToolCallStart):
            self.name, self.call_id = first.name, first.id

    def where(self) -> Json:
        """Which item of the output it is."""
        return {"output_index": self.index}

    def at(self) -> Json:
        """The same with its id."""
        return {"item_id": self.id, "output_index": self.index}

    def place(self) -> Json:
        """The place of its one part."""
        return self.at() | {"content_index": 0}

    def empty(self) -> Json:
        """The item before anything was written."""
        if self.kind == "message":
            return _message("", self.id, "in_progress") | {"content": []}
        if self.kind == "reasoning":
            return _reasoning("", self.id) | {"content": []}
        return _call(Call(self.call_id, self.name), self.id, "in_progress")

    def whole(self) -> Json:
        """The item as it is now."""
        if self.kind == "message":
            return _message(self.text, self.id)
        if self.kind == "reasoning":
            return _reasoning(self.text, self.id)
        return _call(Call(self.call_id, self.name, self.text), self.id)


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(text: str, item_id: str | None = None, status: str = "completed") -> Json:
    return {
        "type": "message",
        "id": item_id or f"msg_{secrets.token_hex(12)}",
        "status": status,
        "role": "assistant",
        "content": [_output_text(text)],
    }


def _reasoning(text: str, item_id: str | None = None) -> Json:
    return {
        "type": "reasoning",
        "id": item_id or f"rs_{secrets.token_hex(12)}",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": None,
    }


def _call(call: Call, item_id: str | None = None, status: str = "completed") -> Json:
    return {
        "type": "function_call",
        "id": item_id or f"fc_{secrets.token_hex(12)}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }


def _usage(counts: Counts) -> Json:
    prompt, generated = counts.prompt_tokens, counts.generated_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + generated,
    }
