"""`kinetic verify-receipt`: makes a receipt's answer again and compares it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from kinetic.cli.named import readable
from kinetic.cli.options import DEVICE_CLASSES, DEVICES
from kinetic.cli.parser import CommandParser, name, one_of, whole
from kinetic.cli.terminal import LiveLine, LoadBar, one_line, use_utf8, write_out
from kinetic.errors import ModelFileError, UnsupportedError, UsageError


def build_parser() -> CommandParser:
    """The options of `kinetic verify-receipt`."""
    parser = CommandParser(
        "verify-receipt",
        "kinetic verify-receipt [options] <receipt>",
        "makes a receipt's answer again, the plainest way, and compares it.",
        "Exits with 1 when anything does not match. Answers are expected to be identical on "
        "every device class and in every build with the receipt's arithmetic and graph.",
    )
    group = "verification"
    parser.option(
        group,
        *("-m", "--model"),
        metavar="FILE",
        type=name("a model"),
        help="the model, where it is not where the receipt says",
    )
    parser.option(
        group,
        "--device",
        metavar="auto|cpu|cuda|vulkan",
        default="auto",
        type=one_of("auto", "cpu", "cuda", "vulkan", also=DEVICES),
        help="where to rerun [default: auto]",
    )
    parser.option(
        group,
        "--device-class",
        choices=DEVICE_CLASSES,
        help="which set of kernels to use [default: the receipt's, or else the best of this CPU]",
    )
    parser.option(
        group,
        *("-t", "--threads"),
        metavar="N",
        type=whole(1, 4096),
        help="CPU threads [default: all]",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Check one receipt. Raises: KineticError where a field, the signature or the file is wrong."""
    use_utf8()
    words: list[str] = options.words
    if len(words) != 1:
        raise UsageError("name one receipt, as in kinetic verify-receipt answer.json.")
    device = DEVICES.get(options.device, options.device)
    if device not in ("auto", "cpu"):
        raise UnsupportedError(
            f"--device {device} is not supported yet; Kinetic runs on the CPU, use --device cpu"
        )

    from kinetic.receipts.files import read_receipt
    from kinetic.receipts.seal import check_signature
    from kinetic.receipts.verify import check_file, headline, load_again, rerun

    record = read_receipt(readable(words[0], "the receipt"))
    _say("receipt", headline(record))
    if _class_of(record) not in DEVICE_CLASSES:
        _say("", f"device.class {_class_of(record)} is none that this Kinetic knows")
    public = check_signature(record, words[0])
    _say("signature", "none" if public is None else f"valid, public key {public}")

    said = record["model"]
    assert isinstance(said, dict)
    path = _model(options.model, str(said["path"]), str(said["file"]))
    line = LiveLine(enabled=sys.stderr.isatty())
    try:
        check_file(
            said, path, "model", lambda done, total: line.update(f"[hash {100 * done // total}%]")
        )
    finally:
        line.clear()
    _say("model", f"{path.name} matches (BLAKE3 {str(said['blake3'])[:16]})")

    bar = LoadBar()
    try:
        model = load_again(
            record,
            path,
            device_class=options.device_class or _device_class(record),
            threads=options.threads,
            progress=bar.progress,
        )
    finally:
        bar.clear()
    try:
        verdict = rerun(record, model, lambda count: line.update(f"[{count} tokens]"))
    finally:
        line.clear()
        model.close()
    for i, text in enumerate(verdict.lines):
        _say("rerun" if i == 0 else "", text)
    return 0 if verdict.identical else 1


def _say(what: str, text: str) -> None:
    head = f"{what}: " if what else ""
    write_out(f"{head:<11}{one_line(text)}\n")


def _model(given: str | None, path: str, file: str) -> Path:
    from kinetic.cli.model_path import find_model

    if given is not None:
        return find_model(given)
    for typed in (path, file):
        try:
            return find_model(typed)
        except UsageError:
            continue
    raise ModelFileError(
        f"the receipt's model {path} is not on this computer; give its place with --model"
    )


def _class_of(record: Mapping[str, object]) -> str:
    device = record["device"]
    assert isinstance(device, dict)
    return str(device["class"])


def _device_class(record: Mapping[str, object]) -> str | None:
    """The receipt's device class where this CPU has it; None for the best there is."""
    from kinetic.codegen.targets.llvm_x86 import cpu_target

    wanted = _class_of(record)
    if wanted not in DEVICE_CLASSES:
        return None
    try:
        return cpu_target(wanted).device_class
    except UnsupportedError:
        return None
