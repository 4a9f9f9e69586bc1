"""`kinetic completion`: a script that lets a shell complete commands, options and models."""

from __future__ import annotations

import argparse
from importlib import import_module

from kinetic.cli.parser import CommandParser
from kinetic.cli.terminal import write_out
from kinetic.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
_NO_MODEL = ("models", "pull", "doctor", "can-run", "completion")


def build_parser() -> CommandParser:
    """The options of `kinetic completion`."""
    return CommandParser(
        "completion",
        "kinetic completion bash|zsh|fish",
        "prints a script that completes commands, options and models in a shell.",
        notes='bash: eval "$(kinetic completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc, '
        "after compinit; fish: kinetic completion fish > "
        "~/.config/fish/completions/kinetic.fish.",
    )


def run(options: argparse.Namespace) -> int:
    """Print one script. Raises: UsageError for another shell."""
    if options.words == ["models"]:
        return _print_names()
    if len(options.words) != 1 or options.words[0] not in SHELLS:
        raise UsageError(f"name a shell: {', '.join(SHELLS)}.")
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.words[0]]
    write_out(write(_commands()))
    return 0


def _print_names() -> int:
    """What the scripts ask for while a person types: one model a line."""
    from kinetic.cli.terminal import printable
    from kinetic.models.folders import all_models

    names = [printable(model.name) for model in all_models() if not model.unfinished]
    write_out("".join(f"{name}\n" for name in names))
    return 0


def _commands() -> dict[str, tuple[str, list[str]]]:
    """Each command with its sentence and its long options."""
    from kinetic.cli import COMMANDS

    found = {}
    for name, does in COMMANDS.items():
        parser: CommandParser = import_module(
            f"kinetic.cli.{name.replace('-', '_')}"
        ).build_parser()
        options = [
            option
            for actions in parser.groups.values()
            for action in actions
            for option in action.option_strings
            if option.startswith("--")
        ]
        found[name] = (does, [*options, "--help"])
    return found


def _bash(commands: dict[str, tuple[str, list[str]]]) -> str:
    cases = "".join(
        f'    {name}) words="{" ".join(options)}" ;;\n' for name, (_, options) in commands.items()
    )
    return f"""\
# Completion of kinetic for bash.
_kinetic() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}  esac
  if [ "${{word:0:1}}" = "-" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
    {"|".join(_NO_MODEL)}) ;;
    *) COMPREPLY=($(compgen -W "$(kinetic completion models 2>/dev/null)" -- "$word")) ;;
  esac
  COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _kinetic kinetic
"""


def _zsh(commands: dict[str, tuple[str, list[str]]]) -> str:
    described = "".join(f"    '{name}:{does}'\n" for name, (does, _) in _quoted(commands).items())
    cases = "".join(
        f"    {name}) options=({' '.join(options)}) ;;\n" for name, (_, options) in commands.items()
    )
    return f"""\
#compdef kinetic
# Completion of kinetic for zsh.
_kinetic() {{
  local -a commands options models
  commands=(
{described}  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  case "${{words[2]}}" in
{cases}  esac
  if [[ "${{words[CURRENT]}}" == -* ]]; then
    compadd -- $options
    return
  fi
  case "${{words[2]}}" in
    {"|".join(_NO_MODEL)}) ;;
    *) models=(${{(f)"$(kinetic completion models 2>/dev/null)"}}); compadd -- $models ;;
  esac
  _files
}}
compdef _kinetic kinetic
"""


def _fish(commands: dict[str, tuple[str, list[str]]]) -> str:
    lines = ["# Completion of kinetic for fish.", "complete -c kinetic -e"]
    for name, (does, options) in _quoted(commands).items():
        lines.append(f"complete -c kinetic -n __fish_use_subcommand -f -a {name} -d '{does}'")
        seen = f"'__fish_seen_subcommand_from {name}'"
        for option in options:
            lines.append(f"complete -c kinetic -n {seen} -l {option.removeprefix('--')}")
        if name not in _NO_MODEL:
            lines.append(f"complete -c kinetic -n {seen} -a '(kinetic completion models)'")
    return "\n".join(lines) + "\n"


def _quoted(
    commands: dict[str, tuple[str, list[str]]],
) -> dict[str, tuple[str, list[str]]]:
    """The same with sentences that may stand between single quotes."""
    return {name: (does.replace("'", ""), options) for name, (does, options) in commands.items()}
