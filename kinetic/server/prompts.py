"""From a conversation, in OpenAI's form, to a prompt's token ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinetic.errors import KineticError, TemplateError
from kinetic.server.errors import ApiError, from_kinetic
from kinetic.server.service import Service
from kinetic.text.reasoning import opened_by, settled, thinking_kwargs

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_NINE_LETTERS = re.compile(r"length\s*!=\s*9|length\s+9|of length 9|length 9")
_SET_BY_REQUEST = ("messages", "tools", "add_generation_prompt", "self")


@dataclass(frozen=True)
class Prompt:
    """A prompt; `text` is its rendered form, `prefill` what it already holds of the answer."""

    ids: list[int]
    text: str
    prefill: str = ""
    thinking: bool = False
    """Whether it ends inside a block of thinking."""


@dataclass(frozen=True)
class Conversation:
    """What a chat request says, whatever its dialect."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    kwargs: Mapping[str, Any] | None = None
    think: bool | None = None
    effort: str | None = None
    continue_last: bool = True


def need_template(service: Service) -> None:
    """Raises: ApiError where the model has no chat template."""
    service.need_text_model()
    if service.model.chat_template is None:
        raise ApiError(
            400,
            "this model has no chat template; continue texts with /v1/completions, or start the "
            "server with --chat-template-file",
        )


def chat_prompt(service: Service, talk: Conversation) -> Prompt:
    """The prompt of a conversation; runs on a worker thread.

    A last message of the assistant is the beginning of the answer.

    Raises: ApiError.
    """
    need_template(service)
    template = service.model.chat_template
    assert template is not None
    messages = [_checked(m, i) for i, m in enumerate(talk.messages)]
    if not messages:
        raise ApiError(400, "messages is empty; give at least one message", "messages")
    prefill = _prefill(messages) if talk.continue_last else None
    if prefill is not None:
        messages = messages[:-1]
    if _NINE_LETTERS.search(template.source):
        messages = [_short_ids(m) for m in messages]
    try:
        rendered = template.render(
            messages, tools=list(talk.tools) or None, **template_variables(service, talk)
        )
        style = service.chat_format.reasoning
        thinking = opened_by(style, rendered.text, rendered.user_spans)
        more = prefill or ""
        if style is not None and thinking:
            opener = style.opener.rstrip("\n")
            if more.startswith(opener):
                more = more.removeprefix(opener).lstrip("\n")
            elif prefill or _forbids(service, talk):
                more = settled(style, False, True)[0] + more
            thinking = style.closer not in more
        elif style is not None and more.lstrip().startswith(style.opener):
            thinking = style.closer not in more
        elif style is not None and prefill:
            more = style.answer + more
        elif style is not None and _forbids(service, talk) and not (style.answer and talk.tools):
            more, thinking = settled(style, False, False)
        if more:
            start, text = len(rendered.text), rendered.text + more
            spans = (*rendered.model_spans, (start, len(text)))
            rendered = replace(rendered, text=text, model_spans=spans)
        return Prompt(template.encode(rendered), rendered.text, more, thinking)
    except TemplateError as error:
        raise ApiError(400, str(error), _param_of(str(error))) from None
    except KineticError as error:
        raise from_kinetic(error) from None


def template_variables(service: Service, talk: Conversation) -> dict[str, Any]:
    """The template's variables: the request's own, and whether and how hard to think."""
    kwargs = dict(talk.kwargs or {})
    for name in _SET_BY_REQUEST:
        if name in kwargs:
            raise ApiError(
                400,
                f"chat_template_kwargs may not set {name!r}, which the request itself does",
                "chat_template_kwargs",
            )
    think: bool | str | None = talk.effort
    if think is None:
        think = service.options.think if talk.think is None else talk.think
    return {**thinking_kwargs(service.chat_format.reasoning, think), **kwargs}


def _forbids(service: Service, talk: Conversation) -> bool:
    """Whether a request, or else the server, asks for no thinking."""
    if talk.think is None and talk.effort is None:
        return service.options.think is False
    return talk.think is False or think_of(talk.effort) is False


def think_of(effort: str | None) -> bool | None:
    """Whether a reasoning effort asks for thinking; None where nothing is said."""
    if effort is None:
        return None
    return effort not in ("none", "off", "disabled")


def _checked(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ApiError(400, f"{where}.role must be a string", f"{where}.role")
    if content is not None and not isinstance(content, str | list):
        raise ApiError(
            400, f"{where}.content must be a string or a list of parts", f"{where}.content"
        )
    for i, part in enumerate(content if isinstance(content, list) else ()):
        at = f"{where}.content[{i}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise ApiError(400, f"{at} must be an object with a type", at)
        if part["type"] not in _TEXT_PARTS:
            # The part itself is not repeated: it may be megabytes of image.
            raise ApiError(400, f"{at} is not text, and this model takes only text", at)
        if not isinstance(part.get("text", part.get("refusal")), str):
            raise ApiError(400, f"{at}.text must be a string", at)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise ApiError(400, f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    for i, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            at = f"{where}.tool_calls[{i}].function"
            raise ApiError(400, f"{at} must be an object with a name", at)
    return dict(message)


def _prefill(messages: Sequence[Mapping[str, Any]]) -> str | None:
    last = messages[-1]
    content = last.get("content")
    if last["role"] != "assistant" or last.get("tool_calls") or len(messages) < 2:
        return None
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) and content else None


def _short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """Call ids as nine letters, for templates that insist on them; in the prompt alone."""
    out = dict(message)
    if isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = _nine(out["tool_call_id"])
    if isinstance(out.get("tool_calls"), list):
        out["tool_calls"] = [
            {**call, "id": _nine(str(call["id"]))} if isinstance(call.get("id"), str) else call
            for call in out["tool_calls"]
        ]
    return out


def _nine(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _param_of(words: str) -> str | None:
    found = re.match(r"messages\[\d+\](?:\.\w+(?:\[\d+\])?)*", words)
    return found[0] if found else None
