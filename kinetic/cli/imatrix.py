"""`kinetic imatrix`: how much each input of a model's weights matters, for `quantize --imatrix`."""

from __future__ import annotations

import argparse
from pathlib import Path

from kinetic.cli.named import model_parts, new_file
from kinetic.cli.options import add_model, no_more_words, take_model
from kinetic.cli.parser import CommandParser, name, whole
from kinetic.cli.terminal import LoadBar, printable, use_utf8, write_out
from kinetic.cli.windows import DEFAULT_WINDOW, Progress, first_token, read_text
from kinetic.errors import UsageError

DEFAULT_OUT = "imatrix.gguf"


def build_parser() -> CommandParser:
    """The options of `kinetic imatrix`."""
    parser = CommandParser(
        "imatrix",
        "kinetic imatrix [options] <model> -f <text file>",
        "makes an importance matrix from a text, for kinetic quantize --imatrix.",
        "The file is llama.cpp's GGUF form. A few hundred windows of text like what the model "
        "will be used for are enough.",
    )
    add_model(parser)
    group = "imatrix options"
    option = parser.option
    option(group, "-f", "--file", metavar="FILE", type=name("a file"), help="the text")
    option(
        group,
        *("-o", "--output", "--output-file"),
        dest="output",
        metavar="FILE",
        type=name("a file"),
        default=DEFAULT_OUT,
        help=f"the importance matrix [default: {DEFAULT_OUT}]",
    )
    option(
        group,
        *("-c", "--ctx-size"),
        metavar="N",
        type=whole(4, 1 << 24),
        default=DEFAULT_WINDOW,
        help=f"tokens of a window [default: {DEFAULT_WINDOW}]",
    )
    option(group, "--chunks", metavar="N", type=whole(-1), help="windows to run [default: all]")
    option(group, "--parse-special", help="read control tokens in the text as such")
    option(
        group, "-t", "--threads", metavar="N", type=whole(1, 4096), help="threads [default: all]"
    )
    option(group, "-y", "--yes", "--force", dest="yes", help="replace the new file if it exists")
    return parser


def run(options: argparse.Namespace) -> int:
    """Collect one matrix. Raises: UsageError, and what loading and writing raise."""
    use_utf8()
    path, words = take_model(options, "imatrix")
    if options.file is None and words:
        options.file = words.pop(0)
    no_more_words(words, "imatrix")
    if options.file is None:
        raise UsageError(f"give a text file, as in kinetic imatrix {path.name} -f text.txt.")
    given = Path(options.file).expanduser()
    out = new_file(
        options.output,
        "the new file",
        sources=[*model_parts(path), given],
        forced=options.yes,
        force="--yes",
    )
    text = read_text(given)
    most = options.chunks if options.chunks and options.chunks > 0 else None

    from kinetic.ir.gguf_split import open_model
    from kinetic.perplexity.measure import cut
    from kinetic.quantize.collect import Collector
    from kinetic.quantize.importance import write
    from kinetic.runtime.cpus import default_threads
    from kinetic.text.tokenizer import Tokenizer

    with open_model(path) as file:
        tokenizer = Tokenizer.from_gguf(file)  # type: ignore[arg-type]
        ids = tokenizer.encode(text, add_special=True, parse_special=options.parse_special)
        tokens = cut(ids, options.ctx_size, most)
        bar = LoadBar()
        try:
            collector = Collector(
                file, options.ctx_size, options.threads or default_threads(), bar.progress
            )
        finally:
            bar.clear()
        try:
            progress = Progress(len(tokens) // options.ctx_size)
            for done in collector.run(tokens, first_token(tokenizer)):
                progress.update(done)
            progress.clear()
            found = collector.found(options.file)
        finally:
            collector.close()
    write(out, found)
    write_out(
        f"{printable(out.name)}: {len(found.matrices)} weights, "
        f"{found.chunks} window{'' if found.chunks == 1 else 's'} of "
        f"{found.chunk_size} tokens\n"
    )
    return 0
