"""`kinetic run`: one prompt in, one answer streamed to stdout.

Only the answer goes to stdout. The status line, the live speed and every notice go to stderr,
so that `kinetic run ... > answer.txt` holds the text and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from kinetic.cli.options import (
    add_model,
    add_runtime,
    add_sampling,
    load_options,
    sampling_overrides,
    take_model,
)
from kinetic.cli.parser import CommandParser, whole
from kinetic.cli.terminal import LiveLine, LoadBar, printable, use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.api import Model, SamplingParams, Stats

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
    group = "generation options"
    parser.option(
        group, "-p", "--prompt", metavar="TEXT", help="the prompt, instead of free words or stdin"
    )
    parser.option(group, "--system", metavar="TEXT", help="system prompt")
    parser.option(
        group,
        *("-n", "--n-predict"),
        metavar="N",
        type=whole(-1),
        help="most tokens of the answer; -1 or 0 for no limit [default: no limit]",
    )
    parser.option(
        group, "--raw", help="continue the prompt as written, without the model's chat template"
    )
    parser.option(
        group,
        "--chat-template-kwargs",
        metavar="JSON",
        help='variables for the chat template, such as {"enable_thinking": false}',
    )
    add_sampling(parser)
    add_runtime(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Answer one prompt. Raises: any KineticError of loading or generating."""
    use_utf8()
    path, words = take_model(options, "run")
    template_kwargs = _template_kwargs(options)
    if options.raw and options.system is not None:
        raise UsageError("--raw sends no system prompt; put that text into the prompt.")
    prompt = _prompt(options, words)

    model = _load(path, options)
    from kinetic.api import SamplingParams

    has_template = model.chat_template is not None
    if options.system is not None and not has_template:
        raise UsageError(
            f"{path.name} has no chat template, so --system has no place in it; "
            "put that text into the prompt."
        )
    prompt_ids = model.encode_prompt(
        prompt,
        system=options.system,
        raw=options.raw,
        template_kwargs=template_kwargs,
    )
    if not prompt_ids:
        raise UsageError("the prompt is empty, and this model needs a first token to go on from.")
    params = SamplingParams.from_metadata(model.file.metadata).with_overrides(
        **sampling_overrides(options)
    )
    limit = options.n_predict if options.n_predict and options.n_predict > 0 else None
    _stream(model, prompt_ids, params, limit)
    stats = model.last_stats
    if stats is not None:
        if stats.stop_reason == "context":
            print(_cut(model.n_ctx), file=sys.stderr)
        note = "" if has_template else _CONTINUED
        print(status_line(stats, model.device_name, note), file=sys.stderr)
    return 0


def _cut(n_ctx: int) -> str:
    return (
        f"kinetic: the answer was cut, because the context of {n_ctx} tokens is full; "
        "-c sets its size, -c 0 takes all the model supports."
    )


def status_line(stats: Stats, device_name: str, note: str = "") -> str:
    """The closing line of an answer: its speed, the prompt's speed and the device."""
    answer = _answer_speed(stats.generated_tokens, stats.generate_seconds)
    prompt = _speed(stats.prompt_tokens, stats.prompt_tokens, stats.prompt_seconds)
    return f"[{answer}; prompt {prompt} on {device_name}{note}]"


def _answer_speed(tokens: int, seconds: float) -> str:
    # The prompt's last step gives the first token, so the clock sees one step less.
    return _speed(tokens, tokens - 1, seconds)


def _speed(tokens: int, steps: int, seconds: float) -> str:
    rate = f"{steps / seconds:.1f}" if steps > 0 and seconds > 0 else "-"
    return f"{tokens} token{'' if tokens == 1 else 's'} at {rate} tok/s"


def _load(path: Path, options: argparse.Namespace) -> Model:
    from kinetic.api import Model

    bar = LoadBar()
    try:
        return Model.load(
            path, ctx_size=options.ctx_size, progress=bar.progress, **load_options(options)
        )
    finally:
        bar.clear()


def _stream(model: Model, prompt_ids: list[int], params: SamplingParams, limit: int | None) -> None:
    """Write the answer as it comes; show the speed when only stderr is watched."""
    on_terminal = sys.stdout.isatty()
    line = LiveLine(enabled=not on_terminal)
    started, count, last = 0.0, 0, "\n"
    try:
        for piece in model.generate(prompt_ids, params, max_tokens=limit):
            count += 1
            if count == 1:
                started = time.perf_counter()
            elif line.enabled:
                line.update(f"[{_answer_speed(count, time.perf_counter() - started)}]")
            if piece.text:
                # A model's words must not drive the terminal; a file gets them as they are.
                write_out(printable(piece.text) if on_terminal else piece.text)
                last = piece.text[-1]
    finally:
        line.clear()
        if last != "\n":
            write_out("\n")


def _prompt(options: argparse.Namespace, words: list[str]) -> str:
    """The prompt from -p, the free words or stdin.

    Raises: UsageError when there is none, when there are two, or when it is not UTF-8.
    """
    if options.prompt is not None:
        if words:
            raise UsageError(f"the prompt is given twice: by --prompt and as {words[0]!r}.")
        text: str = options.prompt
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


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError('there is no prompt; give one, as in kinetic run model.gguf "Hello".')
    if sys.stdin.isatty():
        print("Type the prompt; Ctrl-D on an empty line ends it.", file=sys.stderr)
    raw = sys.stdin.buffer.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt on stdin is not UTF-8 text at byte {error.start}; convert it first."
        ) from None
    if not text.strip():
        raise UsageError('stdin held no prompt; give one, as in kinetic run model.gguf "Hello".')
    # Editors and echo end a file with a newline that nobody means as part of the prompt.
    return text.removesuffix("\n").removesuffix("\r")


def _template_kwargs(options: argparse.Namespace) -> dict[str, object] | None:
    text = options.chat_template_kwargs
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested without end
        value = None
    if not isinstance(value, dict):
        raise UsageError('--chat-template-kwargs takes a JSON object such as {"x": true}.')
    return value
