"""`kinetic run`: one prompt in, one answer streamed to stdout.

Only the answer goes to stdout. The status line, the live speed and every notice go to stderr,
so that `kinetic run ... > answer.txt` holds the text and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from kinetic.cli.asking import (
    GENERATION,
    add_asking,
    has_template,
    load_model,
    template_variables,
    thinks,
    token_limit,
)
from kinetic.cli.held import add_forms, given_form
from kinetic.cli.named import read_bytes
from kinetic.cli.options import (
    add_model,
    add_runtime,
    add_sampling,
    sampling_overrides,
    take_model,
)
from kinetic.cli.parser import CommandParser, name
from kinetic.cli.receipts import Wanted, add_receipt, wanted
from kinetic.cli.speeds import answer_speed, speed
from kinetic.cli.terminal import LiveLine, is_interactive, use_utf8
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.api import Model, SamplingParams, Stats
    from kinetic.cli.chat.conversation import Prompt
    from kinetic.runtime.sampling.constraint import Constraint
    from kinetic.text.output import ChatFormat

_CONTINUED = ", no chat template: continued the text"


def build_parser() -> CommandParser:
    """The options of `kinetic run`."""
    parser = CommandParser(
        "run",
        'kinetic run [options] <model> ["prompt"]',
        "answers one prompt, streamed to stdout.",
        "Without a prompt, run reads it from stdin. After -- everything is prompt. A model "
        "without a chat template continues the text, and the status line says so.",
    )
    add_model(parser)
    group = GENERATION
    parser.option(
        group, "-p", "--prompt", metavar="TEXT", help="the prompt, instead of free words or stdin"
    )
    parser.option(
        group, *("-f", "--file"), metavar="FILE", type=name("a file"), help="the prompt's file"
    )
    parser.option(
        group, "--raw", help="continue the prompt as written, without the model's chat template"
    )
    add_asking(parser, reasoning="auto")
    add_forms(parser, group)
    add_receipt(parser, group)
    add_sampling(parser)
    add_runtime(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Answer one prompt. Raises: any KineticError of loading or generating."""
    use_utf8()
    path, words = take_model(options, "run")
    template_kwargs = template_variables(options)
    if options.raw and options.system is not None:
        raise UsageError("--raw sends no system prompt; put that text into the prompt.")
    form = given_form(options)
    given = options.prompt is not None or options.file is not None or bool(words)
    if not given and form is None and _may_chat(path, options):
        from kinetic.cli.chat import talk

        return talk(path, options)
    prompt = _prompt(options, words)
    receipt = wanted(options, path)

    model = load_model(path, options)
    from kinetic.api import SamplingParams
    from kinetic.cli.chat.conversation import Conversation, Prompt

    template = None if options.raw else model.chat_template
    if options.system is not None and template is None:
        raise UsageError(
            f"{path.name} has no chat template, so --system has no place in it; "
            "put that text into the prompt."
        )
    if template is None:
        chat, asked = None, Prompt(model.encode_prompt(prompt, raw=options.raw))
    else:
        chat = Conversation(template, options.system, thinks(options), template_kwargs)
        asked = chat.prompt(prompt)
    if not asked.ids:
        raise UsageError("the prompt is empty, and this model needs a first token to go on from.")
    params = SamplingParams.from_metadata(model.file.metadata).with_overrides(
        **sampling_overrides(options)
    )
    format = None if chat is None else chat.format
    style = None if format is None else format.reasoning
    held = None if form is None else form.constraint(model.tokenizer, style, asked.thinking)
    stats = _stream(model, asked, format, params, token_limit(options), held, receipt)
    if receipt is not None:
        said = prompt if chat is None else chat.messages(prompt)
        receipt.write(model, said, form, None if form is None else style, asked.thinking)
    if stats.stop_reason == "context":
        print(_cut(model.n_ctx), file=sys.stderr)
    note = _CONTINUED if model.chat_template is None else ""
    print(status_line(stats, model.device_name, note), file=sys.stderr)
    return 0


def _cut(n_ctx: int) -> str:
    return (
        f"kinetic: the answer was cut, because the context of {n_ctx} tokens is full; "
        "-c sets its size, -c 0 takes all the model supports."
    )


def status_line(stats: Stats, device_name: str, note: str = "") -> str:
    """The closing line of an answer: its speed, the prompt's speed and the device."""
    answer = answer_speed(stats.generated_tokens, stats.generate_seconds)
    prompt = speed(stats.prompt_tokens, stats.prompt_tokens, stats.prompt_seconds)
    return f"[{answer}; prompt {prompt} on {device_name}{note}]"


def _stream(
    model: Model,
    asked: Prompt,
    format: ChatFormat | None,
    params: SamplingParams,
    limit: int | None,
    held: Constraint | None,
    receipt: Wanted | None,
) -> Stats:
    """Write the answer as it comes; show the speed when only stderr is watched.

    *Raises* any KineticError of generating.
    """
    from kinetic.api import Stats
    from kinetic.cli.chat.screen import AnswerWriter
    from kinetic.generation import FinishEvent, GenerationRequest, TextEvent
    from kinetic.text.events import Text
    from kinetic.text.output import OutputParser

    shown = frozenset[int]() if format is None else format.shown(model.tokenizer)
    parser = None if format is None else OutputParser(format, is_open=asked.thinking)
    writer, line = AnswerWriter(), LiveLine(enabled=not sys.stdout.isatty())
    stats = Stats(prompt_tokens=len(asked.ids))
    started, count = 0.0, 0
    request = GenerationRequest(asked.ids, params, limit, constraint=held, shown=shown)
    events = model.start(request).events()
    if receipt is not None:
        events = receipt.hear(request, events)
    try:
        for event in events:
            if isinstance(event, FinishEvent):
                stats.take(event)
                if event.error is not None:
                    raise event.error
            elif isinstance(event, TextEvent):
                count += 1
                if count == 1:
                    started = time.perf_counter()
                elif line.enabled:
                    line.update(f"[{answer_speed(count, time.perf_counter() - started)}]")
                pieces = [Text(event.text)] if parser is None else parser.push(event.text)
                for piece in pieces:
                    writer.show(piece)
        for piece in [] if parser is None else parser.flush("stop"):
            writer.show(piece)
    finally:
        events.close()  # type: ignore[attr-defined]
        line.clear()
        writer.close()
    return stats


def _prompt(options: argparse.Namespace, words: list[str]) -> str:
    """The prompt from -p, -f, the free words or stdin.

    Raises: UsageError when there is none, when there are two, or when it is not UTF-8.
    """
    given = {"--prompt": options.prompt, "--file": options.file}
    by = [option for option, value in given.items() if value is not None]
    if by and (words or len(by) > 1):
        other = f"as {words[0]!r}" if words else f"by {by[1]}"
        raise UsageError(f"the prompt is given twice: by {by[0]} and {other}.")
    text: str
    if options.prompt is not None:
        text = options.prompt
    elif options.file is not None:
        text = _read_file(options.file)
    elif words:
        text = " ".join(words)
    else:
        text = _read_stdin()
    try:
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is not UTF-8 text at character {error.start}.") from None
    return text


def _may_chat(path: Path, options: argparse.Namespace) -> bool:
    """Whether a person without a prompt is to get a chat: at a terminal, with a chat template."""
    return not options.raw and is_interactive() and has_template(path, options)


def _read_file(file: str) -> str:
    return _decoded(read_bytes(file, "--file"), f"the prompt in {file}")


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError('there is no prompt; give one, as in kinetic run model.gguf "Hello".')
    if sys.stdin.isatty():
        print("Type the prompt; Ctrl-D on an empty line ends it.", file=sys.stderr)
    text = _decoded(sys.stdin.buffer.read(), "the prompt on stdin")
    if not text.strip():
        raise UsageError('stdin held no prompt; give one, as in kinetic run model.gguf "Hello".')
    return text


def _decoded(raw: bytes, what: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not UTF-8 text at byte {error.start}; convert it first."
        ) from None
    # Editors and echo end a file with a newline that nobody means as part of the prompt.
    return text.removesuffix("\n").removesuffix("\r")
