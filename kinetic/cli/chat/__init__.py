"""`kinetic chat`: a conversation in the terminal.

    conversation.py   what was said, and the prompt that it makes
    session.py        answers, and the settings they are made with
    commands.py       what begins with a slash
    ahead.py          runs the prompt on the model while it is typed
    screen.py         shows answers: thinking dimmed, the rest as it is
    lines.py          messages from a pipe or a plain terminal
    editor.py         messages from a line editor

Without a terminal it reads one message a line and prints each answer.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetic.cli.asking import add_asking
from kinetic.cli.named import model_parts, new_file
from kinetic.cli.options import add_model, add_runtime, add_sampling, take_model
from kinetic.cli.parser import CommandParser, name
from kinetic.cli.terminal import use_utf8

if TYPE_CHECKING:
    from pathlib import Path


def build_parser() -> CommandParser:
    """The options of `kinetic chat`."""
    parser = CommandParser(
        "chat",
        "kinetic chat [options] <model>",
        "chats in the terminal.",
        "A \\ at the end of a line goes on with the message on the next one. Ctrl-C stops an "
        "answer, Ctrl-D or /exit leaves, /help lists the commands. Without a terminal it reads "
        "one message a line and prints each answer. Nothing that is typed is written to disk "
        "but with --history, and with --cache-dir, whose files are made from prompts.",
    )
    add_model(parser)
    add_asking(parser, reasoning="off")
    parser.option(
        "chat options",
        "--history",
        metavar="FILE",
        type=name("a file"),
        help="keep the lines that are typed in this file, and offer those of earlier chats "
        "[default: kept in memory until the chat ends]",
    )
    add_sampling(parser)
    add_runtime(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Chat until the person leaves. Raises: any KineticError of loading the model."""
    use_utf8()
    path, _ = take_model(options, "chat", alone=True)
    return talk(path, options, options.history)


def talk(path: Path, options: argparse.Namespace, history: str | None = None) -> int:
    """Load the model and chat, with an editor where there is a terminal."""
    from kinetic.cli.chat.session import open_session
    from kinetic.cli.terminal import is_interactive

    if history is not None:  # a wrong place is told without a terminal too, where none is kept
        new_file(history, "--history", sources=model_parts(path), ours=lambda there: True)
    if not is_interactive():
        from kinetic.cli.chat import lines

        return lines.chat(open_session(path, options))
    from kinetic.cli.chat import editor

    kept = editor.history_of(history)  # before a load that may take long
    return editor.chat(open_session(path, options), kept)
