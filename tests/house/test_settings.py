"""The environment settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic.errors import UsageError
from kinetic.settings import SETTINGS, cache_dir, color_allowed, debug_level, models_dir


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in (*(s.name for s in SETTINGS), "XDG_CACHE_HOME", "XDG_DATA_HOME", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.skipif(os.name == "nt", reason="XDG is for other systems")
def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / ".cache" / "kinetic"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_dir() == Path("/elsewhere/kinetic")
    assert models_dir() == tmp_path / ".local" / "share" / "kinetic" / "models"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert models_dir() == Path("/data/kinetic/models")
    # The specification says to ignore a relative path.
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert cache_dir() == tmp_path / ".cache" / "kinetic"


def test_kinetics_own_variables_win(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(tmp_path / "c"))
    assert cache_dir() == tmp_path / "c"
    monkeypatch.setenv("KINETIC_MODELS", "~/m")
    assert models_dir() == Path.home() / "m"


@pytest.mark.parametrize(("text", "level"), [("", 0), ("0", 0), (" 3 ", 3), ("6", 6)])
def test_the_ladder_has_six_rungs(monkeypatch, text, level):
    monkeypatch.setenv("KINETIC_DEBUG", text)
    assert debug_level() == level


@pytest.mark.parametrize("text", ["7", "-1", "yes", "1.5", "²", "999999999999"])
def test_another_level_is_a_usage_error(monkeypatch, text):
    monkeypatch.setenv("KINETIC_DEBUG", text)
    with pytest.raises(UsageError, match="from 0 to 6"):
        debug_level()


def test_colour_is_off_where_it_is_not_wanted(monkeypatch):
    assert color_allowed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not color_allowed()
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not color_allowed()
