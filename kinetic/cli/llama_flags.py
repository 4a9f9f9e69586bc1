"""llama.cpp's flags, so that its users' command lines work or are told what to use instead.

    SPELLINGS   other names of options Kinetic has
    ACCEPTED    asks for what Kinetic does by itself: dropped, with its values
    REFUSED     has no equivalent: one sentence each
    LATER       options, llama.cpp's and Kinetic's own, of a later version

A flag that a command declares under its own name is left alone. `docs/llama-flags.md` is written
from here.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from typing import Literal, NamedTuple

from kinetic.errors import UsageError

PROGRAMS = {"llama-server": "serve", "llama-cli": "chat", "llama-completion": "run"}
"""llama.cpp's programs, and the command that a copy or link of Kinetic with that name runs."""
_PROMPTS = ("-p", "--prompt", "-f", "--file")

SPELLINGS = {
    "-sys": "--system",
    "--system-prompt": "--system",
    "--temperature": "--temp",
    "-dev": "--device",
    "--predict": "--n-predict",
    "--seq-breaker": "--dry-sequence-breaker",
    "--top-n-sigma": "--top-nsigma",
    "--dry-seq-breaker": "--dry-sequence-breaker",
    "--typical-p": "--typical",
    "-a": "--alias",
    "-np": "--parallel",
    "-rea": "--reasoning",
}

_LAYERS = ("-ngl", "--n-gpu-layers", "--gpu-layers")
_SWITCHES = (
    *("--jinja", "--mmap", "-cb", "--cont-batching", "-nocb", "--no-cont-batching"),
    *("--no-warmup", "-no-cnv", "--no-conversation", "-st", "--single-turn"),
    *("--no-display-prompt", "--simple-io", "--repack", "--no-perf", "--log-disable"),
    *("--metrics", "--slots", "--no-webui", "--embedding", "--embeddings"),
)
_WITH_VALUE = (
    *("-b", "--batch-size", "-ub", "--ubatch-size", "-tb", "--threads-batch"),
    *("--cache-reuse", "--numa", "--prio", "--poll", "-to", "--timeout", "--threads-http"),
)
ACCEPTED = {**dict.fromkeys(_SWITCHES, 0), **dict.fromkeys(_WITH_VALUE, 1)}
"""Flags that are not needed, with the number of values each takes."""

_FLASH = ("-fa", "--flash-attn")
_FLASH_VALUES = ("on", "off", "auto", "0", "1")
"""What may follow `_FLASH`: newer builds of llama.cpp take a value."""
_CACHE_TYPE = ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v")
_CONVERSATION = ("-cnv", "--conversation", "-i", "--interactive", "--interactive-first")

_ONE_DEVICE = "Kinetic runs the model wholly on one device; choose it with --device"
_DRAFT = "speculative decoding is automatic and needs no draft model"
_PULL = "download with kinetic pull <org>/<repo>[:<quant>], then run it by name"
_SHAPE = "kinetic run holds an answer to a grammar, kinetic serve through grammar and "
_SHAPE += "response_format"
_SERVER = "it belongs to kinetic serve"
_TLS = "kinetic serve speaks plain HTTP; put a TLS proxy in front"
REFUSED = {
    **dict.fromkeys(("-sm", "--split-mode", "-ts", "--tensor-split"), _ONE_DEVICE),
    **dict.fromkeys(("-mg", "--main-gpu", "-ot", "--override-tensor"), _ONE_DEVICE),
    **dict.fromkeys(_CONVERSATION, "use kinetic chat <model>"),
    "--chat-template": "built-in template names are not supported; pass a Jinja file with "
    "--chat-template-file",
    **dict.fromkeys(("-md", "--model-draft", "--draft", "--draft-max", "--draft-min"), _DRAFT),
    "-ngld": _DRAFT,
    **dict.fromkeys(("-hf", "--hf-repo", "-mu", "--model-url"), _PULL),
    **dict.fromkeys(("-f", "--file"), "kinetic run <model> -f <file> answers a prompt in a file"),
    **dict.fromkeys(("--grammar", "--grammar-file", "-j", "--json-schema"), _SHAPE),
    **dict.fromkeys(("--host", "--port", "-a", "--alias", "-np", "--parallel"), _SERVER),
    "--api-key": _SERVER,
    "--api-key-file": "kinetic serve takes the key itself, with --api-key",
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _TLS),
}

_IMAGES = "Kinetic reads text alone so far"
_ROPE = "Kinetic takes the rotary settings of the model file"
LATER = {
    **dict.fromkeys(
        ("--control-vector", "--control-vector-scaled"), "LoRA adapters are, with --lora"
    ),
    **dict.fromkeys(("--image", "--mmproj"), _IMAGES),
    **dict.fromkeys(("--rope-scaling", "--rope-scale", "--rope-freq-scale"), _ROPE),
    **dict.fromkeys(("--rope-freq-base", "--yarn-orig-ctx"), _ROPE),
    **dict.fromkeys(_CACHE_TYPE, "the caches of keys and values hold f16"),
}


class Meaning(NamedTuple):
    """What becomes of a flag; `says` is Kinetic's name for it, or the sentence that stops."""

    kind: Literal["own", "works", "layers", "accepted", "flash", "f16", "stops", "unknown"]
    says: str = ""


def meaning(flag: str, command: str, known: Container[str]) -> Meaning:
    """What a command that has the options `known` does with a flag."""
    if flag in known:
        return Meaning("own", flag)
    if SPELLINGS.get(flag, "") in known:
        return Meaning("works", SPELLINGS[flag])
    if flag in _LAYERS and "--device" in known:
        return Meaning("layers")
    if flag in ACCEPTED or (command == "chat" and flag in _CONVERSATION):
        return Meaning("accepted")
    if flag in _FLASH:
        return Meaning("flash")
    if flag in _CACHE_TYPE and "--device" in known:
        return Meaning("f16", f"{flag} is not supported yet: {LATER[flag]}.")
    if flag in REFUSED:
        return Meaning("stops", f"{flag} is a llama.cpp flag: {REFUSED[flag]}.")
    if flag in LATER:
        return Meaning("stops", f"{flag} is not supported yet: {LATER[flag]}.")
    return Meaning("unknown")


def translate(line: list[str], known: Container[str], command: str = "") -> list[str]:
    """A command line with llama.cpp's flags in Kinetic's words.

    Raises: UsageError for a flag that has no equivalent, or none yet.
    """
    out: list[str] = []
    words = iter(range(len(line)))
    for i in words:
        flag, equals, value = line[i].partition("=")
        following = line[i + 1] if i + 1 < len(line) else None
        kind, says = meaning(flag, command, known)
        used = False
        if flag == "--lora-scaled" and kind == "own" and not equals and _is_number(line, i + 2):
            # As older llama.cpp took it: --lora-scaled FILE SCALE.
            out.append(f"{flag}={following}:{line[i + 2]}")
            next(words), next(words)
        elif not flag.startswith("-") or kind in ("own", "unknown"):
            out.append(line[i])
        elif kind == "works":
            out.append(says + equals + value)
        elif kind == "layers":
            layers = value if equals else following
            if layers is None:
                raise UsageError(f"{flag} needs a value.")
            # No GPU class exists yet: any other number leaves the choice to --device auto.
            if layers == "0":
                out.extend(("--device", "cpu"))
            used = True
        elif kind == "accepted":
            used = ACCEPTED.get(flag, 0) == 1
        elif kind == "flash":
            used = following in _FLASH_VALUES
        elif kind == "f16" and (value or following) == "f16":
            used = True
        else:
            raise UsageError(says)
        if used and not equals:
            next(words, None)
    return out


def _is_number(line: list[str], at: int) -> bool:
    """Whether there is a word there, and it is a number."""
    try:
        return math.isfinite(float(line[at]))
    except (IndexError, ValueError):
        return False


def as_program(name: str, arguments: list[str]) -> list[str]:
    """The command line of a copy or link of Kinetic that has the name of a llama.cpp program.

    `llama-cli` chats, or answers once when it is given a prompt.
    """
    command = PROGRAMS.get(name.lower().removesuffix(".exe"))
    if command is None or arguments[:1] in (["--version"], ["-V"]):
        return arguments
    given = {word.partition("=")[0] for word in arguments}
    if command == "chat" and given & set(_PROMPTS):
        command = "run"
    return [command, *arguments]


def documented() -> Iterator[str]:
    """Every flag that means something here, in the order of the book's table."""
    yield from dict.fromkeys(
        (*SPELLINGS, *_LAYERS, *_FLASH, *ACCEPTED, *REFUSED, *LATER, *_CACHE_TYPE)
    )
