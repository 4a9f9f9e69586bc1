"""The options of receipts, and the receipt of one answer as it is written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kinetic.cli.named import model_parts, new_file, readable
from kinetic.cli.parser import CommandParser, name
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

    from kinetic.api import Model
    from kinetic.cli.held import Form
    from kinetic.generation import Event, GenerationRequest
    from kinetic.receipts.canonical import Json
    from kinetic.receipts.held import Held
    from kinetic.text.reasoning import ReasoningStyle


def add_sign_key(parser: CommandParser, group: str) -> None:
    """--sign-key."""
    parser.option(
        group,
        "--sign-key",
        metavar="FILE",
        type=name("a file"),
        help="sign receipts with this Ed25519 secret key, 32 bytes or 64 hex digits",
    )


def add_receipt(parser: CommandParser, group: str) -> None:
    """--receipt and --sign-key."""
    parser.option(
        group,
        "--receipt",
        metavar="FILE",
        type=name("a file"),
        help="also write a receipt of the answer, for kinetic verify-receipt",
    )
    add_sign_key(parser, group)


def sign_key(options: argparse.Namespace) -> SigningKey | None:
    """The key of --sign-key. Raises: UsageError where the file holds none."""
    if options.sign_key is None:
        return None
    from kinetic.receipts.signing import load_key

    return load_key(readable(options.sign_key, "--sign-key"))


class Wanted:
    """The receipt that --receipt asks for: it hears the answer, then is written."""

    def __init__(self, path: Path, key: SigningKey | None) -> None:
        from kinetic.receipts.make import Heard

        self.path, self.key = path, key
        self._heard = Heard()
        self._request: GenerationRequest | None = None

    def hear(self, request: GenerationRequest, events: Iterator[Event]) -> Iterator[Event]:
        """The events, listened to as they pass."""
        self._request = request
        try:
            for event in events:
                self._heard.take(event)
                yield event
        finally:
            events.close()  # type: ignore[attr-defined]

    def write(
        self,
        model: Model,
        given: object,
        form: Form | None,
        style: ReasoningStyle | None,
        thinking: bool,
    ) -> None:
        """Write the receipt. Raises: UsageError where it cannot be made or written."""
        from kinetic.receipts.files import write_receipt
        from kinetic.receipts.make import make_receipt

        answer = self._heard.answer()
        if answer is None or self._request is None:
            return
        held = None if form is None else recorded(form, style, thinking)
        record = make_receipt(
            model, self._request, answer, given=cast("Json", given), held=held, key=self.key
        )
        write_receipt(self.path, record)


def recorded(form: Form, style: ReasoningStyle | None, thinking: bool) -> Held:
    """A form of the command line as receipts have it."""
    from kinetic.receipts.held import Held

    if form.grammar is not None:
        return Held("grammar", form.grammar, style, thinking)
    return Held("json_schema", json.dumps(form.schema), style, thinking)


def wanted(options: argparse.Namespace, model: Path) -> Wanted | None:
    """The receipt that the command line asks for, its key and its place checked.

    Raises: UsageError.
    """
    if options.receipt is None:
        if options.sign_key is not None:
            raise UsageError("--sign-key signs a receipt; add --receipt FILE to write one.")
        return None
    return Wanted(place(options.receipt, "--receipt", model), sign_key(options))


def place(file: str, what: str, model: Path) -> Path:
    """Where a receipt may be written: a new file, or one that is an older receipt.

    Raises: UsageError, above all for the model itself.
    """
    from kinetic.receipts.files import is_receipt

    return new_file(file, what, sources=model_parts(model), ours=is_receipt)
