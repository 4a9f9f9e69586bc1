"""Messages from a pipe, a file, or a terminal without escape sequences: one a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kinetic.cli.chat.commands import Leave, obey
from kinetic.cli.chat.screen import AnswerWriter
from kinetic.cli.chat.session import Session
from kinetic.errors import KineticError, UsageError

PROMPT, MORE = "> ", "  "


def chat(session: Session) -> int:
    """Answer each line; replies of commands go to stderr. Ends with the input.

    *Raises* any KineticError: a script must not go on as if nothing had happened. A person at a
    terminal is told, and goes on.
    """
    person = sys.stdin is not None and sys.stdin.isatty()
    try:
        for message in messages(person=person):
            try:
                _turn(session, message)
            except KineticError as error:
                if not person:
                    raise
                print(f"kinetic: {error}", file=sys.stderr)
    except Leave:
        pass
    finally:
        session.close()
    return 0


def _turn(session: Session, message: str) -> None:
    reply = obey(message, session)
    if reply is not None:
        print(reply, file=sys.stderr)
        return
    writer = AnswerWriter()
    try:
        finish = session.answer(message, writer.show)
    finally:
        writer.close()
    if finish is None and not sys.stdin.isatty():
        raise KeyboardInterrupt
    if finish is not None and finish.reason == "context":
        print(full_context(session), file=sys.stderr)


def full_context(session: Session) -> str:
    """What is told when an answer was cut by the context's end."""
    return (
        f"kinetic: the context of {session.model.n_ctx} tokens is full; /clear starts a new "
        "conversation, and -c sets the size."
    )


def messages(*, person: bool = False) -> Iterator[str]:
    """Each message of stdin; a \\ at a line's end goes on with it on the next line.

    *Raises* `UsageError` for bytes that are not UTF-8.
    """
    parts: list[str] = []
    while True:
        if person:
            print(MORE if parts else PROMPT, end="", file=sys.stderr, flush=True)
        line = _line()
        if line is None:
            break
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        message = "\n".join([*parts, line])
        parts = []
        if message.strip():
            yield message
    if parts and any(part.strip() for part in parts):
        yield "\n".join(parts)


def _line() -> str | None:
    """The next line of stdin; None at its end."""
    raw = b"" if sys.stdin is None else sys.stdin.buffer.readline()
    if not raw:
        return None
    try:
        return raw.decode("utf-8").removeprefix("\ufeff").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError("a message on stdin is not UTF-8 text; convert it first.") from None
