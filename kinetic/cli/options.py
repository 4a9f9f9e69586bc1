"""The options several commands share, declared once: model, runtime and sampling."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from kinetic import settings
from kinetic.cli.model_path import find_model
from kinetic.cli.named import readable
from kinetic.cli.parser import CommandParser, name, one_of, real, some_of, whole
from kinetic.cli.terminal import printable
from kinetic.errors import UsageError
from kinetic.technologies import TECHNOLOGIES

DEVICES = {"none": "cpu", "cuda0": "cuda", "vulkan0": "vulkan0", "vulkan1": "vulkan1"}
DEVICE_CLASSES = ("cpu-x86_64-avx2", "cpu-x86_64-scalar")

DEFAULT_CACHE_GIB = 32

# The fields of SamplingParams that the command line can set; each option's `dest` is one.
SAMPLING_FIELDS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "seed"),
)


def add_model(parser: CommandParser) -> None:
    """-m, for those who do not write the model as the first word."""
    parser.option(
        "model", "-m", "--model", metavar="FILE", help="the model, instead of the first word"
    )


def add_runtime(parser: CommandParser, *, context: bool = True) -> None:
    """Where and how a model runs."""
    option, title = parser.option, "runtime options"
    if context:
        option(
            title,
            *("-c", "--ctx-size"),
            metavar="N",
            type=whole(0),
            help="most tokens, prompt and answer together; 0 for all the model supports "
            "[default: 32768, or less if the model was trained on less]",
        )
    option(
        title,
        *("-t", "--threads"),
        metavar="N",
        type=whole(1, 4096),
        help="CPU threads [default: all]",
    )
    option(
        title,
        "--device",
        default="auto",
        metavar="auto|cpu|cuda|vulkan",
        type=one_of("auto", "cpu", "cuda", "vulkan", also=DEVICES),
        help="where the model runs [default: auto]",
    )
    option(
        title,
        "--device-class",
        choices=DEVICE_CLASSES,
        help="which set of kernels to use [default: the best this CPU has]",
    )
    option(title, "--mlock", help="keep the weights in RAM, so the system never swaps them out")
    option(title, "--no-mmap", help="read the file into memory instead of mapping it")
    option(
        title,
        "--repack-cache",
        metavar="DIR",
        type=name("a folder"),
        help="keep repacked weights in this folder: later loads map them, and processes share "
        "them [default: off]",
    )
    option(
        title,
        "--repack-cache-limit",
        metavar="GIB",
        type=real(0, 2**30),
        default=DEFAULT_CACHE_GIB,
        help="most that folder may hold; models unused for longest go "
        f"[default: {DEFAULT_CACHE_GIB}]",
    )
    option(
        title,
        "--cache-dir",
        metavar="DIR",
        type=name("a folder"),
        help="where the states of prompts are kept, so that later ones that begin alike start "
        "behind them [default: warm in Kinetic's cache directory]",
    )
    option(title, "--no-prompt-cache", help="keep no states of prompts; same as --off warm-start")
    option(
        title,
        "--off",
        metavar="LIST",
        type=some_of(*TECHNOLOGIES),
        default=(),
        help="speed technologies not to use, comma-separated, none of which changes an answer: "
        + ", ".join(TECHNOLOGIES),
    )
    option(
        title,
        "--lora",
        metavar="FILE",
        repeat=True,
        type=adapters,
        help="LoRA adapters in GGUF, comma-separated, merged into the weights at load; they take "
        "4 bytes for each weight of an adapted matrix",
    )
    option(
        title,
        "--lora-scaled",
        metavar="FILE:SCALE",
        repeat=True,
        type=scaled_adapters,
        help="the same with scales, as in a.gguf:0.5,b.gguf:2; FILE SCALE is taken too",
    )
    option(
        title,
        "--no-repack",
        help="refused: kernels read only repacked weights, which replace the file's in memory",
    )


def adapters(text: str) -> list[tuple[Path, float]]:
    """The files of --lora, at their full strength."""
    files = [part.strip() for part in text.split(",")]
    if not all(files):
        raise argparse.ArgumentTypeError(f"takes adapters with commas between, not {text!r}")
    return [(Path(file).expanduser(), 1.0) for file in files]


def scaled_adapters(text: str) -> list[tuple[Path, float]]:
    """The files and scales of --lora-scaled."""
    found = []
    for part in text.split(","):
        file, _, scale = part.strip().rpartition(":")
        try:
            if not file:
                raise ValueError
            found.append((Path(file).expanduser(), float(scale)))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"takes FILE:SCALE, as in adapter.gguf:0.5, not {part!r}"
            ) from None
    return found


def add_sampling(parser: CommandParser) -> None:
    """How the next token is picked; names and meanings are llama.cpp's."""

    def option(*names: str, **rest: object) -> None:
        parser.option("sampling options", *names, **rest)  # type: ignore[arg-type]

    number, share = {"metavar": "X", "type": real()}, {"metavar": "P", "type": real(0, 1)}
    option(
        "--temp",
        dest="temperature",
        metavar="T",
        type=real(0),
        help="temperature; 0 always picks the likeliest token [default: the model's]",
    )
    option(
        "--top-k",
        metavar="N",
        type=whole(-1),
        help="sample from the N likeliest tokens; 0 for all",
    )
    option("--top-p", **share, help="sample from the likeliest tokens that add up to P")
    option("--min-p", **share, help="skip tokens less than P times as likely as the best")
    option(
        "--typical", dest="typical_p", **share, help="locally typical sampling with P; 1 for none"
    )
    option(
        "--top-nsigma",
        dest="top_n_sigma",
        metavar="X",
        type=real(-1),
        help="keep tokens within X standard deviations of the best logit; -1 for none",
    )
    option("--xtc-probability", **share, help="how often XTC drops the likeliest tokens")
    option("--xtc-threshold", **share, help="how likely a token must be for XTC to drop it")
    option(
        "--repeat-penalty",
        metavar="X",
        type=real(0.01, 100),
        help="penalty for repeating recent tokens; 1 for none",
    )
    option(
        "--repeat-last-n",
        metavar="N",
        type=whole(-1),
        help="how many recent tokens the penalties see; 0 for none, -1 for all",
    )
    option("--presence-penalty", **number, help="subtracted once from a recent token's logit")
    option("--frequency-penalty", **number, help="subtracted for each time it was seen")
    option("--dry-multiplier", metavar="X", type=real(0), help="DRY repetition penalty; 0 for none")
    option("--dry-base", metavar="X", type=real(1), help="DRY's base")
    option(
        "--dry-allowed-length",
        metavar="N",
        type=whole(0),
        help="the longest repetition DRY leaves alone",
    )
    option(
        "--dry-penalty-last-n",
        metavar="N",
        type=whole(-1),
        help="how many recent tokens DRY sees; 0 for none, -1 for all",
    )
    option(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        metavar="TEXT",
        repeat=True,
        help="text that ends a repetition for DRY; may be given again; none for none",
    )
    option(
        "--mirostat",
        metavar="N",
        type=whole(0, 2),
        help="Mirostat 1 or 2 in place of the filters above; 0 for none",
    )
    option("--mirostat-lr", dest="mirostat_eta", metavar="X", type=real(0), help="Mirostat's eta")
    option("--mirostat-ent", dest="mirostat_tau", metavar="X", type=real(0), help="Mirostat's tau")
    option(
        "-s",
        "--seed",
        metavar="N",
        type=whole(-1, 2**64 - 1),
        help="seed for repeatable sampling [default, or -1: a fresh one]",
    )


def sampling_overrides(options: argparse.Namespace) -> dict[str, object]:
    """The sampling settings that the command line sets; the model's defaults stay for others."""
    given = {field: getattr(options, field) for field in SAMPLING_FIELDS}
    given = {field: value for field, value in given.items() if value is not None}
    if given.get("seed") == -1:
        del given["seed"]
    if given.get("top_k") == -1:
        given["top_k"] = 0
    breakers = given.get("dry_sequence_breakers")
    if breakers is not None:
        # As in llama.cpp, the first --dry-sequence-breaker replaces the default ones.
        given["dry_sequence_breakers"] = tuple(text for text in breakers if text != "none")
    return given


def load_options(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_runtime` declares, as keywords of `Model.load`."""
    return {
        "threads": options.threads,
        "device": device(options),
        "device_class": options.device_class,
        "repack": not options.no_repack,
        "mmap": not options.no_mmap,
        "mlock": options.mlock,
        "off": frozenset(options.off) | ({"warm-start"} if options.no_prompt_cache else set()),
        "cache_dir": _cache_dir(options),
        "lora": [
            (readable(file, "--lora"), scale)
            for given in (options.lora, options.lora_scaled)
            for part in given or []
            for file, scale in part
        ],
        "repack_cache": options.repack_cache,
        "repack_cache_limit": int(options.repack_cache_limit * 2**30),
    }


def _cache_dir(options: argparse.Namespace) -> Path:
    """Where the states of prompts are kept; a notice where they cannot be."""
    if options.cache_dir is None:
        return settings.cache_dir() / "warm"
    folder = Path(options.cache_dir).expanduser()
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path())
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not usable and not options.no_prompt_cache:
        print(
            f"kinetic: --cache-dir {printable(str(folder))} cannot be written, so no prompt is "
            "kept there; name another folder",
            file=sys.stderr,
        )
    return folder


def device(options: argparse.Namespace) -> str:
    """The device in Kinetic's own words; llama.cpp's are taken too."""
    typed: str = options.device
    return DEVICES.get(typed, typed)


def take_model(
    options: argparse.Namespace, command: str, *, alone: bool = False
) -> tuple[Path, list[str]]:
    """The model file and the words left over for the command, which are none where it stands
    `alone`.

    Raises: UsageError when no model is named, or one that does not exist.
    """
    words: list[str] = options.words
    if alone:  # before a first word that is no model either
        no_more_words(words if options.model is not None else words[1:], command)
    if options.model is not None:
        return find_model(options.model), words
    if not words:
        raise UsageError(f"name a model file, as in kinetic {command} model.gguf.")
    if command == "run" and len(words) == options.after_dashes:
        raise UsageError("after -- everything is prompt; name the model file before it.")
    return find_model(words[0]), words[1:]


def no_more_words(words: list[str], command: str) -> None:
    """Refuse words a command has no use for.

    Raises: UsageError naming the first one.
    """
    if words:
        raise UsageError(f"kinetic {command} takes one model; {words[0]!r} is a word too many.")
