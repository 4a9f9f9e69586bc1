"""A receipt from an answer that has just been given."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kinetic._version import __version__
from kinetic.errors import ModelFileError, UsageError
from kinetic.generation import Event, FinishEvent, TextEvent
from kinetic.ir.gguf_parts import part_name
from kinetic.receipts.build import build_id
from kinetic.receipts.canonical import MAX_DEPTH, Json, depth
from kinetic.receipts.fields import BANNED, VERSION, check_fields
from kinetic.receipts.hashing import Progress, model_hash
from kinetic.receipts.held import Held
from kinetic.receipts.seal import Record, sealed, signed, token_hash
from kinetic.runtime.prompt_cache import ARITHMETIC
from kinetic.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from nacl.signing import SigningKey

    from kinetic.api import Model
    from kinetic.generation import GenerationRequest


@dataclass(frozen=True)
class Answer:
    """What came out: all tokens, the end token included, and their text before a stop text."""

    tokens: Sequence[int]
    text: str
    finish: str
    seed: int


@dataclass
class Heard:
    """Gathers an answer from its events."""

    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    end: FinishEvent | None = None

    def take(self, event: Event) -> None:
        """One more event."""
        if isinstance(event, TextEvent):
            self.text.append(event.text)
            if event.token is not None:
                self.tokens.append(event.token.id)
        elif isinstance(event, FinishEvent):
            self.end = event

    def answer(self) -> Answer | None:
        """The answer, once it has ended well."""
        if self.end is None or self.end.error is not None:
            return None
        return Answer(self.tokens, "".join(self.text), self.end.reason, self.end.seed)


def make_receipt(
    model: Model,
    request: GenerationRequest,
    answer: Answer,
    *,
    given: Json,
    held: Held | None = None,
    key: SigningKey | None = None,
    paths: bool = True,
    progress: Progress | None = None,
) -> Record:
    """The receipt of an answer; `given` are the messages or the text as they were sent.
    Without `paths` it tells no folders of this computer.

    *Raises*: UsageError for an answer that can have none, ModelFileError where the model's file
    cannot be hashed any more.
    """
    if (request.constraint is None) != (held is None):
        raise UsageError("an answer held to a form has a receipt only with that form recorded")
    if answer.finish == "cancelled" and not answer.tokens:
        raise UsageError("an answer that was stopped before its first token has no receipt")
    if depth(json.dumps(given)) > MAX_DEPTH // 2:
        raise UsageError("messages nested that deep cannot have a receipt")

    def record_of(path: Path, progress: Progress | None) -> Record:
        found = file_record(path, progress)
        return found if paths else {**found, "path": found["file"]}

    program = model.engine.device.program
    record: Record = {
        "receipt": VERSION,
        "kinetic": {"version": __version__, "build": build_id()},
        "arithmetic": ARITHMETIC,
        "graph": program.ir_hash,
        "model": record_of(Path(model.file.path), progress),
        "device": {
            "class": model.device_class,
            "name": model.device_name,
            "settings": {
                "ctx-size": model.n_ctx,
                "kv-type": program.kv_type,
                "lora": [
                    {**record_of(Path(path), None), "scale": float(scale)}
                    for path, scale in model.adapters
                ],
            },
        },
        "input": given,
        "prompt": _tokens(request.prompt_ids),
        "sampling": _sampling(request, answer.seed, held),
        "output": {
            "finish": answer.finish,
            "text": answer.text,
            "tokens": _tokens(answer.tokens),
        },
    }
    record = sealed(record)
    check_fields(record, "this answer's receipt")
    return record if key is None else signed(record, key)


def model_files(path: Path) -> list[Path]:
    """All files of the model at a path, in order."""
    name = part_name(path.name)
    parts = [] if name is None else [path.with_name(part) for part in name.all()]
    return parts if parts and all(part.is_file() for part in parts) else [path]


def file_record(path: Path, progress: Progress | None = None) -> Record:
    """Name, size and hash of a model's or an adapter's file, the parts of a split one together."""
    paths = model_files(path)
    try:
        size = sum(p.stat().st_size for p in paths)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    return {
        "file": _printable(path.name),
        "path": _printable(str(path)),
        "size": size,
        "blake3": model_hash(paths, progress),
    }


def _printable(text: str) -> str:
    """A name whose bytes may be anything, as proper Unicode."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _tokens(ids: Sequence[int]) -> Record:
    plain = [int(i) for i in ids]
    return {"count": len(plain), "blake3": token_hash(plain), "ids": cast(Json, plain)}


def _sampling(request: GenerationRequest, seed: int, held: Held | None) -> Record:
    params = request.params
    out: Record = {f.name: _plain(getattr(params, f.name)) for f in fields(SamplingParams)}
    bias = sorted(params.logit_bias.items())
    out["logit_bias"] = {str(t): BANNED if b == -math.inf else float(b) for t, b in bias}
    out |= {
        "seed": seed,
        "choice": request.choice,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "ignore_eos": request.ignore_eos,
        "shown": cast(Json, sorted(request.shown)),
        "constraint": None if held is None else held.record(),
    }
    return out


def _plain(value: object) -> Json:
    """Tuples as lists; numbers as Python's own."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    item = getattr(value, "item", None)
    return cast(Json, item() if callable(item) else value)
