"""Receipts of answers, for requests that say `"receipt": true`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from kinetic.errors import KineticError
from kinetic.receipts.make import make_receipt
from kinetic.server.errors import ApiError, from_kinetic

if TYPE_CHECKING:
    from kinetic.receipts.canonical import Json
    from kinetic.server.events import Answers

Object = dict[str, Any]


async def add_receipts(answers: Answers, out: Object, choices: list[Object]) -> None:
    """Give a whole answer its receipt: in the response, or of several choices in each.

    Raises: ApiError where there can be none.
    """
    if not answers.ask.receipt:
        return
    for i, choice in enumerate(choices):
        target = out if len(choices) == 1 else choice
        target["receipt"] = await receipt_of(answers, i)


async def receipt_of(answers: Answers, choice: int) -> Json:
    """The receipt of one choice that has ended. Raises: ApiError where there can be none."""
    service, ask = answers.service, answers.ask
    answer = answers.heard(choice).answer()
    if answer is None:
        raise ApiError(500, "the answer did not end well, so it has no receipt")
    try:
        return await asyncio.to_thread(
            make_receipt,
            service.model,
            ask.generation(choice),
            answer,
            given=cast("Json", ask.given),
            held=ask.held,
            key=service.options.sign_key,
            paths=False,  # where the server keeps its files is not the client's business
        )
    except KineticError as error:
        raise from_kinetic(error) from error


def calls_text(tools: object, choice: object, *, parallel: bool, template: str) -> str:
    """Forced calls as a receipt records them."""
    return json.dumps(
        {"tools": tools, "tool_choice": choice, "parallel": parallel, "template": template}
    )
