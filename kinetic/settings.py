"""Every environment variable Kinetic reads, in one place.

Values are read when asked for, never at import, so that a test or a program that embeds
Kinetic can change them, and so that importing this module costs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kinetic.errors import UsageError


class Setting(NamedTuple):
    """One environment variable, as the book lists it."""

    name: str
    default: str
    meaning: str


SETTINGS = (
    Setting(
        "KINETIC_CACHE_DIR",
        "`kinetic` in the user's cache directory",
        "where compiled kernels are kept; the folder may be deleted at any time",
    ),
    Setting(
        "KINETIC_MODELS",
        "`kinetic/models` in the user's data directory",
        "where `kinetic pull` puts models and where they are looked for first",
    ),
    Setting(
        "KINETIC_DEBUG",
        "0",
        "what to print on stderr, each step with those before it: 1 devices, 2 timings, "
        "3 the plan, 4 the IR after each pass, 5 generated source, 6 assembly",
    ),
    Setting("NO_COLOR", "", "any value: no colour in the output"),
    Setting("HF_TOKEN", "", "sent by `kinetic pull` for repositories that are private or gated"),
    Setting("HF_ENDPOINT", "https://huggingface.co", "the hub, or a mirror of it"),
)

DEBUG_LEVELS = 6


def cache_dir() -> Path:
    """The folder for compiled kernels and everything else that can be made again."""
    return _folder("KINETIC_CACHE_DIR") or user_cache() / "kinetic"


def models_dir() -> Path:
    """Kinetic's own folder of models: where they are downloaded to and looked for first.

    Raises: UsageError when KINETIC_MODELS is a file.
    """
    folder = _folder("KINETIC_MODELS")
    if folder is None:
        return _user_data() / "kinetic" / "models"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"KINETIC_MODELS is {str(folder)!r}, which is no folder; name a folder.")
    return folder


def debug_level() -> int:
    """How much to tell on stderr, 0 (nothing) to 6 (assembly).

    Raises: UsageError when KINETIC_DEBUG is not a whole number of that range.
    """
    text = os.environ.get("KINETIC_DEBUG", "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) <= DEBUG_LEVELS):
        raise UsageError(f"KINETIC_DEBUG is {text!r}, but it takes a number from 0 to 6.")
    return int(text)


def color_allowed() -> bool:
    """Whether escape sequences may be written at all (no-color.org, and dumb terminals)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _folder(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text).expanduser() if text else None


def user_cache() -> Path:
    """Where programs of this user keep what can be made again."""
    return _local_app_data() or _xdg("XDG_CACHE_HOME") or Path.home() / ".cache"


def _user_data() -> Path:
    return _local_app_data() or _xdg("XDG_DATA_HOME") or Path.home() / ".local" / "share"


def _local_app_data() -> Path | None:
    if os.name != "nt":
        return None
    local = os.environ.get("LOCALAPPDATA")
    return Path(local) if local else Path.home() / "AppData" / "Local"


def _xdg(variable: str) -> Path | None:
    # The XDG base directory specification: a relative path must be ignored.
    text = os.environ.get(variable, "")
    return Path(text) if os.path.isabs(text) else None
