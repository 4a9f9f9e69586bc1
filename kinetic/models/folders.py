"""The places where models lie: Kinetic's own folder and those of other programs.

Directories are listed and nothing is opened; a place that does not exist is an empty one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path

from kinetic import settings
from kinetic.models import ollama
from kinetic.models.found import (
    FoundModel,
    ModelFiles,
    group_files,
    projector_for,
    quant_in,
    size_of,
)
from kinetic.models.state import read_state

OWN = "folder"
ENTRY_POINTS = "kinetic.models"
"""A Python package that brings a model names its module in this group of entry points."""
_MAX_DEPTH = 4
_UNFINISHED = (".part", ".incomplete", ".downloadinprogress", ".download")
_REVISION = re.compile(r"[0-9a-f]{40}")


def all_models() -> list[FoundModel]:
    """Every model on this computer, Kinetic's own first; no two have the same name."""
    found: list[FoundModel] = in_folder(settings.models_dir(), OWN)
    found += ollama.find(ollama_dir())
    for folder in lm_studio_dirs():
        found += in_repo_folders(folder, "LM Studio")
    found += in_hub_cache(hub_cache_dir())
    found += in_folder(llama_cache_dir(), "llama.cpp")
    if os.name == "nt":
        found += in_folder(Path(r"C:\models"), OWN)
    found += in_packages()
    return _with_own_names(found)


# Where each program keeps them. --------------------------------------------------------


def ollama_dir() -> Path:
    """Ollama's store."""
    return _named("OLLAMA_MODELS") or Path.home() / ".ollama" / "models"


def lm_studio_dirs() -> list[Path]:
    """LM Studio's folder, and the one of its older versions."""
    return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]


def hub_cache_dir() -> Path:
    """The cache of Hugging Face's own tools."""
    named = _named("HF_HUB_CACHE") or _named("HUGGINGFACE_HUB_CACHE")
    home = _named("HF_HOME")
    return named or (home or Path.home() / ".cache" / "huggingface") / "hub"


def llama_cache_dir() -> Path:
    """llama.cpp's cache."""
    return _named("LLAMA_CACHE") or settings.user_cache() / "llama.cpp"


def _named(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text).expanduser() if text else None


# How each is laid out. -----------------------------------------------------------------


def in_folder(root: Path, source: str) -> list[FoundModel]:
    """Model files of a folder and its subfolders, named by their files."""
    paths = list(_walk(root))
    models = [_plain(root, group, source) for group in group_files(paths)]
    models += [_unfinished(path, source) for path in paths if _is_unfinished(path)]
    return models


def in_repo_folders(root: Path, source: str) -> list[FoundModel]:
    """Models kept as `org/repo/file.gguf`, named `org/repo:quant`."""
    by_repo: dict[str, list[Path]] = {}
    loose: list[FoundModel] = []
    for path in _walk(root):
        words = path.relative_to(root).parts
        if len(words) >= 3:
            by_repo.setdefault("/".join(words[:2]), []).append(path)
        elif _is_unfinished(path):
            loose.append(_unfinished(path, source))
        else:
            loose += [_plain(root, group, source) for group in group_files([path])]
    for repo, paths in by_repo.items():
        loose += _of_repo(repo, paths, source)
    return loose


def in_hub_cache(root: Path) -> list[FoundModel]:
    """Hugging Face's cache: `models--org--repo/snapshots/<revision>/file.gguf`."""
    found: list[FoundModel] = []
    for folder in _subfolders(root):
        words = folder.name.split("--")
        if len(words) != 3 or words[0] != "models":
            continue
        repo = f"{words[1]}/{words[2]}"
        snapshot = _snapshot(folder)
        paths = list(_walk(snapshot)) if snapshot is not None else []
        found += _of_repo(repo, paths, "Hugging Face")
        blobs = list(_walk(folder / "blobs"))
        for path in blobs:
            if path.suffix == ".incomplete":
                model = _unfinished(path, "Hugging Face")
                found.append(replace(model, name=f"{repo} ({path.name[:8]})", repo=repo))
    return found


def in_packages() -> list[FoundModel]:
    """Models installed as Python packages, named by their entry points.

    The module is looked up and never imported: listing models runs nobody's code.
    """
    found: list[FoundModel] = []
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            spec = util.find_spec(entry.module.partition(".")[0])
        except (ImportError, ValueError):
            continue
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            inside = Path(place, *entry.module.split(".")[1:])
            groups = group_files(_walk(inside))
            for group in groups:
                model = _plain(inside, group, "package")
                if len(groups) == 1:
                    model = replace(model, name=entry.name, other_names=(model.name,))
                found.append(model)
    return found


def _snapshot(folder: Path) -> Path | None:
    """The revision that `main` points at, else the newest."""
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        if _REVISION.fullmatch(revision) and (folder / "snapshots" / revision).is_dir():
            return folder / "snapshots" / revision
    except (OSError, UnicodeDecodeError):
        pass
    snapshots = _subfolders(folder / "snapshots")
    return max(snapshots, key=lambda p: p.stat().st_mtime, default=None)


def _of_repo(repo: str, paths: list[Path], source: str) -> list[FoundModel]:
    groups = group_files(paths)
    found = []
    for group in groups:
        quant = quant_in(group.paths[0].name)
        with_quant = f"{repo}:{quant or group.stem}"
        names = [repo, with_quant] if len(groups) == 1 else [with_quant]
        model = _plain(group.paths[0].parent, group, source)
        others = (*names[1:], model.name)
        found.append(replace(model, name=names[0], other_names=others, repo=repo))
    for path in paths:
        if _is_unfinished(path):
            found.append(replace(_unfinished(path, source), repo=repo))
    return found


def _plain(root: Path, group: ModelFiles, source: str) -> FoundModel:
    first = group.paths[0]
    inner = first.relative_to(root).parent if first.is_relative_to(root) else Path()
    others = () if inner == Path() else ((inner / group.stem).as_posix(),)
    whole = "" if not group.missing else f"{len(group.missing)} of its parts are missing"
    return FoundModel(
        name=group.stem,
        path=first,
        source=source,
        size=group.size,
        parts=group.paths if len(group.paths) > 1 or group.missing else (),
        other_names=others,
        projector=projector_for(group.stem, first.parent),
        unfinished=whole,
    )


def _is_unfinished(path: Path) -> bool:
    lower = path.name.lower()
    return lower.endswith(_UNFINISHED) and (".gguf" in lower or lower.endswith(".incomplete"))


def _unfinished(path: Path, source: str) -> FoundModel:
    """A download that has not ended; one of Kinetic's own knows how far it is."""
    name = path.name
    for suffix in _UNFINISHED:
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    name = name.removesuffix(".gguf").removeprefix("downloading_")
    state = read_state(path)
    if state is None:
        return FoundModel(name, path, source, size_of(path), unfinished="of another program")
    told = f"{state.percent}% of {state.size / 2**30:.2f} GiB; kinetic pull {state.asked}"
    return FoundModel(
        *(name, path, source, state.done_bytes),
        unfinished=told,
        repo=state.repo,
        owned=(state.path_for(path),),
    )


def _with_own_names(found: list[FoundModel]) -> list[FoundModel]:
    """The models with a name each: where one is taken, a longer one, or the path."""
    taken: set[str] = set()
    named = []
    for model in found:
        free = (n for n in (*model.names, str(model.path)) if n.lower() not in taken)
        name = next(free, str(model.path))
        taken.add(name.lower())
        if name != model.name:
            others = tuple(n for n in model.names if n != name)
            model = replace(model, name=name, other_names=others)
        named.append(model)
    return named


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder, a few levels deep, hidden ones left out."""
    for folder, subfolders, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        keep = sorted(s for s in subfolders if not s.startswith(".")) if depth < _MAX_DEPTH else []
        subfolders[:] = keep
        for file in sorted(files):
            if not file.startswith("."):
                yield Path(folder) / file


def _subfolders(root: Path) -> list[Path]:
    try:
        return sorted(p for p in root.iterdir() if p.is_dir())
    except OSError:
        return []
