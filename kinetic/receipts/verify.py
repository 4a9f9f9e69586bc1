"""A receipt's answer made again, the plainest way, and compared.

Alone in the engine, without guesses, prompt states, run-ahead or shared steps. Answers are the
same on every device class and in every build that has the receipt's arithmetic and makes the
receipt's graph of the model; a difference there is a false receipt, or a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kinetic._version import __version__
from kinetic.errors import KineticError, ModelFileError, UsageError
from kinetic.receipts.build import build_id
from kinetic.receipts.canonical import Json
from kinetic.receipts.fields import BANNED
from kinetic.receipts.hashing import Progress
from kinetic.receipts.held import Held
from kinetic.receipts.make import Answer, Heard, file_record
from kinetic.receipts.seal import Record, token_hash
from kinetic.runtime.devices.weights import Progress as Loading
from kinetic.runtime.prompt_cache import ARITHMETIC
from kinetic.runtime.sampling import SamplingParams
from kinetic.technologies import TECHNOLOGIES

if TYPE_CHECKING:
    from kinetic.api import Model
    from kinetic.generation import GenerationRequest

CUT = ("cancelled", "deadline")
"""Ends that came from outside: the answer is compared as far as it came."""


@dataclass(frozen=True)
class Verdict:
    """Whether the rerun was identical, and what there is to say about it, a line each."""

    identical: bool
    lines: tuple[str, ...]


def headline(record: Record) -> str:
    """What a receipt says of itself."""
    kinetic, sampling = _in(record, "kinetic"), _in(record, "sampling")
    prompt, tokens = _in(record, "prompt"), _in(record, "output", "tokens")
    return (
        f"{_in(record, 'model')['file']}, {prompt['count']} prompt and {tokens['count']} output "
        f"tokens, seed {sampling['seed']}, made on {_in(record, 'device')['class']} by Kinetic "
        f"{kinetic['version']} (build {kinetic['build']})"
    )


def check_file(said: Record, path: Path, field: str, progress: Progress | None = None) -> None:
    """Refuse a model or an adapter that is not the receipt's.

    *Raises*: ModelFileError that names the field.
    """
    found = file_record(path, progress)
    for name in ("size", "blake3"):
        if found[name] != said[name]:
            raise ModelFileError(
                f"{path} is not the file of the receipt: its {field}.{name} is {said[name]} and "
                f"this file's is {found[name]}; give the right one with --model"
            )


def load_again(
    record: Record,
    path: Path,
    *,
    device_class: str | None = None,
    threads: int | None = None,
    progress: Loading | None = None,
) -> Model:
    """The receipt's model with the settings that decide bits, and nothing that makes it fast.

    *Raises*: any KineticError of loading.
    """
    from kinetic.api import Model

    settings = _in(record, "device", "settings")
    adapters: list[tuple[Path, float]] = []
    for i, said in enumerate(cast(list[Record], settings["lora"])):
        adapter = Path(cast(str, said["path"]))
        check_file(said, adapter, f"device.settings.lora[{i}]")
        adapters.append((adapter, cast(float, said["scale"])))
    return Model.load(
        path,
        ctx_size=cast(int, settings["ctx-size"]),
        kv_type=cast(str, settings["kv-type"]),
        device_class=device_class,
        threads=threads,
        off=TECHNOLOGIES,
        lora=adapters,
        progress=progress,
    )


def rerun(record: Record, model: Model, told: Callable[[int], None] | None = None) -> Verdict:
    """Make the answer again and compare; `told` hears how many tokens there are.

    *Raises*: ModelFileError where a field cannot be what made the answer; any KineticError of
    generating.
    """
    notes = _claims(record, model)
    output = _in(record, "output")
    ids = cast(list[int], _in(output, "tokens")["ids"])
    finish = cast(str, output["finish"])
    request = request_of(record, model)
    if finish in CUT:
        request = replace(request, max_tokens=max(1, len(ids)))
    answer = _answer(model, request, told)
    again = list(answer.tokens)
    if again != ids:
        return Verdict(False, (_first_difference(ids, again, model), *notes, *_why(record, model)))
    if finish not in CUT and answer.finish != finish:
        line = f"output.finish differs: the receipt has {finish}, this run {answer.finish}"
        return Verdict(False, (line, *notes, *_why(record, model)))
    if answer.text != output["text"]:
        line = "output.text differs: the receipt's text is not what its tokens spell"
        return Verdict(False, (line, *notes))
    same = (
        f"identical, {len(again)} of {len(ids)} output tokens on {model.device_class} "
        f"(BLAKE3 {token_hash(again)[:16]})"
    )
    return Verdict(True, (same, *notes))


def request_of(record: Record, model: Model) -> GenerationRequest:
    """The request that a receipt records.

    *Raises*: ModelFileError where its settings are none, or name tokens the model lacks.
    """
    from kinetic.generation import GenerationRequest

    said = _in(record, "sampling")
    given = {f.name: said[f.name] for f in fields(SamplingParams)}
    bias = cast(dict[str, float | str], said["logit_bias"])
    breakers = cast(list[str | list[int]] | None, said["dry_sequence_breakers"])
    n_vocab, held = model.graph.meta.n_vocab, Held.of(said["constraint"])
    prompt = cast(list[int], _in(record, "prompt")["ids"])
    shown = cast(list[int], said["shown"])
    for field, ids in (("prompt.ids", prompt), ("sampling.shown", shown)):
        if ids and max(ids) >= n_vocab:
            raise ModelFileError(
                f"the receipt's field {field} has token {max(ids)}, and this model's end at "
                f"{n_vocab - 1}; the receipt was changed"
            )
    try:
        params = SamplingParams(
            **{  # type: ignore[arg-type]
                **given,
                "logit_bias": {
                    int(token): -float("inf") if value == BANNED else float(value)
                    for token, value in bias.items()
                },
                "dry_sequence_breakers": None
                if breakers is None
                else tuple(b if isinstance(b, str) else tuple(b) for b in breakers),
            }
        )
    except UsageError as error:
        raise ModelFileError(f"the receipt's field sampling cannot be: {error}") from None
    return GenerationRequest(
        prompt_ids=prompt,
        params=params,
        max_tokens=cast("int | None", said["max_tokens"]),
        stop=tuple(cast(list[str], said["stop"])),
        choice=cast(int, said["choice"]),
        constraint=None if held is None else held.constraint(model),
        ignore_eos=cast(bool, said["ignore_eos"]),
        shown=frozenset(shown),
    )


def _answer(model: Model, request: GenerationRequest, told: Callable[[int], None] | None) -> Answer:
    heard = Heard()
    for event in model.start(request).events():
        heard.take(event)
        if told is not None:
            told(len(heard.tokens))
    if heard.end is not None and heard.end.error is not None:
        raise heard.end.error
    answer = heard.answer()
    if answer is None:
        raise KineticError("the rerun ended without an end; please report it")
    return answer


def _claims(record: Record, model: Model) -> tuple[str, ...]:
    """Notes on what differs between then and now.

    *Raises*: ModelFileError for what this very build knows to be false.
    """
    kinetic, here = _in(record, "kinetic"), build_id()
    said = {
        "kinetic.version": (kinetic["version"], __version__),
        "arithmetic": (record["arithmetic"], ARITHMETIC),
        "graph": (record["graph"], model.engine.device.program.ir_hash),
    }
    notes = []
    for field, (then, now) in said.items():
        if then == now:
            continue
        if kinetic["build"] == here:
            raise ModelFileError(
                f"the receipt's field {field} is {then}, and this same build has {now}; "
                "the receipt was changed"
            )
        notes.append(f"{field} was {then} and is {now} here")
    if kinetic["build"] != here:
        notes.append(f"made by build {kinetic['build']}, rerun by build {here}")
    then, now = _in(record, "device")["class"], model.device_class
    if then != now:
        notes.append(f"made on {then}, rerun on {now}")
    return tuple(notes)


def _why(record: Record, model: Model) -> tuple[str, ...]:
    graph = record["graph"] == model.engine.device.program.ir_hash
    if record["arithmetic"] == ARITHMETIC and graph:
        return (
            "arithmetic and graph are the same, so the answers must be: the receipt is not true, "
            "or this is a bug to report",
        )
    return ("arithmetic or graph differ, so a difference is expected; rerun with the build above",)


def _first_difference(then: Sequence[int], now: Sequence[int], model: Model) -> str:
    at = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), None)
    at = min(len(then), len(now)) if at is None else at
    return (
        f"output token {at} of {len(then)} differs: the receipt has {_spelled(then, at, model)}, "
        f"this run {_spelled(now, at, model)}"
    )


def _spelled(ids: Sequence[int], at: int, model: Model) -> str:
    if at >= len(ids):
        return "no more tokens"
    if ids[at] >= model.graph.meta.n_vocab:
        return f"{ids[at]}, which is no token of this model"
    return f"{ids[at]} ({model.tokenizer.token_bytes(ids[at]).decode('utf-8', 'replace')!r})"


def _in(record: Record, *path: str) -> Record:
    """An object inside a checked receipt."""
    value: Json = record
    for name in path:
        value = cast(Record, value)[name]
    return cast(Record, value)
