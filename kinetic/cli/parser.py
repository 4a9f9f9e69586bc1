"""One command's options: parsing in any order, plain errors, and help that never varies.

argparse does the conversion of values. What it is not good at is done here: options are told
from words, which mix in any order; its complaints become sentences; and the help text, which
changes with each Python version, is rendered from the declared options, the same for the
terminal and for the book.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NoReturn

from kinetic.cli import llama_flags
from kinetic.errors import UsageError

_NUMBER = re.compile(r"-\.?\d")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_WIDTH = 92


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    A command line is options, then *words*: everything that is neither an option nor an
    option's value, kept in `Namespace.words`. After `--` everything is a word, and the last
    `Namespace.after_dashes` words stood there.
    """

    def __init__(self, command: str, usage: str, does: str, notes: str = "") -> None:
        super().__init__(prog=f"kinetic {command}", add_help=False, allow_abbrev=False)
        self.command = command
        self.line = usage
        self.does = does
        self.notes = notes
        self.groups: dict[str, list[argparse.Action]] = {}

    def option(
        self,
        group: str,
        *names: str,
        help: str,
        metavar: str = "",
        type: Callable[[str], object] | None = None,
        dest: str | None = None,
        default: object = None,
        repeat: bool = False,
        value_optional: bool = False,
        choices: Sequence[str] | None = None,
    ) -> None:
        """Declare an option; without `metavar` or `choices` it is a switch."""
        if choices is not None:
            metavar, type = "|".join(choices), one_of(*choices)
        if metavar:
            action = self.add_argument(
                *names,
                help=help,
                metavar=f"<{metavar}>",
                type=type or str,
                default=default,
                dest=dest,
                action="append" if repeat else "store",
                nargs="?" if value_optional else None,
                const="" if value_optional else None,
            )
        else:
            action = self.add_argument(*names, help=help, dest=dest, action="store_true")
        self.groups.setdefault(group, []).append(action)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace | None:
        """The options and words of a command line, or None when it asks for help.

        Raises: UsageError with the nearest option for one that does not exist.
        """
        line = list(arguments)
        split = line.index("--") if "--" in line else len(line)
        before, after = line[:split], line[split + 1 :]
        if "-h" in before or "--help" in before:
            return None
        given, words = self._sorted(llama_flags.translate(before, self.known(), self.command))
        options = self.parse_args(given)
        options.words = [*words, *after]
        options.after_dashes = len(after)
        return options

    def known(self) -> set[str]:
        """Every name of every option."""
        return set(self._option_string_actions)

    def _sorted(self, line: list[str]) -> tuple[list[str], list[str]]:
        """The options of a line, each joined to its value by "=", and its words.

        argparse would read `-ctk` as `-c tk`, and a value such as -1e30 as an option.

        Raises: UsageError with the nearest option for one that does not exist.
        """
        given: list[str] = []
        words: list[str] = []
        i = 0
        while i < len(line):
            word = line[i]
            i += 1
            name, equals, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if action is None:
                if not _looks_like_option(word):
                    words.append(word)
                elif self._takes_value(word[:2]) and _WHOLE_NUMBER.fullmatch(word[2:]):
                    given.append(f"{word[:2]}={word[2:]}")  # -n64
                else:
                    self._refuse(word)
            elif equals or action.nargs == 0 or i == len(line) or _looks_like_option(line[i]):
                given.append(word)  # argparse says so where a value is missing
            else:
                given.append(f"{word}={line[i]}")
                i += 1
        return given, words

    def _takes_value(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into a sentence.

        Raises: UsageError, always.
        """
        message = re.sub(r"^argument (?:\S+/)*(\S+): ", r"\1 ", message)
        message = message.replace("expected one argument", "needs a value")
        message = re.sub(r"^(\S+) ignored explicit argument .*", r"\1 takes no value", message)
        raise UsageError(f"{message}; see kinetic {self.command} --help.")

    def _refuse(self, word: str) -> NoReturn:
        from difflib import get_close_matches

        name = word.partition("=")[0]
        known = self._option_string_actions
        names = {option: option for option in known}
        names |= {theirs: ours for theirs, ours in llama_flags.SPELLINGS.items() if ours in known}
        # One letter is near any other: only long names are worth a guess.
        long_names = [option for option in names if option.startswith("--")]
        near = get_close_matches(f"--{name.lstrip('-')}", long_names, n=1, cutoff=0.75)
        hint = f"did you mean {names[near[0]]}?" if near else f"see kinetic {self.command} --help."
        raise UsageError(f"there is no option {name}; {hint}")

    # Help. -----------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Each group of options as (title, [(how it is written, what it means), ...])."""
        for title, actions in self.groups.items():
            yield title, [(_invocation(action), action.help or "") for action in actions]

    def format_help(self) -> str:
        """The text of `kinetic <command> --help`."""
        parts = [textwrap.fill(f"kinetic {self.command}: {self.does}", _WIDTH) + "\n"]
        parts.append(f"usage: {self.line}\n")
        for title, rows in self.rows():
            parts.append(f"{title}:\n" + "".join(_help_row(name, text) for name, text in rows))
        if self.notes:
            parts.append(textwrap.fill(self.notes, _WIDTH) + "\n")
        return "\n".join(parts)


def _looks_like_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and " " not in word and not _NUMBER.match(word)


def _invocation(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if not action.metavar:
        return names
    return f"{names} [{action.metavar}]" if action.nargs == "?" else f"{names} {action.metavar}"


def _help_row(name: str, text: str) -> str:
    indent = 32
    lines = textwrap.wrap(text, _WIDTH - indent)
    start = f"  {name}"
    if len(start) + 2 > indent:
        return start + "\n" + "".join(f"{'':{indent}}{line}\n" for line in lines)
    head, *tail = lines or [""]
    return f"{start:<{indent}}{head}\n" + "".join(f"{'':{indent}}{line}\n" for line in tail)


# Values. -------------------------------------------------------------------------------


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A converter for whole numbers from `low` to `high`."""

    def convert(text: str) -> int:
        bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
        wanted = f"takes a whole number {bounds}, not {text!r}"
        # int() would also take "1_000" and digits of other scripts.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise argparse.ArgumentTypeError(wanted)
        value = int(text)
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(wanted)
        return value

    return convert


def real(low: float = float("-inf"), high: float = float("inf")) -> Callable[[str], float]:
    """A converter for finite numbers from `low` to `high`."""

    def convert(text: str) -> float:
        infinite = float("inf")
        bounds = f" from {low:g}" if low > -infinite else ""
        bounds += f" to {high:g}" if high < infinite else " up" if bounds else ""
        wanted = f"takes a number{bounds}, not {text!r}"
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(wanted) from None
        # The comparison is also false for a NaN.
        if not low <= value <= high or abs(value) == infinite:
            raise argparse.ArgumentTypeError(wanted)
        return value

    return convert


def name(of: str) -> Callable[[str], str]:
    """A converter that takes any text but an empty one."""

    def convert(text: str) -> str:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"takes the name of {of}, not {text!r}")
        return text

    return convert


def some_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """A converter for a comma-separated list of some of the choices."""

    def convert(text: str) -> tuple[str, ...]:
        chosen = tuple(part.strip() for part in text.split(","))
        if not set(chosen) <= set(choices):
            raise argparse.ArgumentTypeError(f"takes some of {', '.join(choices)}, not {text!r}")
        return chosen

    return convert


def one_of(*choices: str, also: Container[str] = ()) -> Callable[[str], str]:
    """A converter that takes one of a few words, or one of other programs' words for them."""

    def convert(text: str) -> str:
        if text not in choices and text not in also:
            raise argparse.ArgumentTypeError(f"takes one of {', '.join(choices)}, not {text!r}")
        return text

    return convert
