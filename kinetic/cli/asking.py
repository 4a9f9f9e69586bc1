"""What `run` and `chat` share: the options of an answer, and the chat template in use."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.cli.named import read_text
from kinetic.cli.options import load_options
from kinetic.cli.parser import CommandParser, name, whole
from kinetic.errors import TemplateError, UsageError

if TYPE_CHECKING:
    from kinetic.api import Model

GENERATION = "generation options"
_PROMPT_SETS = {"self", "messages", "tools", "add_generation_prompt"}


def add_asking(parser: CommandParser, *, reasoning: str) -> None:
    """The generation options; `reasoning` is the command's default."""
    parser.option(GENERATION, "--system", metavar="TEXT", help="system prompt")
    parser.option(
        GENERATION,
        *("-n", "--n-predict"),
        metavar="N",
        type=whole(-1),
        help="most tokens of an answer; -1 or 0 for no limit [default: no limit]",
    )
    parser.option(
        GENERATION,
        "--reasoning",
        choices=("on", "off", "auto"),
        default=reasoning,
        help="whether the model thinks before it answers; auto leaves it to the chat template "
        f"[default: {reasoning}]",
    )
    parser.option(
        GENERATION,
        "--chat-template-kwargs",
        metavar="JSON",
        help='variables for the chat template, such as {"enable_thinking": false}',
    )
    parser.option(
        GENERATION,
        "--chat-template-file",
        metavar="FILE",
        type=name("a file"),
        help="a Jinja chat template to use instead of the model's own",
    )


def token_limit(options: argparse.Namespace) -> int | None:
    """Most tokens of an answer."""
    given: int | None = options.n_predict
    return given if given is not None and given > 0 else None


def thinks(options: argparse.Namespace) -> bool | None:
    """Whether the model is to think first; None leaves it to the template."""
    return {"on": True, "off": False}.get(options.reasoning)


def template_variables(options: argparse.Namespace) -> dict[str, object]:
    """The variables that --chat-template-kwargs sets. Raises: UsageError unless it is an object."""
    text = options.chat_template_kwargs
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested without end
        value = None
    if not isinstance(value, dict):
        raise UsageError('--chat-template-kwargs takes a JSON object such as {"x": true}.')
    taken = _PROMPT_SETS & value.keys()
    if taken:
        raise UsageError(
            f"the chat template's variable {min(taken)!r} is set by the prompt itself; leave it "
            "out of --chat-template-kwargs"
        )
    return value


def template_source(options: argparse.Namespace) -> str | None:
    """The template of --chat-template-file. Raises: UsageError where it cannot be read."""
    file = options.chat_template_file
    if file is None:
        return None
    return read_text(file, "--chat-template-file")


def has_template(path: Path, options: argparse.Namespace) -> bool:
    """Whether a model can hold a conversation, seen before it is loaded."""
    if options.chat_template_file is not None:
        return True
    from kinetic.ir.gguf_split import open_model

    with open_model(path) as file:
        return bool(file.get_str("tokenizer.chat_template", ""))


def load_model(path: Path, options: argparse.Namespace, **changes: object) -> Model:
    """The model with its template, or with the one that the options name.

    Raises: any KineticError of loading.
    """
    from kinetic.api import Model
    from kinetic.cli.terminal import LoadBar

    source = template_source(options)
    bar = LoadBar()
    try:
        model = Model.load(
            path,
            ctx_size=options.ctx_size,
            progress=bar.progress,
            **{**load_options(options), **changes},
        )
    finally:
        bar.clear()
    if source is not None:
        try:
            set_template(model, source, options.chat_template_file)
        except BaseException:
            model.close()
            raise
    return model


def set_template(model: Model, source: str, file: str) -> None:
    """Give a model the template of a file. Raises: UsageError where it is none."""
    from kinetic.text.chat_template import ChatTemplate

    try:
        model.chat_template = ChatTemplate(source, model.tokenizer)
        model.chat_template.check()
    except TemplateError as error:
        raise UsageError(f"--chat-template-file {file}: {error}") from None
