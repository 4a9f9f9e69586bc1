"""Who is being answered, in llama-server's words: slots, each with its current or last request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING

from kinetic import generation

if TYPE_CHECKING:
    from kinetic.server.asks import Ask


@dataclass
class Record:
    """One request of `n` answers on its way."""

    slots: Slots
    ask: Ask
    id: int
    slot: int | None = None
    prompt_done: int = 0
    cached: int = 0
    decoded: int = 0
    open: bool = True

    def take(self, choice: int, event: generation.Event) -> None:
        """Note how far the first answer has come."""
        if self.slot is None and self.open and not isinstance(event, generation.FinishEvent):
            self.slots.seat(self)
        if choice:
            return
        if isinstance(event, generation.PromptEvent):
            self.prompt_done = event.done
        elif isinstance(event, generation.TextEvent):
            self.decoded += event.token is not None
        else:
            self.cached = event.counts.cached_tokens

    def close(self) -> None:
        """The request is over."""
        if self.open:
            self.open = False
            self.slots.left(self)


class Slots:
    """The places of a server's requests."""

    def __init__(self, n: int) -> None:
        self.n = max(1, n)
        self._last: list[Record | None] = [None] * self.n
        self._open: set[int] = set()
        self._seated: set[int] = set()
        self._ids = count()

    def open(self, ask: Ask) -> Record:
        """A new request, waiting until the engine takes it up."""
        record = Record(self, ask, next(self._ids))
        self._open.add(record.id)
        return record

    def seat(self, record: Record) -> None:
        """The engine has taken a request up."""
        self._seated.add(record.id)
        for i, last in enumerate(self._last):
            if last is None or not last.open:
                self._last[i], record.slot = record, i
                return

    def left(self, record: Record) -> None:
        """A request is over."""
        self._open.discard(record.id)
        self._seated.discard(record.id)

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return len(self._seated)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._open) - len(self._seated)

    @property
    def idle(self) -> int:
        """Slots that are free."""
        return max(0, self.n - self.busy)

    def describe(self, n_ctx: int) -> list[dict[str, object]]:
        """All slots. Prompts stay empty: one client is not told what another wrote."""
        return [self._one(i, last, n_ctx) for i, last in enumerate(self._last)]

    def _one(self, i: int, last: Record | None, n_ctx: int) -> dict[str, object]:
        out: dict[str, object] = {"id": i, "n_ctx": n_ctx, "speculative": False}
        if last is None:
            return {**out, "is_processing": False}
        ask = last.ask
        params = {**asdict(ask.params), "n_predict": ask.max_tokens or -1, "stop": list(ask.stop)}
        params["logit_bias"] = [[k, v] for k, v in ask.params.logit_bias.items() if v > -1e38]
        params |= {"max_tokens": ask.max_tokens or -1, "n_probs": ask.logprobs or 0}
        remain = -1 if ask.max_tokens is None else ask.max_tokens - last.decoded
        return {
            **out,
            "id_task": last.id,
            "is_processing": last.open,
            "prompt": "",
            "n_prompt_tokens": len(ask.prompt_ids),
            "n_prompt_tokens_processed": last.prompt_done,
            "n_prompt_tokens_cache": last.cached,
            "params": params,
            "next_token": [
                {
                    "has_next_token": last.open,
                    "has_new_line": False,
                    "n_remain": remain,
                    "n_decoded": last.decoded,
                }
            ],
        }
