"""What begins with a slash: commands of a chat, each a function from session and words to a reply.

A line with a space before its slash is a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from kinetic.cli.chat.session import Session
from kinetic.cli.receipts import place
from kinetic.errors import UsageError


class Leave(Exception):
    """The person wants to go."""


class Command(NamedTuple):
    """A command: how it is written, what it does, and the function behind it."""

    written: str
    does: str
    act: Callable[[Session, str], str]


def obey(line: str, session: Session) -> str | None:
    """The reply to a command; None when the line is a message.

    *Raises* `Leave`, or `UsageError` for a command or a value that makes no sense.
    """
    if not line.startswith("/"):
        return None
    word, _, rest = line.partition(" ")
    command = COMMANDS.get(word.lower())
    if command is None:
        from difflib import get_close_matches

        near = get_close_matches(word.lower(), COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands."
        raise UsageError(
            f"there is no command {word}; {hint} A space before the slash sends it as a message."
        )
    return command.act(session, rest.strip())


def _clear(session: Session, rest: str) -> str:
    session.conversation.clear()
    return "A new conversation."


def _system(session: Session, rest: str) -> str:
    session.conversation.system = rest or None
    session.conversation.clear()
    return "A new conversation " + ("with this system prompt." if rest else "without one.")


def _think(session: Session, rest: str) -> str:
    talk = session.conversation
    if talk.format.reasoning is None:
        raise UsageError("this model's chat template knows no reasoning, so there is none to turn")
    wanted = {"": talk.think is False, "on": True, "off": False}.get(rest.lower())
    if wanted is None:
        raise UsageError(f"/think takes on, off or nothing, not {rest!r}")
    talk.think = wanted
    return f"Reasoning is {'on' if talk.think else 'off'}."


def _setting(
    field: str, written: str, convert: type[int] | type[float]
) -> Callable[[Session, str], str]:
    def act(session: Session, rest: str) -> str:
        if not rest:
            return f"{written} is {getattr(session.params, field)}."
        try:
            value = convert(rest)
        except ValueError:
            raise UsageError(f"{written} takes a number, not {rest!r}") from None
        session.params = session.params.with_overrides(**{field: value})
        return f"{written} is {value} from the next answer on."

    return act


def _seed(session: Session, rest: str) -> str:
    from dataclasses import replace

    if not rest:
        session.params = replace(session.params, seed=None)
        return "Each answer has a fresh seed."
    if not (rest.isascii() and rest.isdigit()):
        raise UsageError(f"/seed takes a whole number, not {rest!r}")
    session.params = session.params.with_overrides(seed=int(rest))
    return f"The seed is {int(rest)}: answers are repeatable."


def _sampling(session: Session, rest: str) -> str:
    plain = type(session.params)()
    shown = ("temperature", "top_k", "top_p", "min_p", "seed")
    lines = []
    for field in fields(session.params):
        value = getattr(session.params, field.name)
        if field.name in shown or value != getattr(plain, field.name):
            lines.append(f"  {field.name} {'fresh' if value is None else value}")
    return "\n".join(lines)


def _image(session: Session, rest: str) -> str:
    raise UsageError("images are not supported yet; Kinetic reads text alone so far")


def _receipt(session: Session, rest: str) -> str:
    from kinetic.receipts.files import receipt_text, write_receipt

    record = session.receipt()
    if not rest:
        return receipt_text(record).rstrip("\n")
    path = place(rest, "/receipt", Path(session.model.file.path))
    write_receipt(path, record)
    return f"The receipt of the last answer is in {path}."


def _help(session: Session, rest: str) -> str:
    width = max(len(command.written) for command in TABLE)
    return "\n".join(f"  {command.written:<{width}}  {command.does}" for command in TABLE)


def _leave(session: Session, rest: str) -> str:
    raise Leave


TABLE = (
    Command("/clear", "starts a new conversation", _clear),
    Command("/system TEXT", "sets the system prompt and starts over; alone, clears it", _system),
    Command("/think", "turns the model's reasoning on or off; it is shown dimmed", _think),
    Command("/temp X", "temperature of the next answers", _setting("temperature", "/temp", float)),
    Command("/top-p X", "top-p of the next answers", _setting("top_p", "/top-p", float)),
    Command("/top-k N", "top-k of the next answers", _setting("top_k", "/top-k", int)),
    Command("/min-p X", "min-p of the next answers", _setting("min_p", "/min-p", float)),
    Command("/seed N", "makes answers repeatable; alone, a fresh seed each time", _seed),
    Command("/sampling", "shows the sampling settings", _sampling),
    Command("/image PATH", "images are not supported yet", _image),
    Command("/receipt [FILE]", "writes the receipt of the last answer, or prints it", _receipt),
    Command("/help", "lists the commands", _help),
    Command("/exit, /quit", "leaves, as Ctrl-D does", _leave),
)

COMMANDS = {word: command for command in TABLE for word in command.written.split(" ")[0:1]}
COMMANDS = {word.rstrip(","): command for word, command in COMMANDS.items()}
COMMANDS["/quit"] = COMMANDS["/exit"]
