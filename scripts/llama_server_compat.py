#!/usr/bin/env python3
"""Each field in which Kinetic's server and llama-server differ, on one file.

    python3 scripts/llama_server_compat.py model.gguf --llama-dir llama.cpp/build/bin

Sends the same requests to both and compares the answers field by field: which are there, and of
what kind; and where both must agree (tokens, templates, a greedy answer's first words) what they
hold. Prints a markdown table of those that differ; numbers, times and ids are not compared.
Ends with 1 where a field is missing here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _bench import arguments, kinetic_program
from _serving import Running, find_llama_server, llama_command, serving
from _setup import say, stop

TALK = [{"role": "user", "content": "Say hello in three words."}]
GREEDY = {"temperature": 0, "seed": 1}


@dataclass(frozen=True)
class Ask:
    """One request; `same` are the fields whose contents must agree."""

    method: str
    path: str
    body: dict[str, object] | None = None
    same: tuple[str, ...] = ()


def _post(path: str, body: dict[str, object], *same: str) -> Ask:
    return Ask("POST", path, body, same)


ASKS = [
    Ask("GET", "/health", None, ("status",)),
    Ask("GET", "/props"),
    Ask("GET", "/slots"),
    Ask("GET", "/v1/models"),
    _post("/tokenize", {"content": "Hello there, \u4f60\u597d!", "add_special": True}, "tokens"),
    _post("/tokenize", {"content": "caf\u00e9 \U0001f600", "with_pieces": True}, "tokens"),
    _post("/detokenize", {"tokens": [10, 11, 12]}, "content"),
    _post("/apply-template", {"messages": TALK}, "prompt"),
    _post("/completion", {"prompt": "1, 2, 3,", "n_predict": 8, **GREEDY}, "content"),
    _post(
        "/completion",
        {"prompt": "1, 2, 3,", "n_predict": 4, "n_probs": 2, "return_tokens": True, **GREEDY},
        "tokens",
    ),
    _post(
        "/completion",
        {"prompt": "1, 2, 3,", "n_predict": 16, "stop": ["6"], **GREEDY},
        *("content", "stop_type", "stopping_word"),
    ),
    _post("/completion", {"prompt": "x", "n_predict": 4, "grammar": "root ::= 'a'"}),
    _post(
        "/completion",
        {"prompt": "x", "n_predict": 8, "grammar": 'root ::= "yes" | "no"', **GREEDY},
        *("content", "stop_type"),
    ),
    _post(
        "/infill",
        {"input_prefix": "def add(a, b):\n", "input_suffix": "\n", "n_predict": 8, **GREEDY},
    ),
    _post("/v1/chat/completions", {"messages": TALK, "max_tokens": 8, **GREEDY}),
    _post(
        "/v1/chat/completions",
        {"messages": TALK, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, **GREEDY},
    ),
    _post("/v1/completions", {"prompt": "1, 2, 3,", "max_tokens": 4, "logprobs": 2, **GREEDY}),
    _post("/v1/messages", {"messages": TALK, "max_tokens": 8, **GREEDY}),
    _post("/v1/chat/completions", {"messages": []}),
    _post("/v1/completions", {}),
    Ask("GET", "/no-such-path"),
]


def main() -> int:
    """Ask both, compare, print."""
    parser = arguments(__doc__, default_repetitions=1)
    parser.add_argument("--llama-server", help="llama-server's command [default: llama-server]")
    options = parser.parse_args()
    program = find_llama_server(options.llama_server, options.llama_dir)
    if program is None:
        stop("there is no llama-server; build llama.cpp's and give --llama-dir.")
    threads = ("-t", str(options.threads), "-c", "2048")
    kinetic = [kinetic_program(options.kinetic), "serve", str(options.model), "--parallel", "2"]
    found = []
    for name, command in (
        ("Kinetic", [*kinetic, *threads, *options.kinetic_args.split()]),
        ("llama-server", _llama(program, options.model, threads, options.llama_args)),
    ):
        say(f"asking {name}")
        with serving(command) as server:
            found.append([_answer(server, ask) for ask in ASKS])
    missing = 0
    print("| Request | Field | Kinetic | llama-server |\n| --- | --- | --- | --- |")
    for ask, ours, theirs in zip(ASKS, *found, strict=True):
        for field, here, there in _differences(ask, ours, theirs):
            missing += here == "-"
            shown = f"`{ask.method} {ask.path}`"
            print(f"| {shown} | {field} | {here} | {there} |")
    print(f"\n{missing} fields are missing here.")
    return 1 if missing else 0


def _llama(program: str, model: Path, threads: tuple[str, ...], more: str) -> list[str]:
    extra = ("--slots", "--metrics", "--jinja", *threads, *more.split())
    return llama_command(program, model, 2, *extra)


def _answer(server: Running, ask: Ask) -> tuple[int, object]:
    return server.send(ask.method, ask.path, ask.body)


def _differences(
    ask: Ask, ours: tuple[int, object], theirs: tuple[int, object]
) -> Iterator[tuple[str, str, str]]:
    if ours[0] != theirs[0]:
        yield "status", str(ours[0]), str(theirs[0])
    here, there = dict(_fields(ours[1])), dict(_fields(theirs[1]))
    for field in sorted(there.keys() | here.keys()):
        one, other = here.get(field, "-"), there.get(field, "-")
        if one != other:
            yield f"`{field}`", one, other
    for name in ask.same:
        values = [
            json.dumps(body.get(name), ensure_ascii=False) if isinstance(body, dict) else "-"
            for body in (ours[1], theirs[1])
        ]
        if values[0] != values[1]:
            here_it, there_it = (f"`{_short(value)}`" for value in values)
            yield f"`{name}` (contents)", here_it, there_it


def _fields(value: object, at: str = "") -> Iterator[tuple[str, str]]:
    """Paths of all fields and their kinds; of a list, its first item's."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _fields(inner, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list):
        yield at or "[]", "list"
        if value and isinstance(value[0], dict):
            yield from _fields(value[0], f"{at}[]")
    else:
        yield at or "body", _kind(value)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "text"


def _short(text: str) -> str:
    clean = text.replace("|", "\\|").replace("`", "'")
    return clean if len(clean) <= 60 else clean[:57] + "..."


if __name__ == "__main__":
    sys.exit(main())
