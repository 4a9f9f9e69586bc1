"""`kinetic bench`: llama-bench's two tests and an edit, best of a few interleaved repetitions.

pp512 evaluates a prompt of 512 tokens, tg128 generates 128 tokens one by one, edit256 answers an
editing request with guesses (`bench_edit.py`). The tests take turns, so that a busy moment of the
machine does not fall on one of them alone.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kinetic.cli.options import add_model, add_runtime, load_options, take_model
from kinetic.cli.parser import CommandParser, whole
from kinetic.cli.terminal import LiveLine, LoadBar, use_utf8, write_out

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.api import Model
    from kinetic.cli.compare import PeerResult

EDIT_CONTEXT = 1536
"""The request and its answer, in the longest tokenization there is."""
PREFILL_TOKENS = 512
DECODE_TOKENS = 128
MEASURED = {"rad1": "RAD-1"}
"""Technologies that an option turns off and that a test here runs with: edit256."""
NO_PART = "Warm Start, Zero Wait and Convoy take no part"
"""They need prompts that come again, that are typed, or that come together."""


class BenchResult(NamedTuple):
    """What one bench measured. Units: seconds, bytes, tokens per second."""

    model: str
    backend: str
    device: str
    threads: int
    repetitions: int
    load_seconds: float
    size_bytes: int
    weights: str
    parameters: int
    prefill_tokens: int
    prefill_tokens_per_second: float
    decode_tokens: int
    decode_tokens_per_second: float
    edit_tokens: int
    edit_tokens_per_second: float
    edit_identical: bool
    technologies: str
    peak_rss_bytes: int


def build_parser() -> CommandParser:
    """The options of `kinetic bench`."""
    parser = CommandParser(
        "bench",
        "kinetic bench [options] <model>",
        "measures load time, prompt and generation speed, and peak memory.",
        "The tests are llama-bench's pp512 and tg128, without guesses, and edit256: an answer of "
        "256 tokens that rewrites a file with one name changed, with guesses unless --off rad1. "
        "Each is the best of -r runs. The exit code is 1 if guesses changed the edit.",
    )
    add_model(parser)
    group = "bench options"
    parser.option(
        group,
        *("-r", "--repetitions"),
        metavar="N",
        type=whole(1, 1000),
        default=3,
        help="runs of each test; the best is reported [default: 3]",
    )
    parser.option(group, "--json", help="print the results as one JSON object")
    parser.option(
        group,
        "--compare",
        metavar="LLAMA_BENCH",
        value_optional=True,
        help="also run llama.cpp's llama-bench (on PATH, or the one given) on the same file "
        "with the same threads, in turns, and print a card with both",
    )
    add_runtime(parser, context=False)
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure one model. Raises: any KineticError of loading it."""
    use_utf8()
    if options.compare and options.compare.lower().endswith(".gguf") and not options.model:
        # `--compare model.gguf`: the option's value is optional, so it took the model.
        options.words.insert(0, options.compare)
        options.compare = ""
    path, _ = take_model(options, "bench", alone=True)
    peer = None
    if options.compare is not None:
        from kinetic.cli.compare import Peer

        peer = Peer.find(options.compare, path)  # before minutes are spent on our own runs

    model = _load(path, options)
    line = LiveLine(every=0.5)
    try:
        result, theirs = measure(
            path, model, options.repetitions, line, peer, technologies(options.off)
        )
    finally:
        line.clear()
        model.close()
    write_out(_report(result, theirs, as_json=options.json))
    return 0 if result.edit_identical else 1


def technologies(off: Collection[str]) -> str:
    """Which of the technologies that bench measures are on, and which are off."""
    on = [shown for name, shown in MEASURED.items() if name not in off]
    not_on = [shown for name, shown in MEASURED.items() if name in off]
    return f"on: {', '.join(on) or 'none'}" + (f"; off: {', '.join(not_on)}" if not_on else "")


def measure(
    path: Path,
    model: Model,
    repetitions: int,
    line: LiveLine,
    peer: object = None,
    technologies: str = "on: RAD-1",
) -> tuple[BenchResult, PeerResult | None]:
    """Run the tests in turns, with the peer's between them when there is one."""
    from kinetic.cli.bench_edit import edit_prompt, plain_edit, run_edit
    from kinetic.cli.compare import Peer
    from kinetic.cli.machine import peak_memory

    prefill: list[float] = []
    decode: list[float] = []
    edits = []
    samples = []
    prompt = edit_prompt(model)
    model.bench_decode(1)  # touch every page once, as llama-bench's warm-up does
    for i in range(repetitions):
        line.update(f"bench: run {i + 1} of {repetitions}")
        prefill.append(model.bench_prefill(PREFILL_TOKENS))
        decode.append(model.bench_decode(DECODE_TOKENS))
        edits.append(run_edit(model, prompt, i))
        if isinstance(peer, Peer):
            line.update(f"llama-bench: run {i + 1} of {repetitions}")
            samples.append(peer.measure(model.threads))
    line.update("bench: the edit without guesses")
    plain = plain_edit(model, prompt)
    theirs = None
    if samples:
        from kinetic.cli.compare import best

        theirs = best(samples)
    result = BenchResult(
        model=path.name,
        backend="cpu",
        device=model.device_name,
        threads=model.threads,
        repetitions=repetitions,
        load_seconds=round(model.load_seconds, 4),
        size_bytes=path.stat().st_size,
        weights=_main_format(model),
        parameters=sum(prod(tensor.shape) for tensor in model.file.tensors.values()),
        prefill_tokens=PREFILL_TOKENS,
        prefill_tokens_per_second=round(PREFILL_TOKENS / min(prefill), 2),
        decode_tokens=DECODE_TOKENS,
        decode_tokens_per_second=round(DECODE_TOKENS / min(decode), 2),
        edit_tokens=len(plain),
        edit_tokens_per_second=round(max(edit.speed for edit in edits), 2),
        edit_identical=all(edit.tokens == plain for edit in edits),
        technologies=technologies,
        peak_rss_bytes=peak_memory(),
    )
    return result, theirs


def table(result: BenchResult) -> str:
    """The markdown table of the tests and the lines under it."""
    name = result.model.removesuffix(".gguf")
    size = f"{result.size_bytes / 2**30:.2f} GiB | {result.parameters / 1e9:.2f} B"
    start = f"| {name} | {size} | {result.backend.upper()} | {result.threads} |"
    return (
        "| model | size | params | backend | threads | test | t/s |\n"
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |\n"
        f"{start} pp{result.prefill_tokens} | {result.prefill_tokens_per_second:.2f} |\n"
        f"{start} tg{result.decode_tokens} | {result.decode_tokens_per_second:.2f} |\n"
        f"{start} edit{result.edit_tokens} | {result.edit_tokens_per_second:.2f} |\n\n"
        f"on {result.device}, best of {result.repetitions}, load {result.load_seconds:.2f} s\n"
        f"speed technologies {result.technologies}; {NO_PART}\n"
        "edit: drafted output identical to plain decoding: "
        f"{'yes' if result.edit_identical else 'NO'}\n"
        f"peak memory {result.peak_rss_bytes / 2**30:.2f} GiB\n"
    )


def _report(result: BenchResult, theirs: PeerResult | None, *, as_json: bool) -> str:
    if theirs is not None:
        from kinetic.cli.compare import card, card_json

        return card_json(result, theirs) if as_json else card(result, theirs)
    return json.dumps(result._asdict(), indent=2) + "\n" if as_json else table(result)


def _load(path: Path, options: argparse.Namespace) -> Model:
    from kinetic.api import Model

    bar = LoadBar()
    try:
        return Model.load(
            path,
            ctx_size=EDIT_CONTEXT,
            progress=bar.progress,
            **load_options(options),
        )
    finally:
        bar.clear()


def _main_format(model: Model) -> str:
    """The tensor type that most bytes of the weights have."""
    sizes: Counter[str] = Counter()
    for tensor in model.file.tensors.values():
        sizes[tensor.type_name] += tensor.nbytes
    return sizes.most_common(1)[0][0]
