"""llama.cpp's flags, so that its users' command lines work or are told what to use instead.

Four tables: other spellings of options Kinetic has, flags for what Kinetic does by itself
(accepted, and dropped with their value), flags with no equivalent (one sentence each), and
options, llama.cpp's and Kinetic's own, of a later version.
A flag that a command declares under its own name is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Container

from kinetic.errors import UsageError

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

# Accepted and not needed: the number of values each takes.
_SWITCHES = (
    *("--jinja", "--mmap", "-cb", "--cont-batching", "-nocb", "--no-cont-batching"),
    *("--no-warmup", "-no-cnv", "--no-conversation", "-st", "--single-turn"),
    *("--no-display-prompt", "--simple-io", "--repack"),
    *("--metrics", "--slots", "--no-webui", "--embedding", "--embeddings"),
)
_WITH_VALUE = (
    *("-b", "--batch-size", "-ub", "--ubatch-size", "-tb", "--threads-batch"),
    *("--cache-reuse", "--numa", "--prio", "--poll", "-to", "--timeout", "--threads-http"),
)
# These take a value only in newer builds of llama.cpp.
_FLASH = ("-fa", "--flash-attn")
_FLASH_VALUES = ("on", "off", "auto", "0", "1")

# Accepted with the type that Kinetic's caches have.
_CACHE_TYPE = ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v")

_ONE_DEVICE = "Kinetic runs the model wholly on one device; choose it with --device"
_DRAFT = "speculative decoding needs no flag and no draft model in Kinetic"
_ONCE = "kinetic run answers once, and kinetic chat is not in this version yet"
_SHAPE = "constrained output is not in the command line"
_SERVER = "it belongs to kinetic serve"
_TLS = "kinetic serve speaks plain HTTP; put a TLS proxy in front"
REFUSED = {
    **dict.fromkeys(("-sm", "--split-mode", "-ts", "--tensor-split"), _ONE_DEVICE),
    **dict.fromkeys(("-mg", "--main-gpu", "-ot", "--override-tensor"), _ONE_DEVICE),
    **dict.fromkeys(("-md", "--model-draft", "--draft", "--draft-max", "--draft-min"), _DRAFT),
    "-ngld": _DRAFT,
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive"), _ONCE),
    "--interactive-first": _ONCE,
    **dict.fromkeys(("-hf", "--hf-repo", "-mu", "--model-url"), "Kinetic runs a file on your disk"),
    **dict.fromkeys(("-f", "--file"), "pipe the prompt in: kinetic run <model> < prompt.txt"),
    **dict.fromkeys(("--grammar", "--grammar-file", "-j", "--json-schema"), _SHAPE),
    "--chat-template": "Kinetic uses the template in the model file",
    **dict.fromkeys(("--host", "--port", "-a", "--alias", "-np", "--parallel"), _SERVER),
    "--api-key": _SERVER,
    "--api-key-file": "kinetic serve takes the key itself, with --api-key",
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _TLS),
}

_IMAGES = "Kinetic reads text alone so far"
_ROPE = "Kinetic takes the rotary settings of the model file"
LATER = {
    **dict.fromkeys(("--control-vector", "--control-vector-scaled"), "leave it out"),
    **dict.fromkeys(("--image", "--mmproj"), _IMAGES),
    **dict.fromkeys(("--rope-scaling", "--rope-scale", "--rope-freq-scale"), _ROPE),
    **dict.fromkeys(("--rope-freq-base", "--yarn-orig-ctx"), _ROPE),
    **dict.fromkeys(_CACHE_TYPE, "the caches of keys and values hold f16"),
    "--chat-template-file": "Kinetic uses the template in the model file",
    **dict.fromkeys(
        ("-rea", "--reasoning"),
        'where the template has a switch, use --chat-template-kwargs {"enable_thinking": false}',
    ),
    **dict.fromkeys(("--receipt", "--sign-key"), "receipts come in a later version"),
}


def _is_number(line: list[str], at: int) -> bool:
    """Whether there is a word there, and it is a number."""
    try:
        return math.isfinite(float(line[at]))
    except (IndexError, ValueError):
        return False


def translate(line: list[str], known: Container[str]) -> list[str]:
    """A command line with llama.cpp's flags in Kinetic's words.

    Raises: UsageError for a flag that has no equivalent, or none yet.
    """
    out: list[str] = []
    words = iter(range(len(line)))
    for i in words:
        name, equals, value = line[i].partition("=")
        following = line[i + 1] if i + 1 < len(line) else None
        if name == "--lora-scaled" and name in known and not equals and _is_number(line, i + 2):
            out.append(f"{name}={following}:{line[i + 2]}")  # as older llama.cpp took it
            next(words, None)
            next(words, None)
        elif name in known or not name.startswith("-"):
            out.append(line[i])
        elif SPELLINGS.get(name) in known if name in SPELLINGS else False:
            out.append(SPELLINGS[name] + equals + value)
        elif name in ("-ngl", "--n-gpu-layers", "--gpu-layers") and "--device" in known:
            layers = value if equals else following
            if layers is None:
                raise UsageError(f"{name} needs a value.")
            # No GPU class exists yet: any other number leaves the choice to --device auto.
            if layers == "0":
                out.extend(("--device", "cpu"))
            if not equals:
                next(words, None)
        elif name in _SWITCHES:
            continue
        elif name in _WITH_VALUE:
            if not equals:
                next(words, None)
        elif name in _FLASH:
            if not equals and following in _FLASH_VALUES:
                next(words, None)
        elif name in _CACHE_TYPE and "--device" in known and (value or following) == "f16":
            if not equals:
                next(words, None)
        elif name in REFUSED:
            raise UsageError(f"{name} is a llama.cpp flag: {REFUSED[name]}.")
        elif name in LATER:
            raise UsageError(f"{name} is not supported yet: {LATER[name]}.")
        else:
            out.append(line[i])
    return out
