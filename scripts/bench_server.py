#!/usr/bin/env python3
"""The server under load, beside llama-server on the same file, and what HTTP costs.

    python3 scripts/bench_server.py model.gguf --llama-dir llama.cpp/build/bin -t 2
    python3 scripts/bench_server.py model.gguf --clients 1,4,16 --tokens 128 --parallel 4

Clients start at once, each with a prompt of its own, and stream an answer of so many tokens.
tok/s is of all of them from the first request to the last token. Where llama-server is found,
the two take turns at each load, both with the same `--parallel`. Then one stream over HTTP and
one of the engine alone take turns, `-r` times each, without guesses, which would make use of the
turn before; the best of each count.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from _bench import arguments, kinetic_program, machine, table
from _serving import Heard, Running, find_llama_server, llama_command, serving
from _setup import say

PROMPT = "Item {}: write a long story about a lighthouse keeper who counts ships.\n"
GREEDY: dict[str, object] = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Load:
    """What so many clients got. *Units*: tokens a second, seconds."""

    speed: float
    p50: float
    p95: float


def main() -> int:
    """Measure, and print the tables."""
    parser = arguments(__doc__, default_repetitions=3)
    parser.add_argument("--llama-server", help="llama-server's command [default: llama-server]")
    parser.add_argument("--clients", default="1,4,16", help="clients at once [1,4,16]")
    parser.add_argument("--tokens", type=int, default=128, help="tokens an answer [128]")
    parser.add_argument("--parallel", type=int, default=4, help="slots of each server [4]")
    parser.add_argument("-c", "--ctx-size", type=int, default=1024, help="tokens a slot [1024]")
    options = parser.parse_args()
    where, model = machine(), options.model
    threads = ("-t", str(options.threads))
    ctx, slots = options.ctx_size, options.parallel
    commands = {
        "Kinetic": [
            *(kinetic_program(options.kinetic), "serve", str(model), "-c", str(ctx)),
            *("--parallel", str(slots), "--queue", "64", *threads, *options.kinetic_args.split()),
        ]
    }
    if (program := find_llama_server(options.llama_server, options.llama_dir)) is not None:
        context = ("-c", str(ctx * slots))  # llama-server shares it out among the slots
        more = (*context, *threads, "-fa", "on", *options.llama_args.split())
        commands["llama-server"] = llama_command(program, model, slots, *more)
    else:
        say("there is no llama-server: Kinetic alone is measured")

    loads = [int(n) for n in options.clients.split(",")]
    rows: dict[str, list[Load]] = {name: [] for name in commands}
    for number, clients in enumerate(loads):
        order = list(commands) if number % 2 == 0 else list(reversed(commands))
        for name in order:
            say(f"{name}, {clients} clients")
            with serving(commands[name]) as server:
                server.stream("/v1/completions", _asked(0, 4))  # what is loaded on first use
                rows[name].append(_load(server, clients, options.tokens))

    print(f"Machine: {where}\n")
    print(f"File: {model.name}; {options.threads} threads, {slots} slots, {options.tokens} tokens.")
    head = ("", *(f"{n} client{'s' * (n > 1)}" for n in loads))
    told = [
        (f"{name}, {what}", *(form(load) for load in found))
        for name, found in rows.items()
        for what, form in (
            ("tok/s", lambda x: f"{x.speed:.1f}"),
            ("first token, p50", lambda x: f"{x.p50:.2f} s"),
            ("first token, p95", lambda x: f"{x.p95:.2f} s"),
        )
    ]
    print(f"\n{table(head, told)}\n")
    http, alone = _overhead([*commands["Kinetic"], "--off", "rad1"], model, options)
    print(
        f"One stream without guesses, best of {options.repetitions}: {http:.2f} tok/s over HTTP, "
        f"{alone:.2f} of the engine alone; HTTP takes {1 - http / alone:+.1%}"
    )
    return 0


def _asked(number: int, tokens: int) -> dict[str, object]:
    return {**GREEDY, "prompt": PROMPT.format(number), "max_tokens": tokens}


def _load(server: Running, clients: int, tokens: int) -> Load:
    started = time.perf_counter()

    def one(number: int) -> tuple[float, Heard]:
        asked = time.perf_counter() - started
        return asked, server.stream("/v1/completions", _asked(1000 + number, tokens))

    with ThreadPoolExecutor(clients) as pool:
        heard = list(pool.map(one, range(clients)))
    wall = max(asked + answer.last for asked, answer in heard)
    firsts = sorted(answer.first for _, answer in heard)
    count = sum(answer.tokens for _, answer in heard)
    return Load(count / wall, _quantile(firsts, 0.5), _quantile(firsts, 0.95))


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _overhead(command: list[str], model: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens a second from the first to the last token, over HTTP and of the engine alone."""
    from kinetic.api import Model
    from kinetic.generation import GenerationRequest, TextEvent
    from kinetic.runtime.sampling import SamplingParams

    tokens, threads = options.tokens, options.threads
    engine = Model.load(model, threads=threads, ctx_size=options.ctx_size, off=("rad1",))

    def alone() -> float:
        prompt = engine.tokenizer.encode_prompt(PROMPT.format(1))
        request = GenerationRequest(prompt, SamplingParams(temperature=0), tokens, ignore_eos=True)
        times = [
            time.perf_counter()
            for event in engine.start(request).events()
            if isinstance(event, TextEvent) and event.text
        ]
        return (tokens - 1) / (times[-1] - times[0])

    best = {"http": 0.0, "alone": 0.0}
    try:
        with serving(command) as server:

            def over_http() -> float:
                heard = server.stream("/v1/completions", _asked(1, tokens))
                return (heard.tokens - 1) / (heard.last - heard.first)

            for number in range(options.repetitions):
                say(f"HTTP and the engine alone, round {number + 1}")
                turns = [("http", over_http), ("alone", alone)]
                for name, measure in turns if number % 2 == 0 else reversed(turns):
                    best[name] = max(best[name], measure())
    finally:
        engine.close()
    return best["http"], best["alone"]


if __name__ == "__main__":
    sys.exit(main())
