"""`kinetic pull`: downloads a model; with `can-run`, the only command that uses the network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.cli.parser import CommandParser, name, whole
from kinetic.cli.terminal import LoadBar, printable, use_utf8, write_out
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.models.download import Target


def build_parser() -> CommandParser:
    """The options of `kinetic pull`."""
    parser = CommandParser(
        "pull",
        "kinetic pull [options] <org>/<repo>[:<quant>]",
        "downloads a GGUF model from Hugging Face and prints the name to run it by.",
        notes="Without a quantization it takes the largest of Q4_K_M, Q5_K_M, Q6_K and Q8_0 that "
        "fits the GPU's free memory, or half the free memory without a GPU, Q4_K_M at least. A "
        "download that was stopped goes on where it was; repeat the command. HF_TOKEN is sent "
        "for repositories that are private or gated, and HF_ENDPOINT names a mirror.",
    )
    option = parser.option
    option("what", "--file", metavar="FILE", type=name("a file"), help="this file of the repo")
    option("what", "--no-mmproj", help="leave the repository's vision projector out")
    option(
        "where",
        "--dir",
        metavar="DIR",
        type=name("a folder"),
        help="download to this folder [default: KINETIC_MODELS]",
    )
    option(
        "how",
        "--connections",
        metavar="N",
        type=whole(1, 32),
        default=8,
        help="connections at once [default: 8]",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Download one model. Raises: UsageError, NetworkError, ModelFileError."""
    use_utf8()
    if len(options.words) != 1:
        raise UsageError("name one repository, as in kinetic pull ggml-org/gemma-3-1b-it-GGUF.")
    path = pull(
        options.words[0],
        file=options.file,
        projector=not options.no_mmproj,
        folder=options.dir,
        connections=options.connections,
    )
    typed = path.name.removesuffix(".gguf") if options.dir is None else str(path)
    _say(f'done; run it with: kinetic run {typed} "Hello"')
    write_out(f"{printable(typed)}\n")
    return 0


def pull(
    asked: str,
    *,
    file: str | None = None,
    projector: bool = True,
    folder: str | None = None,
    connections: int = 8,
) -> Path:
    """Download what `asked` names and return the path of the model.

    Raises: UsageError, NetworkError, ModelFileError.
    """
    from kinetic.models.hub import Hub, check_repo_name

    repo, quant = split_name(asked)
    check_repo_name(repo)
    # The library that speaks HTTP is loaded only now: what was asked is worth a connection.
    from kinetic.cli.here import budget, look
    from kinetic.models import download
    from kinetic.models.choice import choose
    from kinetic.settings import models_dir

    target = Path(folder).expanduser() if folder else models_dir()
    with Hub.from_environment() as hub:
        repository = hub.repository(repo)
        chosen = choose(
            repo,
            repository.files,
            quant=quant,
            file=file,
            projector=projector,
            budget=budget(look(measure=False)),
        )
        wanted = download.targets(chosen, target)
        _announce(hub.endpoint, repo, chosen.why, wanted, target)
        download.check_disk(wanted, target)
        bar = LoadBar()
        settings = download.Settings(connections=connections)
        try:
            download.fetch_all(hub, repository, wanted, asked, bar.progress, settings)
        except KeyboardInterrupt:
            bar.clear()
            _say(f"stopped; what arrived is kept, kinetic pull {asked} goes on from there")
            raise
        finally:
            bar.clear()
    return wanted[0].path


def split_name(asked: str) -> tuple[str, str | None]:
    """`org/repo:quant` as its two halves; an address copied from a browser is taken too."""
    text = asked.strip()
    for prefix in ("https://huggingface.co/", "huggingface.co/", "hf.co/"):
        text = text.removeprefix(prefix)
    repo, colon, quant = text.rstrip("/").partition(":")
    if colon and not quant:
        raise UsageError(f"{asked} names no quantization after the colon; leave the colon out.")
    return repo, quant or None


def _announce(endpoint: str, repo: str, why: str, wanted: list[Target], folder: Path) -> None:
    """Say what comes from where before it does."""
    from kinetic.cli.table import gib

    total = sum(target.file.size for target in wanted)
    _say(f"{repo} from {endpoint} to {folder}")
    for target in wanted:
        as_name = "" if target.path.name == target.file.name else f" as {target.path.name}"
        _say(f"  {target.file.path}, {gib(target.file.size)}{as_name}")
    _say(f"  {gib(total)} in all: {why}")


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
