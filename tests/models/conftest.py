"""A home folder of its own for every test of this folder, so that no real model is found."""

from __future__ import annotations

from pathlib import Path

import pytest

PLACES = (
    *("KINETIC_MODELS", "KINETIC_CACHE_DIR", "OLLAMA_MODELS", "HF_HUB_CACHE", "HF_HOME"),
    *("HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HF_TOKEN"),
    *("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch) -> Path:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    folder: Path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    return folder
