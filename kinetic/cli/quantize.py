"""`kinetic quantize`: a model in another weight type, as llama-quantize writes it."""

from __future__ import annotations

import argparse
import sys

from kinetic.cli.named import model_parts, new_file, readable
from kinetic.cli.parser import CommandParser, whole
from kinetic.cli.terminal import LoadBar, printable, use_utf8, write_out
from kinetic.errors import UsageError


def build_parser() -> CommandParser:
    """The options of `kinetic quantize`."""
    parser = CommandParser(
        "quantize",
        "kinetic quantize [options] <model> <new file> <type> [threads]",
        "writes a GGUF model in another weight type, as llama-quantize does.",
        "Types: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, "
        "Q4_0, IQ4_XS, IQ4_NL, MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K.",
    )
    group = "quantize options"
    option = parser.option
    option(
        group, "-t", "--threads", metavar="N", type=whole(1, 4096), help="threads [default: all]"
    )
    option(group, "--pure", help="one type for every tensor, without the target's mixture")
    option(group, "--output-tensor-type", metavar="TYPE", help="the type of output.weight")
    option(group, "--token-embedding-type", metavar="TYPE", help="the type of the embeddings")
    option(
        group,
        "--tensor-type",
        metavar="NAME=TYPE",
        repeat=True,
        help="the type of tensors whose name holds NAME, a regular expression; may be repeated",
    )
    option(
        group,
        "--imatrix",
        metavar="FILE",
        help="weigh by an importance matrix of kinetic imatrix or llama-imatrix, GGUF or .dat",
    )
    option(group, "--strict", help="refuse, instead of a note, where the matrix lacks some weights")
    option(group, "--leave-output-tensor", help="keep output.weight as it is")
    option(group, "--allow-requantize", help="also take weights that are quantized already")
    option(group, "--dry-run", help="only say which types and how large")
    option(group, "-y", "--yes", "--force", dest="yes", help="replace the new file if it exists")
    return parser


def run(options: argparse.Namespace) -> int:
    """Quantize one model. Raises: UsageError, and what reading and writing raise."""
    use_utf8()
    words = options.words
    if len(words) not in (3, 4):
        raise UsageError(
            "give the model, the new file and the type, as in "
            "kinetic quantize model-f16.gguf model-Q4_K_M.gguf Q4_K_M."
        )
    if len(words) == 4:
        options.threads = _threads(words[3], options.threads)
    from kinetic.cli.model_path import find_model
    from kinetic.ir.gguf_split import open_model
    from kinetic.quantize.job import make_plan
    from kinetic.quantize.job import run as quantize
    from kinetic.quantize.mixture import Wishes, find_target
    from kinetic.runtime.cpus import default_threads

    path = find_model(words[0])
    target = find_target(words[2])
    matrix = None if options.imatrix is None else readable(options.imatrix, "--imatrix")
    out = new_file(
        words[1],
        "the new file",
        sources=[*model_parts(path), *([] if matrix is None else [matrix])],
        forced=options.yes or options.dry_run,
        force="--yes",
    )
    wishes = Wishes(
        pure=options.pure,
        output_type=_type(options.output_tensor_type),
        embedding_type=_type(options.token_embedding_type),
        leave_output=options.leave_output_tensor,
        by_pattern=tuple(map(_pattern, options.tensor_type or ())),
    )
    if options.strict and options.imatrix is None:
        raise UsageError("--strict asks the importance matrix to be complete; give --imatrix FILE.")
    importance = None
    if matrix is not None:
        from kinetic.quantize.importance import read

        importance = read(matrix, options.imatrix)
    with open_model(path) as source:
        plan = make_plan(
            source,
            target,
            wishes,
            importance=None if importance is None else importance.means(),
            extra=None if importance is None else importance.pairs(),
            allow_requantize=options.allow_requantize,
            strict=options.strict,
        )
        for note in plan.notes:
            print(f"kinetic: {note}", file=sys.stderr)
        if not options.dry_run:
            bar = LoadBar()
            try:
                quantize(
                    plan, out, threads=options.threads or default_threads(), progress=bar.progress
                )
            finally:
                bar.clear()
        would = "would take" if options.dry_run else "takes"
        write_out(
            f"{printable(out.name)} {would} {plan.after / 2**20:.2f} MiB of weights, "
            f"from {plan.before / 2**20:.2f}\n"
        )
    return 0


def _threads(word: str, given: int | None) -> int:
    """The fourth word, llama-quantize's place for what -t says. Raises: UsageError."""
    try:
        threads = whole(1, 4096)(word)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"the fourth word is the number of threads: it {error}.") from None
    return threads if given is None else given


def _type(name: str | None) -> str | None:
    """A tensor type by name, in any case. Raises: UsageError naming those there are."""
    if name is None:
        return None
    from kinetic.quantize.encoders.compiled import WRITTEN_BY

    if name.upper() not in ("F32", *WRITTEN_BY):
        raise UsageError(f"{name!r} is no tensor type; there are F32, {', '.join(WRITTEN_BY)}.")
    return name.upper()


def _pattern(text: str) -> tuple[str, str]:
    import re

    name, equals, type_name = text.rpartition("=")
    chosen = _type(type_name)
    if not (equals and name) or chosen is None:
        raise UsageError(f"--tensor-type takes NAME=TYPE, as in attn_q=q8_0, not {text!r}.")
    try:
        re.compile(name)
    except re.error as error:
        raise UsageError(
            f"--tensor-type takes a regular expression before the =, and {name!r} is none: "
            f"{error}; a name as it is, such as attn_q, does too."
        ) from None
    return name, chosen
