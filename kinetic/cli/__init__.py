"""The `kinetic` command: finds the subcommand, runs it, turns errors into exit codes.

Nothing heavy is imported here. Each command lives in a module of its name, imported when it
runs, so `kinetic --help` answers before numpy or LLVM could load, and Ctrl-C while they load
meets `main`.

Exit codes: 0 done, 1 the command failed, 2 the command line is wrong, 130 Ctrl-C. A path on the
line that cannot be read or written makes it wrong (kinetic/cli/named.py); a damaged file is 1.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from kinetic._version import __version__
from kinetic.errors import InternalError, KineticError, UsageError
from kinetic.settings import debug_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic.cli.parser import CommandParser

COMMANDS = {
    "run": "answers one prompt, streamed to stdout",
    "chat": "chats in the terminal",
    "serve": "serves a model over HTTP: OpenAI's, Anthropic's, Ollama's and llama-server's API",
    "info": "shows what a model file contains",
    "bench": "measures prompt and generation speed, and peak memory",
    "models": "lists the models on this computer, Ollama's and LM Studio's included",
    "pull": "downloads a model from Hugging Face",
    "rm": "deletes a model",
    "doctor": "checks the CPU, memory, GPUs, drivers and disk, and says what to fix",
    "fit": "shows where each model would run and roughly how fast",
    "plan": "shows where a model would go in memory, without loading it",
    "can-run": "shows which files of a repository would run here",
    "quantize": "writes a model in another weight type, as llama-quantize does",
    "perplexity": "measures perplexity and KL divergence over a text, as llama-perplexity does",
    "imatrix": "makes an importance matrix from a text, for quantize --imatrix",
    "ktc": "writes a model as a .ktc file, with a hash of every byte and a signature",
    "verify": "checks every hash of a .ktc file and its signature",
    "verify-receipt": "makes a receipt's answer again and compares it",
    "show": "prints a model's IR after any pass, its plan, or a kernel's assembly",
    "completion": "prints a script that completes commands and models in a shell",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `kinetic` command line and return its exit code."""
    try:
        _open_missing_streams()
        return dispatch(_typed() if argv is None else list(argv))
    except KineticError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader left (`kinetic run ... | head`): nobody is there to be told.
        _drop_stdout()
        return 1
    except MemoryError:
        _print_error("there is not enough memory; close other programs or use a smaller model.")
        return 1
    except OSError as error:
        from kinetic.cli.named import reason
        from kinetic.cli.terminal import STDOUT

        if error.filename == STDOUT:
            _drop_stdout()
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{reason(error)}")
        return 1


def _typed() -> list[str]:
    """The command line of this process; the program's name may stand for a command."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if not name.lower().startswith("llama-"):
        return sys.argv[1:]
    from kinetic.cli.llama_flags import as_program

    return as_program(name, sys.argv[1:])


def dispatch(arguments: list[str]) -> int:
    """Find the command and hand it the rest of the line.

    Raises: UsageError for an unknown command or option.
    """
    from kinetic.cli.terminal import write_out

    if not arguments and sys.stdin.isatty() and sys.stdout.isatty():
        from kinetic.cli import start

        return start.run()
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        if first == "help" and len(arguments) > 1:
            return dispatch([arguments[1], "--help"])
        write_out(main_help())
        return 0
    if first in ("-V", "--version"):
        write_out(f"kinetic {__version__}\n")
        return 0
    if first not in COMMANDS:
        raise UsageError(_unknown_command(first))
    module = import_module(f"kinetic.cli.{first.replace('-', '_')}")
    parser: CommandParser = module.build_parser()
    options = parser.parse(arguments[1:])
    if options is None:
        write_out(parser.format_help())
        return 0
    debug_level()  # a wrong KINETIC_DEBUG is told by every command alike
    code: int = module.run(options)
    return code


def main_help() -> str:
    """The text of `kinetic --help`."""
    width = max(map(len, COMMANDS))
    rows = "".join(f"  {name:<{width}}  {does}\n" for name, does in COMMANDS.items())
    return (
        "Kinetic: a local inference engine built as a compiler.\n\n"
        "usage: kinetic <command> [options] <model> ...\n\n"
        f"commands:\n{rows}\n"
        "kinetic <command> --help shows a command's options, kinetic --version the version.\n"
    )


def _unknown_command(word: str) -> str:
    if word.startswith("-"):
        return f"options come after the command, as in kinetic run model.gguf {word}."
    if word.lower().endswith(".gguf"):
        return f'say what to do with the model, as in kinetic run {word} "Hello".'
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the commands are: {', '.join(COMMANDS)}."
    return f"there is no command {word!r}; {hint}"


def _report(error: KineticError) -> int:
    if isinstance(error, InternalError):
        import traceback

        with suppress(OSError):
            traceback.print_exc()  # a bug: its report needs the place
    _print_error(str(error))
    return error.exit_code


def _open_missing_streams() -> None:
    """Give a stream that the shell closed (`>&-`) to the null device.

    Python has None in its place, `print(..., file=None)` writes to stdout, and the next file
    to be opened would get the descriptor. In order: the lowest free descriptor is taken.
    """
    if sys.stdin is None:
        with suppress(OSError):
            os.open(os.devnull, os.O_RDONLY)  # holds descriptor 0; no stdin is still no prompt
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _drop_stdout() -> None:
    """Send what stdout still holds nowhere, or Python complains about it at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    from kinetic.cli.terminal import one_line

    end = "" if message.endswith((".", "?", "!", ")", ":")) else "."
    with suppress(OSError):  # nowhere to say it; the exit code still tells
        print(f"kinetic: {one_line(message)}{end}", file=sys.stderr, flush=True)
