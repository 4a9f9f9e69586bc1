"""Which dialect a chat template writes its calls in, told from the template's text."""

from __future__ import annotations

from kinetic.text.tools.deepseek import DeepSeek
from kinetic.text.tools.dialect import Dialect
from kinetic.text.tools.gemma4 import Gemma4
from kinetic.text.tools.glm import Glm
from kinetic.text.tools.harmony import Harmony
from kinetic.text.tools.hermes import Hermes
from kinetic.text.tools.lists import BareCalls, Granite3, Lfm2, Mistral
from kinetic.text.tools.qwen_xml import QwenXml

# The first that matches counts: a template with several markers means the more special one.
_BY_MARKUP: tuple[tuple[str, type[Dialect]], ...] = (
    ("<|constrain|>", Harmony),
    ("<|channel|>", Harmony),
    ("<function=", QwenXml),
    ("<arg_key>", Glm),
    ("<｜tool▁calls▁begin｜>", DeepSeek),
    ("<|tool_call>", Gemma4),
    ("[TOOL_CALLS]", Mistral),
    ("<|tool_call_start|>", Lfm2),
    ("<|tool_list_start|>", Lfm2),
    ("List of tools: [", Lfm2),
    ("<|tool_call|>", Granite3),
    ("<tool_call>", Hermes),
)


def dialect_of(template: str) -> Dialect:
    """The dialect of a template; bare JSON, which any model can write, where it shows none."""
    for markup, dialect in _BY_MARKUP:
        if markup in template:
            return dialect.of(template)
    return BareCalls()
