"""`kinetic perplexity`: how well a model predicts a text, as llama-perplexity measures it."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.cli.named import model_parts, new_file, readable
from kinetic.cli.options import add_model, add_runtime, load_options, no_more_words, take_model
from kinetic.cli.parser import CommandParser, name, whole
from kinetic.cli.terminal import LoadBar, use_utf8, write_out
from kinetic.cli.windows import DEFAULT_WINDOW, Progress, first_token, read_text
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api import Model
    from kinetic.perplexity.scores import Comparison, Estimate

_LEAST_COUNT = 100
"""Tokens below which shares of tokens mean nothing."""
_SHARES = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001)


def build_parser() -> CommandParser:
    """The options of `kinetic perplexity`."""
    parser = CommandParser(
        "perplexity",
        "kinetic perplexity [options] <model> [<text file>]",
        "measures perplexity and KL divergence over a text file, as llama-perplexity does.",
        "The text is cut into windows of -c tokens, and the second half of each is scored. "
        "Files of log-probabilities are llama-perplexity's, in both directions.",
    )
    add_model(parser)
    group = "perplexity options"
    option = parser.option
    option(group, "-f", "--file", metavar="FILE", help="the text, instead of the second word")
    option(
        group,
        *("-c", "--ctx-size"),
        metavar="N",
        type=whole(4, 1 << 24),
        help=f"tokens of a window [default: {DEFAULT_WINDOW}]",
    )
    option(group, "--chunks", metavar="N", type=whole(-1), help="windows to score [default: all]")
    option(
        group,
        "--kl-divergence-base",
        metavar="FILE",
        type=name("a file"),
        help="save the log-probabilities in this file",
    )
    option(
        group,
        "--kl-divergence",
        metavar="FILE",
        value_optional=True,
        help="compare this model with such a file, on the tokens stored in it",
    )
    add_runtime(parser, context=False)
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure one model. Raises: UsageError, and what loading and reading raise."""
    use_utf8()
    path, words = take_model(options, "perplexity")
    saved = _saved(options)
    if saved is not None:
        no_more_words(words, "perplexity --kl-divergence")
        return _compare(path, saved, options)
    if options.file is None and words:
        options.file = words.pop(0)
    no_more_words(words, "perplexity")
    if options.file is None:
        raise UsageError(f"give a text file, as in kinetic perplexity {path.name} text.txt.")
    text = read_text(Path(options.file))
    base = options.kl_divergence_base
    if base is not None:
        from kinetic.perplexity.base_file import is_base

        base = new_file(base, "--kl-divergence-base", sources=model_parts(path), ours=is_base)
    return _measure(path, text, base, options)


def _saved(options: argparse.Namespace) -> Path | None:
    """The file to compare with. llama-perplexity names it by --kl-divergence-base."""
    if options.kl_divergence is None:
        return None
    named = options.kl_divergence or options.kl_divergence_base
    if not named:
        raise UsageError("--kl-divergence needs the file that --kl-divergence-base saved.")
    if options.kl_divergence and options.kl_divergence_base:
        raise UsageError("--kl-divergence-base saves and --kl-divergence reads; give one of them.")
    if options.file is not None:
        raise UsageError("--kl-divergence takes its tokens from the file; leave -f out.")
    return readable(named, "--kl-divergence")


def _measure(path: Path, text: str, saved: Path | None, options: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from kinetic.perplexity.base_file import BaseWriter
    from kinetic.perplexity.measure import cut, perplexity

    window = options.ctx_size or DEFAULT_WINDOW
    most = options.chunks if options.chunks and options.chunks > 0 else None
    with ExitStack() as stack:
        model = _load(path, window, options)
        stack.callback(model.close)
        tokens = cut(
            model.tokenizer.encode(text, add_special=True, parse_special=False), window, most
        )
        base = None
        if saved is not None:
            n_vocab = model.graph.meta.n_vocab
            base = stack.enter_context(BaseWriter(saved, window, n_vocab, tokens))
        progress = Progress(len(tokens) // window, shares_line=True)
        for done, sums in enumerate(
            perplexity(model.engine, tokens, window, first_token(model.tokenizer), base), 1
        ):
            progress.clear()
            write_out(f"[{done}]{sums.perplexity.value:.4f},")
            progress.update(done)
        progress.clear()
        if base is not None:
            base.finish()
    found = sums.perplexity
    write_out(f"\nFinal estimate: PPL = {found.value:.4f} +/- {found.error:.5f}\n")
    return 0


def _compare(path: Path, saved: Path, options: argparse.Namespace) -> int:
    from kinetic.errors import ModelFileError
    from kinetic.perplexity.base_file import BaseReader
    from kinetic.perplexity.measure import compare

    with BaseReader(saved) as base:
        if options.ctx_size not in (None, base.n_ctx):
            raise UsageError(f"{saved.name} has windows of {base.n_ctx} tokens; leave -c out.")
        model = _load(path, base.n_ctx, options)
        try:
            n_vocab = model.graph.meta.n_vocab
            if n_vocab != base.n_vocab:
                raise ModelFileError(
                    f"{saved.name} has a vocabulary of {base.n_vocab} tokens and {path.name} one "
                    f"of {n_vocab}; only models of one vocabulary can be compared"
                )
            progress = Progress(base.n_chunk)
            write_out(
                _table_row(
                    "chunk", "PPL", "ln(PPL/base)", "KL divergence", "Δp RMS %", "same top %"
                )
            )
            most = options.chunks if options.chunks and options.chunks > 0 else base.n_chunk
            for done, found in enumerate(
                compare(model.engine, base, first_token(model.tokenizer)), 1
            ):
                progress.clear()
                write_out(_row(done, found))
                progress.update(done)
                if done == most:
                    break
            progress.clear()
        finally:
            model.close()
    write_out(report(found))
    return 0


def _load(path: Path, window: int, options: argparse.Namespace) -> Model:
    from kinetic.api import Model

    bar = LoadBar()
    settings = load_options(options)
    settings["off"] = (*settings.get("off", ()), "warm-start")  # every window starts anew
    try:
        model = Model.load(path, ctx_size=window, progress=bar.progress, **settings)
    finally:
        bar.clear()
    if model.is_embedding:
        model.close()
        raise UsageError(f"{path.name} makes embeddings and predicts no text; give another model.")
    if model.n_ctx < window:
        model.close()
        raise UsageError(f"{path.name} takes at most {model.n_ctx} tokens; give -c {model.n_ctx}.")
    return model


def _table_row(*cells: str) -> str:
    return f"{cells[0]:>5}" + "".join(f"{cell:>24}" for cell in cells[1:]) + "\n"


def _row(done: int, found: Comparison) -> str:
    def shown(estimate: Estimate, digits: int, times: float = 1) -> str:
        return f"{times * estimate.value:.{digits}f} ± {times * estimate.error:.{digits}f}"

    return _table_row(
        str(done),
        shown(found.own.perplexity, 4),
        shown(found.log_ratio, 5),
        shown(found.divergence, 5),
        shown(found.rms_dp, 3, 100),
        shown(found.top_agreement, 3, 100),
    )


def report(found: Comparison) -> str:
    """The comparison in words and numbers."""
    import numpy as np

    ratio = found.log_ratio
    lines = [
        "",
        _line("Mean PPL", found.own.perplexity),
        _line("Mean PPL of the base", found.base.perplexity),
        _line("Mean ln(PPL / PPL of the base)", ratio),
        f"{'Mean PPL / PPL of the base':<34}{math.exp(ratio.value):>12.6f} ± "
        f"{math.exp(ratio.value) * ratio.error:.6f}",
        _line("Mean PPL - PPL of the base", found.difference),
        f"{'Correlation of ln(PPL)':<34}{100 * found.correlation:>12.2f} %",
        _line("Mean KL divergence", found.divergence),
    ]
    if found.count >= _LEAST_COUNT:
        kl, dp = found.kl_values(), 100 * found.dp_values()
        lines.append(f"{'Maximum KL divergence':<34}{kl.max():>12.6f}")
        lines += [
            f"{f'{100 * s:g}% KL divergence':<34}{np.quantile(kl, s):>12.6f}" for s in _SHARES
        ]
        lines.append(f"{'Minimum KL divergence':<34}{kl.min():>12.6f}")
        lines += [f"{f'{100 * s:g}% Δp':<34}{np.quantile(dp, s):>12.3f} %" for s in _SHARES]
    lines += [
        _line("Mean Δp", found.mean_dp, percent=True),
        _line("RMS Δp", found.rms_dp, percent=True),
        _line("Same top token", found.top_agreement, percent=True),
    ]
    return "\n".join(lines) + "\n"


def _line(what: str, found: Estimate, *, percent: bool = False) -> str:
    if percent:
        return f"{what:<34}{100 * found.value:>12.3f} ± {100 * found.error:.3f} %"
    return f"{what:<34}{found.value:>12.6f} ± {found.error:.6f}"
