"""A chat under way: the model, what was said, and the settings of the next answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import cast

from kinetic.api import Model, SamplingParams
from kinetic.cli.asking import has_template, load_model, template_variables, thinks, token_limit
from kinetic.cli.chat.conversation import Conversation
from kinetic.cli.options import sampling_overrides
from kinetic.errors import InternalError, UsageError
from kinetic.generation import FinishEvent, GenerationRequest, TextEvent
from kinetic.receipts.canonical import Json
from kinetic.receipts.make import Heard, make_receipt
from kinetic.receipts.seal import Record
from kinetic.text.events import OutputEvent, Text
from kinetic.text.output import OutputParser


class Session:
    """One conversation with one model."""

    def __init__(
        self,
        model: Model,
        name: str,
        conversation: Conversation,
        params: SamplingParams,
        limit: int | None = None,
        *,
        run_ahead: bool = True,
    ):
        self.model, self.name, self.conversation = model, name, conversation
        self.params, self.limit, self.run_ahead = params, limit, run_ahead
        self._shown = conversation.format.shown(model.tokenizer)
        self._last: tuple[GenerationRequest, Heard, Json] | None = None
        """What the receipt of the last answer is made of."""

    def answer(self, message: str, show: Callable[[OutputEvent], None]) -> FinishEvent | None:
        """Answer a message, piece by piece, and remember both; None when Ctrl-C stopped it.

        What was said until then stays part of the conversation. A second Ctrl-C is not caught.

        *Raises* any KineticError of the template or of generating; the message is forgotten.
        """
        prompt = self.conversation.prompt(message)
        parser = OutputParser(self.conversation.format, is_open=prompt.thinking)
        request = GenerationRequest(prompt.ids, self.params, self.limit, shown=self._shown)
        said: list[str] = []
        heard = Heard()
        self._last = (request, heard, cast("Json", self.conversation.messages(message)))

        def take(events: list[OutputEvent]) -> None:
            for event in events:
                if isinstance(event, Text):
                    said.append(event.text)
                show(event)

        finish: FinishEvent | None = None
        events = self.model.start(request).events()
        try:
            for event in events:
                heard.take(event)
                if isinstance(event, TextEvent):
                    take(parser.push(event.text))
                elif isinstance(event, FinishEvent):
                    finish = event
        except KeyboardInterrupt:
            finish = None
        finally:
            events.close()  # type: ignore[attr-defined]
        if finish is not None and finish.error is not None:
            raise finish.error
        take(parser.flush("length" if finish is None or finish.reason == "length" else "stop"))
        if said or finish is not None:
            self.conversation.add(message, "".join(said))
        return finish

    def receipt(self) -> Record:
        """The receipt of the last answer.

        *Raises*: UsageError where there is none, or it was stopped.
        """
        if self._last is None:
            raise UsageError("there is no answer yet, so no receipt; ask something first")
        request, heard, given = self._last
        answer = heard.answer()
        if answer is None:
            raise UsageError("the last answer was stopped, so it has no receipt")
        return make_receipt(self.model, request, answer, given=given)

    def close(self) -> None:
        """Give the model back."""
        self.model.scheduler.close(cancel=True)
        self.model.close()


def open_session(path: Path, options: argparse.Namespace) -> Session:
    """Load a model for a chat.

    *Raises* `UsageError` for a model without a chat template.
    """
    variables = template_variables(options)
    if not has_template(path, options):  # before a load that may take long
        raise UsageError(
            f"{path.name} has no chat template, so it is no model to chat with; kinetic run "
            "continues texts with it, and --chat-template-file gives it a template"
        )
    # Prompts are what a person typed: they go to disk only where that is asked for.
    model = load_model(path, options, cache_dir=options.cache_dir)
    template = model.chat_template
    if template is None:
        raise InternalError(f"{path.name} lost its chat template; please report it")
    params = SamplingParams.from_metadata(model.file.metadata).with_overrides(
        **sampling_overrides(options)
    )
    conversation = Conversation(template, options.system, thinks(options), variables)
    ahead = not options.no_prompt_cache and not {"zero-wait", "warm-start"} & set(options.off)
    return Session(model, path.stem, conversation, params, token_limit(options), run_ahead=ahead)
