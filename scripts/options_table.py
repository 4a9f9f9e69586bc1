#!/usr/bin/env python3
"""Option -> test, for every option and chat command that the manual promises.

    python3 scripts/options_table.py            # print the table
    python3 scripts/options_table.py --check    # exit 1 where a row has neither test nor reason

A test exercises an option when one of its strings holds it, its own or of a constant or helper of
its file. What Kinetic refuses is told with the sentence that it gives. Run by the project's own
Python.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
_ASKING = (
    *("--system", "-n", "--n-predict", "--temp", "--top-k", "--top-p", "--min-p"),
    *("--repeat-penalty", "--reasoning", "-s", "--seed", "--presence-penalty"),
    *("--frequency-penalty", "--typical", "--top-nsigma", "--xtc-probability", "--xtc-threshold"),
    *("--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n"),
    *("--dry-sequence-breaker", "--mirostat", "--mirostat-lr", "--mirostat-ent"),
)
_RUNTIME = (
    *("-c", "--ctx-size", "-t", "--threads", "--device", "--gpu-layers", "--cache-dir"),
    *("--no-prompt-cache", "--off", "--cache-type-k", "--cache-type-v", "--rope-scaling"),
    *("--rope-scale", "--rope-freq-scale", "--rope-freq-base", "--yarn-orig-ctx", "--sign-key"),
    *("--mlock", "--no-mmap", "--chat-template-file", "--lora", "--lora-scaled"),
)
PROMISED = {
    "run": ("-m", "--model", "-p", "--receipt", *_ASKING, *_RUNTIME),
    "chat": (
        *("--history", "--mmproj", "/clear", "/system", "/think", "/temp", "/top-p", "/top-k"),
        *("/min-p", "/seed", "/sampling", "/image", "/receipt", "/help", "/exit", "/quit"),
    ),
    "serve": ("--host", "--port", "--ollama", "--mmproj", "--alias", "--api-key"),
    "bench": ("-r", "--repetitions", "-t", "--device", "--json", "--compare", "--off"),
    "verify-receipt": ("--model", "--device", "-t"),
    "quantize": ("-t",),
    "perplexity": ("-c", "--chunks", "--kl-divergence-base", "--kl-divergence", "-t"),
    "pull": ("--file", "--dir", "--no-mmproj"),
}
"""What the manual's tables list, by the command whose table it is."""


def main() -> int:
    """Print the table, or check it."""
    places = _places()
    missing = []
    for command, options in PROMISED.items():
        known = _known(command)
        for option in options:
            test = _best(places.get(option, []), command)
            reason = "" if option in known else _reason(option, command, known)
            if not test and not reason:
                missing.append(f"{command} {option}")
            if "--check" not in sys.argv:
                print(f"{command:15} {option:24} {test or '-':60} {reason}".rstrip())
    if missing:
        print(f"neither a test nor a reason: {', '.join(missing)}")
    return 1 if missing else 0


def _known(command: str) -> set[str]:
    from kinetic.cli import COMMANDS
    from kinetic.cli.chat.commands import COMMANDS as SLASHED

    if command not in COMMANDS:
        return set()
    parser = import_module(f"kinetic.cli.{command.replace('-', '_')}").build_parser()
    return parser.known() | (set(SLASHED) if command == "chat" else set())


def _reason(option: str, command: str, known: set[str]) -> str:
    from kinetic.cli import llama_flags

    kind, says = llama_flags.meaning(option, command, known)
    if kind == "layers":
        return "a spelling: 0 is --device cpu, any other number leaves the choice to --device"
    return says if kind in ("stops", "f16") else ""


def _places() -> dict[str, list[str]]:
    """The tests that hold each option, as file::test."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        shared = _shared(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                words = _words(node)
                for name in _names(node) & shared.keys():
                    words |= shared[name]
                for word in words:
                    found.setdefault(word, []).append(f"{file.name}::{node.name}")
    return found


def _shared(tree: ast.Module) -> dict[str, set[str]]:
    """The words of a file's constants and helpers, by their names."""
    shared: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    shared[target.id] = _words(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("test"):
            shared[node.name] = _words(node)
    return shared


def _words(node: ast.AST) -> set[str]:
    texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    words = (word for text in texts if isinstance(text, str) for word in text.split())
    return {word.partition("=")[0] for word in words}


def _names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _best(places: list[str], command: str) -> str:
    """The test whose name or file speaks of the command, or the first."""
    near = [p for p in places if command.replace("-", "_") in p]
    return (near or places or [""])[0]


if __name__ == "__main__":
    sys.exit(main())
