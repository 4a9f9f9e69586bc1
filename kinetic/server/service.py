"""The loaded model as the routes see it: its name, defaults, limits and who is being answered."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.runtime.sampling import SamplingParams
from kinetic.server.errors import ApiError
from kinetic.server.metrics import Metrics
from kinetic.server.slots import Slots
from kinetic.text.grammar import GrammarVocabulary
from kinetic.text.output import ChatFormat

if TYPE_CHECKING:
    from nacl.signing import SigningKey

    from kinetic.api import Model
    from kinetic.server.events import Answers


_format_of = functools.lru_cache(maxsize=4)(ChatFormat.of)


@dataclass(frozen=True)
class ServerOptions:
    """How the server behaves. *Units*: seconds, bytes."""

    host: str = "127.0.0.1"
    port: int = 8080
    alias: str | None = None
    api_keys: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    parallel: int = 1
    webui: bool = True
    drain: float = 30.0
    keep_alive: float = 3.0
    arrival: float = 30.0
    max_body: int = 64 << 20
    max_connections: int = 64
    think: bool | None = None
    """Whether a request that says nothing about it thinks; None leaves it to the template."""
    sign_key: SigningKey | None = None
    """What receipts are signed with."""


class Service:
    """What one server serves."""

    def __init__(
        self,
        model: Model,
        path: str | Path,
        options: ServerOptions | None = None,
        sampling: Mapping[str, object] | None = None,
    ) -> None:
        self.model, self.path = model, Path(path)
        self.options = options or ServerOptions()
        self.name = self.options.alias or self.path.name.removesuffix(".gguf")
        self.defaults = SamplingParams.from_metadata(model.file.metadata).with_overrides(
            **(sampling or {})
        )
        self.created = int(time.time())
        self.started = time.monotonic()
        self.metrics = Metrics()
        self.slots = Slots(self.options.parallel)
        self.answers: set[Answers] = set()
        self.ahead: Answers | None = None
        self.stopping = False
        self.vocabulary = GrammarVocabulary(model.tokenizer)

    @property
    def n_ctx(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """How many tokens the model tells apart."""
        return self.model.graph.meta.n_vocab

    @property
    def chat_format(self) -> ChatFormat:
        """How the model's chat template marks thinking and calls."""
        template = self.model.chat_template
        return _format_of(template.source if template is not None else "")

    def need_text_model(self) -> None:
        """Raises: ApiError (400) where the model generates no text."""
        if self.model.pooling is not None:
            path = "/v1/rerank" if self.model.pooling == "rank" else "/v1/embeddings"
            raise ApiError(400, f"this model generates no text; it is served at {path}")

    def need_pooling(self, *, rank: bool) -> None:
        """Raises: ApiError (400) where the model makes no vectors, or no scores."""
        pooling = self.model.pooling
        if pooling is None:
            raise ApiError(400, "this model generates text; it is served at /v1/chat/completions")
        if rank != (pooling == "rank"):
            path = "/v1/embeddings" if rank else "/v1/rerank"
            raise ApiError(400, f"this model is served at {path}")

    def refuse_if_stopping(self) -> None:
        """Raises: ApiError (503) once the server is being stopped."""
        if self.stopping:
            raise ApiError(
                503, "the server is stopping; send the request to the next one", retry_after=5
            )
