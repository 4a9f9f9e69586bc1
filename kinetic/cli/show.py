"""`kinetic show`: what the compiler made of a model, as text.

The IR as the family built it, or after any pass; the launch and memory plan; a kernel's
assembly. The text goes to stdout alone, so it can be diffed and piped.
"""

from __future__ import annotations

import argparse

from kinetic.cli.options import DEVICE_CLASSES, add_model, take_model
from kinetic.cli.parser import CommandParser, name
from kinetic.cli.terminal import use_utf8, write_out
from kinetic.errors import UsageError


def build_parser() -> CommandParser:
    """The options of `kinetic show`."""
    parser = CommandParser(
        "show",
        "kinetic show [options] <model>",
        "prints a model's IR after any pass, its plan, or a kernel's assembly.",
        "Without an option, show prints the IR as the family file built it.",
    )
    add_model(parser)
    group = "what to show"
    parser.option(
        group, "--after", metavar="PASS", type=name("a pass"), help="the IR after this pass"
    )
    parser.option(group, "--plan", help="the launch plan and the memory plan")
    parser.option(
        group, "--asm", metavar="KERNEL", type=name("a kernel"), help="the assembly of this kernel"
    )
    parser.option(group, "--list", help="the names of the passes and kernels")
    parser.option(
        group,
        "--device-class",
        choices=DEVICE_CLASSES,
        default=DEVICE_CLASSES[0],
        help=f"compile for this device class [default: {DEVICE_CLASSES[0]}]",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Print one view. Raises: UsageError when two are asked for, or the name is unknown."""
    use_utf8()
    asked = [
        option
        for option, wanted in (
            ("--after", options.after is not None),
            ("--plan", options.plan),
            ("--asm", options.asm is not None),
            ("--list", options.list),
        )
        if wanted
    ]
    if len(asked) > 1:
        raise UsageError(f"show prints one thing at a time: choose {' or '.join(asked)}.")
    path, _ = take_model(options, "show", alone=True)
    if options.list:
        from kinetic.api import show_names

        text = show_names(path, device_class=options.device_class)
    else:
        from kinetic.api import show

        text = show(
            path,
            after=options.after,
            plan=options.plan,
            asm=options.asm,
            device_class=options.device_class,
        )
    write_out(text if text.endswith("\n") else text + "\n")
    return 0
