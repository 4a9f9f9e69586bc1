"""`kinetic ktc`: writes a model as a .ktc file."""

from __future__ import annotations

import argparse
import sys

from kinetic.cli.named import model_parts, new_file
from kinetic.cli.options import DEVICE_CLASSES, add_model, take_model
from kinetic.cli.parser import CommandParser, name, whole
from kinetic.cli.receipts import add_sign_key, sign_key
from kinetic.cli.terminal import LiveLine, use_utf8, write_out
from kinetic.errors import UsageError


def build_parser() -> CommandParser:
    """The options of `kinetic ktc`."""
    parser = CommandParser(
        "ktc",
        "kinetic ktc [options] <model>",
        "writes a model as a .ktc file, with a hash of every byte.",
        "Weights and metadata stay as they are. With a .ktc file and --sign-key alone, that file "
        "is signed where it is.",
    )
    add_model(parser)
    group = "file options"
    parser.option(
        group,
        *("-o", "--output"),
        metavar="FILE",
        type=name("a file"),
        help="the file to write [default: the model's name with .ktc]",
    )
    add_sign_key(parser, group)
    parser.option(
        group,
        *("-c", "--ctx-size"),
        metavar="N",
        type=whole(1, 1 << 30),
        help="the profile's context size, for runs without -c",
    )
    parser.option(
        group,
        "--device-class",
        choices=DEVICE_CLASSES,
        help="the device class that the profile is for, as a note",
    )
    parser.option(group, "--force", help="write over a file that is there")
    return parser


def run(options: argparse.Namespace) -> int:
    """Write or sign one file. Raises: KineticError."""
    use_utf8()
    path, _ = take_model(options, "ktc", alone=True)
    key = sign_key(options)
    from kinetic.ktc.write import sign_ktc, write_ktc

    with path.open("rb") as file:
        is_ktc = file.read(4) == b"KTC1"
    if is_ktc:
        if key is None or options.output is not None:
            raise UsageError(f"{path.name} is a .ktc file already; --sign-key signs it.")
        sign_ktc(path, key)
        write_out(f"{path} is signed by {bytes(key.verify_key).hex()}\n")
        return 0
    target = new_file(
        options.output or path.with_suffix(".ktc"),
        "the new file",
        sources=model_parts(path),
        forced=options.force,
        force="--force",
    )
    line = LiveLine(enabled=sys.stderr.isatty())
    try:
        write_ktc(
            path,
            target,
            key=key,
            device_class=options.device_class,
            n_ctx=options.ctx_size,
            progress=lambda done, total: line.update(f"[{100 * done // total}%]"),
        )
    finally:
        line.clear()
    write_out(f"{target}\n")
    return 0
