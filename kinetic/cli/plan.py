"""`kinetic plan`: where a model would go in memory, without loading it."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kinetic.cli.options import add_model, take_model
from kinetic.cli.parser import CommandParser, whole
from kinetic.cli.terminal import use_utf8, write_out


class Plan(NamedTuple):
    """Where a model goes. *Units*: bytes, but for the context's positions and the speeds."""

    model: str
    device: str
    weights: int
    experts: int
    cache: int
    work: int
    context: int
    context_trained: int
    memory: int
    available: int
    speed: tuple[float, float]

    @property
    def total(self) -> int:
        """All that it takes."""
        return self.weights + self.cache + self.work

    @property
    def fits(self) -> bool:
        """Whether the machine has that much."""
        return self.total <= self.memory


def build_parser() -> CommandParser:
    """The options of `kinetic plan`."""
    parser = CommandParser(
        "plan",
        "kinetic plan [options] <model>",
        "shows where a model would go in memory, without loading it.",
        notes="Exit code 0 when it fits this machine, 1 when it does not.",
    )
    add_model(parser)
    option, title = parser.option, "runtime options"
    option(
        title,
        "-c",
        "--ctx-size",
        metavar="N",
        type=whole(0),
        help="the context to plan for [default: as kinetic run takes it]",
    )
    option(
        title,
        "-t",
        "--threads",
        metavar="N",
        type=whole(1, 4096),
        help="CPU threads [default: all]",
    )
    option("output", "--json", help="print one JSON object")
    return parser


def run(options: argparse.Namespace) -> int:
    """Plan one model. Raises: ModelFileError, UnsupportedError, UsageError."""
    use_utf8()
    path, _ = take_model(options, "plan", alone=True)
    made = plan(path, options.ctx_size, options.threads)
    write_out(_as_json(made) if options.json else _as_text(made))
    return 0 if made.fits else 1


def plan(path: Path, ctx_size: int | None, threads: int | None) -> Plan:
    """What `kinetic run` would take with this context; nothing is compiled or loaded.

    Raises: ModelFileError, UnsupportedError.
    """
    from kinetic import families
    from kinetic.api import DEFAULT_CTX
    from kinetic.cli.here import look
    from kinetic.codegen.pipeline import compile_graph
    from kinetic.codegen.targets.llvm_x86 import cpu_target
    from kinetic.errors import ContextError
    from kinetic.ir.gguf_split import open_model
    from kinetic.models.cost import cost_of, expected_speed
    from kinetic.models.found import stem_of
    from kinetic.runtime.engine import Engine
    from kinetic.runtime.memory import context_that_fits, memory_of, usable_memory

    with open_model(path) as gguf:
        cost, graph = cost_of(gguf), families.build(gguf, ctx_size)
    program = compile_graph(graph, cpu_target(None))
    trained = graph.meta.n_ctx_train or 0
    n_ctx = ctx_size or trained or DEFAULT_CTX
    if ctx_size is None:
        n_ctx = min(n_ctx, DEFAULT_CTX)
    usable = usable_memory()
    with suppress(ContextError):  # the plan says so, with the numbers
        n_ctx = context_that_fits(program, n_ctx, explicit=ctx_size is not None, usable=usable)
    needs, here = memory_of(program, Engine.pages_for(n_ctx)), look(threads)
    return Plan(
        model=stem_of(path.name),
        device="CPU",
        weights=needs.weights,
        experts=cost.experts,
        cache=needs.cache,
        work=needs.work,
        context=n_ctx,
        context_trained=trained,
        memory=usable,
        available=here.memory.available,
        speed=expected_speed(cost.per_token, here.bandwidth),
    )


def _as_text(made: Plan) -> str:
    from kinetic.cli.fit import speed_text
    from kinetic.cli.table import gib

    experts = f" ({gib(made.experts)} of them experts)" if made.experts else ""
    trained = f" of {made.context_trained}" if made.context_trained else ""
    verdict = "fits" if made.fits else "does not fit: lower -c, or take a smaller model"
    if made.fits and made.total > made.available:
        verdict = f"fits when other programs are closed; {gib(made.available)} is free now"
    rows = [
        ("device", made.device),
        ("weights", f"{gib(made.weights)}{experts}"),
        ("cache", f"{gib(made.cache)} for {made.context}{trained} tokens"),
        ("work", gib(made.work)),
        ("in all", f"{gib(made.total)} of {gib(made.memory)}: {verdict}"),
        ("decode", f"{speed_text(made.speed)} expected"),
    ]
    return f"{made.model}\n" + "".join(f"  {label:<9}{text}\n" for label, text in rows)


def _as_json(made: Plan) -> str:
    return json.dumps({**made._asdict(), "total": made.total, "fits": made.fits}, indent=2) + "\n"
