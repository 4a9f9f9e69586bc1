"""The pages of the book that are written from the code: `check.py docs`, `check.py --fix`.

Run by the project's own Python. With --check nothing is written, and a page that differs from
what the code says now is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
WRITTEN = "<!-- Written by scripts/check.py --fix from the code; do not edit. -->\n"


def cli_page() -> str:
    """The command line: every command, its options, the environment settings."""
    from kinetic.cli import COMMANDS
    from kinetic.settings import SETTINGS

    parts = [
        f"# Command line\n\n{WRITTEN}\n"
        "`kinetic <command> [options] <model> ...`. Options may stand in any place; after `--` "
        "everything is prompt. llama.cpp's spellings of the options are taken too.\n\n"
        "Exit codes: 0 done, 1 the command failed, 2 the command line is wrong, 130 Ctrl-C.\n\n"
        "The line is wrong (2) when an option or a word is, when a path that it names cannot be "
        "read or written, is a folder where a file is meant, or is there already and would be "
        "lost, and when a text that it gives (a prompt, grammar, schema, template or key) is "
        "none. A file that was read and is damaged, of another kind, or does not match makes the "
        "command fail (1), and so does what the machine or the network lacks.\n"
    ]
    for name in COMMANDS:
        parser = import_module(f"kinetic.cli.{name.replace('-', '_')}").build_parser()
        parts.append(f"## {name}\n\n`{parser.line}`: {parser.does}\n")
        for title, rows in parser.rows():
            parts.append(_table((title.capitalize(), "Meaning"), [(f"`{n}`", t) for n, t in rows]))
        if parser.notes:
            parts.append(parser.notes + "\n")
    parts.append("## Environment\n")
    rows = [(f"`{s.name}`", f"{s.meaning} [default: {s.default or 'unset'}]") for s in SETTINGS]
    parts.append(_table(("Variable", "Meaning"), rows))
    return "\n".join(parts)


def ops_page() -> str:
    """Every op of the IR, by its declaration."""
    from kinetic.ir import ops

    return ops.doc_table()


def formats_page() -> str:
    """Every weight format, by its declaration."""
    from kinetic.ir import quant

    return (
        f"# Weight formats\n\n{WRITTEN}\n"
        "The tensor types Kinetic reads, by ggml's names, as `ir/quant/` declares them. A file "
        "mixes several: Q4_K_M, for one, is mostly Q4_K with some Q6_K.\n\n"
        f"{quant.doc_table().strip()}\n\n"
        "[Add a weight format](add-a-quant.md) says how a new one joins.\n"
    )


def llama_flags_page() -> str:
    """llama.cpp's flags."""
    import llama_flags_doc

    return llama_flags_doc.page()


def messages_page() -> str:
    """Every message there is."""
    import messages

    return messages.page()


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "ops.md": ops_page,
    "formats.md": formats_page,
    "llama-flags.md": llama_flags_page,
    "messages.md": messages_page,
}


def main() -> int:
    """Write the pages, or say which are stale."""
    stale = []
    for name, write in PAGES.items():
        file, text = DOCS / name, write()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8", newline="\n")
    if not stale:
        return 0
    names = ", ".join(f"docs/{name}" for name in stale)
    if "--check" in sys.argv:
        print(f"not what the code says now: {names}; run python3 scripts/check.py --fix docs")
        return 1
    print(f"wrote {names}")
    return 0


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *((a.replace("|", "\\|"), b) for a, b in rows)]
    return "".join(f"| {a} | {b} |\n" for a, b in lines)


if __name__ == "__main__":
    sys.exit(main())
