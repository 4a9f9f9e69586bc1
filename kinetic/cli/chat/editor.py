"""Messages from a line editor: history, lines that go on, pasted text, Zero Wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kinetic._version import __version__
from kinetic.cli.chat.ahead import RunAhead
from kinetic.cli.chat.commands import COMMANDS, Leave, obey
from kinetic.cli.chat.lines import MORE, PROMPT, full_context
from kinetic.cli.chat.screen import AnswerWriter, dimmed
from kinetic.cli.named import new_file, reason
from kinetic.cli.terminal import printable
from kinetic.errors import KineticError, UsageError

if TYPE_CHECKING:
    from prompt_toolkit.document import Document

    from kinetic.cli.chat.session import Session
    from kinetic.generation import FinishEvent


def history_of(file: str | None) -> History:
    """Where typed lines are kept: in memory, or in a file that only its owner can read.

    *Raises* `UsageError` where the file cannot be written.
    """
    if file is None:
        return InMemoryHistory()
    path = new_file(file, "--history", ours=lambda there: True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))
    except OSError as error:
        raise UsageError(f"--history {file} cannot be written: {reason(error)}.") from None
    return FileHistory(str(path))


def chat(session: Session, history: History) -> int:
    """Talk until the person leaves; 130 when Ctrl-C was pressed twice."""
    _tell(
        f"Kinetic {__version__}: {session.name} on {session.model.device_name}, context "
        f"{session.model.n_ctx}. /help lists the commands, Ctrl-D leaves."
    )
    editor = Editor(session, history)
    stopped = False
    try:
        while True:
            try:
                message = editor.read()
            except KeyboardInterrupt:
                if stopped:
                    return 130
                stopped = True
                _tell("Ctrl-C again leaves, and so does Ctrl-D.")
                continue
            if message.strip():
                stopped = _turn(session, message)
    except (EOFError, Leave):
        return 0
    finally:
        session.close()


class Editor:
    """Reads messages, and runs each ahead as it is typed."""

    def __init__(self, session: Session, history: History):
        self._session = session
        self._ahead: RunAhead | None = None
        self._prompts: PromptSession[str] = PromptSession(
            history=history,
            multiline=True,  # pasted lines and those after a \ belong to the message
            key_bindings=_keys(),
            completer=_Commands(),
            complete_while_typing=False,
            prompt_continuation=lambda width, line, wrapped: MORE,
        )
        self._prompts.default_buffer.on_text_changed += self._changed

    def read(self) -> str:
        """The next message.

        *Raises* `KeyboardInterrupt` for Ctrl-C and `EOFError` for Ctrl-D on an empty line.
        """
        if self._session.run_ahead:
            self._ahead = RunAhead(self._session)
            self._ahead.typed("")  # what was said before the message does not depend on it
        try:
            return self._prompts.prompt(PROMPT)
        finally:
            if self._ahead is not None:
                self._ahead.stop()
                self._ahead = None

    def _changed(self, buffer: Buffer) -> None:
        if self._ahead is not None and not buffer.text.startswith("/"):
            self._ahead.typed(buffer.text)


def _turn(session: Session, message: str) -> bool:
    """One message or command; whether Ctrl-C stopped its answer."""
    try:
        reply = obey(message, session)
        if reply is not None:
            _tell(reply)
            return False
        writer = AnswerWriter(terminal=True)
        try:
            finish = session.answer(message, writer.show)
        finally:
            writer.close()
    except KineticError as error:
        _tell(f"kinetic: {error}")
        return False
    if finish is None:
        _tell("[stopped]")
        return True
    if finish.reason == "context":
        _tell(full_context(session))
    _tell(_status(finish))
    return False


def _status(finish: FinishEvent) -> str:
    from kinetic.cli.speeds import answer_speed

    counts = finish.counts
    new = counts.prompt_tokens - counts.cached_tokens
    return (
        f"[{answer_speed(counts.generated_tokens, counts.generate_seconds)}; {new} of "
        f"{counts.prompt_tokens} prompt tokens in {counts.prompt_seconds:.2f} s]"
    )


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        # A line that was begun is dropped, as in a shell; with none, the chat hears of it.
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


class _Commands(Completer):
    """Completes the word after a slash."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            for word in COMMANDS:
                if word.startswith(text):
                    yield Completion(word, start_position=-len(text))


def _tell(text: str) -> None:
    print(dimmed(printable(text)), file=sys.stderr, flush=True)
