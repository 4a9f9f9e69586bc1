#!/usr/bin/env python3
"""The book's page on llama.cpp's flags, from the tables in kinetic/cli/llama_flags.py.

    python3 scripts/llama_flags_doc.py          # print the page
    python3 scripts/check.py --fix docs         # write it, with the other written pages

Run by the project's own Python.
"""

from __future__ import annotations

from importlib import import_module

COMMANDS = ("run", "chat", "serve")
WRITTEN = "<!-- Written by scripts/check.py --fix from the code; do not edit. -->\n"


def page() -> str:
    """docs/llama-flags.md."""
    from kinetic.cli import llama_flags

    rows: dict[str, list[str]] = {}
    for flag in llama_flags.documented():
        rows.setdefault(_outcome(flag), []).append(flag)
    table = "".join(
        f"| {', '.join(f'`{flag}`' for flag in flags)} | {outcome} |\n"
        for outcome, flags in rows.items()
    )
    programs = ", ".join(
        f"`{name}` runs as `kinetic {command}`" for name, command in llama_flags.PROGRAMS.items()
    )
    return f"""\
# llama.cpp flags

{WRITTEN}
These mean the same in Kinetic: `-m`, `-p`, `-f`, `-n`, `-c`, `-t`, `-s`, `--temp`, `--top-k`,
`--top-p`, `--min-p`, `--repeat-penalty`, the other samplers, `--grammar`, `--grammar-file`, `-j`,
`--lora`, `--lora-scaled`, `--host` and `--port`.

```sh
llama-cli    -m model.gguf -p "Hello" -n 64 --temp 0 -ngl 99
kinetic run  -m model.gguf -p "Hello" -n 64 --temp 0 -ngl 99

llama-server  -m model.gguf -c 8192 --port 8080 -ngl 99
kinetic serve -m model.gguf -c 8192 --port 8080 -ngl 99
```

A copy or link of `kinetic` with the name of a llama.cpp program behaves as that program, for apps
that start it by name: {programs};
`llama-cli` with a prompt runs as `kinetic run`.

Every other flag below is taken under its own name, accepted when it asks for something that Kinetic
does by itself, or stops with a line that says what to use instead:

```
$ kinetic run model.gguf -ts 1,1 "Hello"
{_sentence("-ts")}
```

| Flag | In Kinetic |
| --- | --- |
{table}"""


def _sentence(flag: str) -> str:
    from kinetic.cli import llama_flags

    return f"kinetic: {llama_flags.meaning(flag, 'run', ()).says}"


def _outcome(flag: str) -> str:
    """What becomes of a flag; commands that differ are named."""
    each = {command: _in_command(flag, command) for command in COMMANDS}
    groups: dict[str, list[str]] = {}
    for command, text in each.items():
        groups.setdefault(text, []).append(command)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in groups.items())


def _in_command(flag: str, command: str) -> str:
    from kinetic.cli import llama_flags

    parser = import_module(f"kinetic.cli.{command}").build_parser()
    kind, says = llama_flags.meaning(flag, command, parser.known())
    sentence = says.partition(": ")[2].rstrip(".").replace("<", "&lt;")
    return {
        "own": "works",
        "works": f"works, as `{says}`",
        "layers": "works: 0 means `--device cpu`; any other number leaves the choice to `--device`",
        "accepted": "accepted and not needed: Kinetic does this by itself",
        "flash": "accepted and not needed: Kinetic does this by itself",
        "f16": f"f16 is accepted; {sentence}",
        "stops": ("not yet: " if "not supported yet" in says else "") + sentence,
        "unknown": "not an option here",
    }[kind]


if __name__ == "__main__":
    print(page(), end="")
