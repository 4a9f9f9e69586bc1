"""From a conversation to a prompt, with the model file's own template."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jinja2

from kinetic.errors import TemplateError
from kinetic.text.markup_guard import MarkupGuard, MarkupTokens, Span
from kinetic.text.template_engine import ChatEnvironment, TemplateFault
from kinetic.text.tokenizer import Tokenizer
from kinetic.text.vocab import Metadata

Message = Mapping[str, object]

# A template that asks whether a message has content must be told the truth; to others absent
# content is an empty text, which every string operation accepts.
_ASKS_FOR_NONE = re.compile(r"content['\"]?\]?\s*(is\s+(not\s+)?|[!=]=\s*)[Nn]one")

MAX_TEMPLATE_BYTES = 1 << 20
_KNOWN_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython")
)
_SHOWN_ROLES = ("system", "developer", "user", "assistant", "tool")
# What a model wrote earlier and the client sends back.
_MODEL_FIELDS = ("content", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Rendered:
    """A prompt as text.

    `user_spans` are the characters that came from outside and could pass for markup,
    `model_spans` those of earlier replies; `guarded` are user-defined tokens, ones the template
    uses as markup, that must not be recognised in `user_spans`.
    """

    text: str
    user_spans: tuple[Span, ...] = ()
    model_spans: tuple[Span, ...] = ()
    guarded: frozenset[int] = field(default_factory=frozenset)


class ChatTemplate:
    """A model's chat template.

    *Raises*: TemplateError if the template is not valid Jinja.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        tool_source: str | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        for text in (source, tool_source or ""):
            if len(text) > MAX_TEMPLATE_BYTES:
                raise TemplateError(
                    f"the chat template has {len(text)} characters, "
                    f"more than the allowed {MAX_TEMPLATE_BYTES}"
                )
        self.source = source
        self._tokenizer = tokenizer
        self._plain = _Program(source, tokenizer, now)
        self._with_tools = _Program(tool_source, tokenizer, now) if tool_source else self._plain

    @classmethod
    def from_gguf(cls, gguf: Metadata, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template in a model file, or None if it has none."""
        source = gguf.get_str("tokenizer.chat_template", "")
        if not source:
            return None
        tools = gguf.get_str("tokenizer.chat_template.tool_use", "") or None
        return cls(source, tokenizer, tool_source=tools)

    # Rendering.

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> Rendered:
        """The prompt of a conversation; `kwargs` reach the template as variables.

        A developer message becomes a system message unless the template names the role. Text
        parts are joined by newlines; absent content is an empty text, or None if the template
        asks about None; None prints nothing; the arguments of tool calls are objects.

        *Raises*: TemplateError, with the template's own words if it refused the conversation.
        """
        program = self._with_tools if tools else self._plain
        guard = MarkupGuard(
            program.user_markup, self._model_markup, [messages, tools, kwargs], program.source
        )
        values: dict[str, object] = {
            "messages": self._messages(messages, program.source, guard, parse=True),
            "tools": guard.user(list(tools)) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_texts,
            **{name: guard.user(value) for name, value in kwargs.items()},
        }
        try:
            text = program.run(values, guard)
        except TemplateFault:
            # Some older templates glue the arguments of calls to text, as JSON.
            if not any(m.get("tool_calls") for m in messages):
                raise
            values["messages"] = self._messages(messages, program.source, guard, parse=False)
            text = program.run(values, guard)
        users, models = guard.spans(text)
        return Rendered(guard.restore(text), tuple(users), tuple(models), program.guarded)

    def encode(self, rendered: Rendered) -> list[int]:
        """The ids of a rendered prompt: markup as tokens, messages as text, one BOS in front."""
        return self._tokenizer.encode_prompt(
            rendered.text,
            rendered.user_spans,
            model_spans=rendered.model_spans,
            guarded=rendered.guarded,
        )

    def check(self) -> None:
        """Compile the template now rather than at the first conversation.

        *Raises*: TemplateError if it is not valid.
        """
        self._plain.compile()
        self._with_tools.compile()

    @functools.cached_property
    def _special_texts(self) -> dict[str, str]:
        tokenizer = self._tokenizer
        named = {
            "bos_token": tokenizer.bos_id,
            "eos_token": tokenizer.eos_id,
            "unk_token": tokenizer.vocab.special_id("unknown_token_id"),
            "pad_token": tokenizer.vocab.special_id("padding_token_id"),
        }
        return {
            name: "" if i is None else tokenizer.token_bytes(i).decode("utf-8", "replace")
            for name, i in named.items()
        }

    @functools.cached_property
    def _model_markup(self) -> MarkupTokens:
        # Templates look for the ends of reasoning in replies, so those stay as they are.
        return MarkupTokens(
            t.text for t in self._tokenizer.special_tokens if t.control and "think" not in t.text
        )

    # Messages.

    def _messages(
        self, messages: Sequence[Message], source: str, guard: MarkupGuard, *, parse: bool
    ) -> list[dict[str, object]]:
        return [self._message(m, i, source, guard, parse) for i, m in enumerate(messages)]

    def _message(
        self, message: Message, index: int, source: str, guard: MarkupGuard, parse: bool
    ) -> dict[str, object]:
        role = message.get("role")
        where = f"messages[{index}]"
        if not isinstance(role, str):
            raise TemplateError(f"{where}.role must be a string")
        self._check_role(role, where, source)
        out: dict[str, object] = {k: v for k, v in message.items() if v is not None}
        out["role"] = "system" if role == "developer" and "developer" not in source else role
        content = _content(message.get("content"), where)
        keep_none = "tool_calls" in out and _ASKS_FOR_NONE.search(source)
        out["content"] = "" if content is None and not keep_none else content
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str):
            out["tool_calls"] = [_tool_call(c, parse) for c in calls]
        for name, value in out.items():
            if name == "role":
                continue
            by_model = role == "assistant" and name in _MODEL_FIELDS
            out[name] = guard.model(value) if by_model else guard.user(value)
        return out

    def _check_role(self, role: str, where: str, source: str) -> None:
        """A role must be a common one or one that the template itself names.

        Templates leave others out in silence, or print them between markup, where a made-up one
        could complete a token.
        """
        if role in _KNOWN_ROLES:
            return
        markup = any(role in t.text for t in self._tokenizer.special_tokens if t.control)
        named = f"'{role}'" in source or f'"{role}"' in source
        if markup or not named or not role.replace("_", "").isalnum():
            raise TemplateError(
                f"{where}.role {role[:40]!r} is not a role that a chat can have; "
                f"use {', '.join(_SHOWN_ROLES[:-1])} or {_SHOWN_ROLES[-1]}"
            )


class _Program:
    """A template's source with what is derived from it, each made when first needed."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, now: Callable[[], datetime.datetime]
    ) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._environment = ChatEnvironment(now)

    def compile(self) -> jinja2.Template:
        return self._template

    @functools.cached_property
    def _template(self) -> jinja2.Template:
        try:
            return self._environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from None
        except (RecursionError, MemoryError):
            raise TemplateError("the chat template is nested too deep") from None

    def run(self, values: dict[str, object], guard: MarkupGuard) -> str:
        environment, template = self._environment, self._template
        try:
            try:
                return environment.run(template, values, guard.unescape_json)
            except TemplateFault as error:
                # Templates made only for tools loop over them unasked.
                if values["tools"] is not None or "'NoneType' object is not iter" not in str(error):
                    raise
                return environment.run(template, {**values, "tools": []}, guard.unescape_json)
        except TemplateError as error:
            raise type(error)(guard.restore(str(error))) from None

    @functools.cached_property
    def guarded(self) -> frozenset[int]:
        """User-defined tokens that the template uses as markup."""
        return frozenset(
            t.id
            for t in self._tokenizer.special_tokens
            if not t.control and not t.text.isalnum() and t.text.strip() and t.text in self.source
        )

    @functools.cached_property
    def user_markup(self) -> MarkupTokens:
        """The tokens that nothing from outside may form."""
        return MarkupTokens(
            t.text for t in self._tokenizer.special_tokens if t.control or t.id in self.guarded
        )


def _content(content: object, where: str) -> object:
    if content is None or isinstance(content, str) or not isinstance(content, Sequence):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            # The value is left out on purpose: it may be megabytes of image.
            raise TemplateError(f"{where}.content[{index}] is not text; this model takes only text")
        text = part.get("text", part.get("refusal", ""))
        if not isinstance(text, str):
            raise TemplateError(f"{where}.content[{index}].text must be a string")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: object, parse: bool) -> object:
    """A call whose arguments are an object, or its JSON text unless `parse`."""
    if not isinstance(call, Mapping):
        return call
    out = dict(call)
    if isinstance(out.get("function"), Mapping):
        out["function"] = _tool_call(out["function"], parse)
    arguments = out.get("arguments")
    if parse and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            out["arguments"] = parsed
    elif not parse and isinstance(arguments, Mapping):
        out["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return out
