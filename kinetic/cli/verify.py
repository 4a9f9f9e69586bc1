"""`kinetic verify`: checks every hash of a .ktc file and its signature."""

from __future__ import annotations

import argparse
import sys

from kinetic.cli.model_path import find_model
from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import LiveLine, one_line, use_utf8, write_out
from kinetic.errors import UsageError


def build_parser() -> CommandParser:
    """The options of `kinetic verify`."""
    return CommandParser(
        "verify",
        "kinetic verify <file.ktc>",
        "checks every hash of a .ktc file and its signature.",
        "Exits with 1 when anything does not match. A signature only says who made the file if "
        "you know that the key is theirs.",
    )


def run(options: argparse.Namespace) -> int:
    """Check one file. Raises: KineticError where it is not what it says."""
    use_utf8()
    words: list[str] = options.words
    if len(words) != 1:
        raise UsageError("name one file, as in kinetic verify model.ktc.")
    path = find_model(words[0], (".ktc",))
    from kinetic.ktc.verify import verify_ktc

    line = LiveLine(enabled=sys.stderr.isatty())
    try:
        found = verify_ktc(path, lambda done, total: line.update(f"[{100 * done // total}%]"))
    finally:
        line.clear()
    signed = "none" if found.public_key is None else f"valid, public key {found.public_key}"
    profile = [found.device_class or "any device class"]
    if found.n_ctx is not None:
        profile.append(f"context {found.n_ctx}")
    write_out(
        f"file:      {one_line(path.name)}, {found.nbytes} bytes, made by "
        f"{one_line(found.made_by)}\n"
        f"profile:   {one_line(', '.join(profile))}\n"
        f"hashes:    {found.sections} sections match\n"
        f"signature: {signed}\n"
    )
    return 0
