"""Ollama's store: manifests that name blobs.

manifests/registry.ollama.ai/library/qwen3/4b    JSON: layers with a type and a digest
blobs/sha256-8a83...                             the files; `-partial` while downloading
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kinetic.models.found import FoundModel, size_of

SOURCE = "Ollama"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MAX_MANIFEST = 1 << 20


def find(root: Path) -> list[FoundModel]:
    """Every model of the store that is a GGUF file, and downloads that are not finished."""
    models = list(_from_manifests(root))
    models += _unfinished(root / "blobs")
    return models


def _from_manifests(root: Path) -> Iterator[FoundModel]:
    base = root / "manifests"
    for folder, subfolders, files in os.walk(base):
        subfolders.sort()
        for file in sorted(files):
            where = Path(folder) / file
            words = where.relative_to(base).parts
            if len(words) == 4:
                model = _model(where, words, root / "blobs")
                if model is not None:
                    yield model


def _model(manifest: Path, words: tuple[str, ...], blobs: Path) -> FoundModel | None:
    layers = _layers(manifest)
    weights = [_blob(blobs, d) for kind, d in layers if kind.endswith("image.model")]
    projectors = [_blob(blobs, d) for kind, d in layers if kind.endswith("image.projector")]
    path = weights[0] if weights else None
    if path is None:
        return None
    host, namespace, model, tag = words
    name = f"{model}:{tag}"
    if namespace != "library" or host != "registry.ollama.ai":
        name = f"{namespace}/{name}"
    others = []
    if host != "registry.ollama.ai":
        others.append(f"{host}/{name}")
    there = path.is_file()
    return FoundModel(
        name=name,
        path=path,
        source=SOURCE,
        size=size_of(path),
        other_names=tuple(others),
        projector=projectors[0] if projectors else None,
        unfinished="" if there else f"its file {path.name[:19]}... is missing",
        owned=(manifest,),
    )


def _layers(manifest: Path) -> list[tuple[str, str]]:
    """(media type, digest) of each layer; nothing for what is not a manifest."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return []
        read = json.loads(manifest.read_bytes())
        layers = read["layers"]
        return [(str(layer["mediaType"]), str(layer["digest"])) for layer in layers]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _blob(blobs: Path, digest: str) -> Path | None:
    # The digest becomes a file name, so nothing but a digest may pass.
    match = _DIGEST.fullmatch(digest)
    return None if match is None else blobs / f"sha256-{match[1]}"


def _unfinished(blobs: Path) -> Iterator[FoundModel]:
    try:
        names = sorted(p.name for p in blobs.iterdir())
    except OSError:
        return
    for name in names:
        if name.endswith("-partial") and _DIGEST.match(name):
            path = blobs / name
            yield FoundModel(
                name=name[:19],
                path=path,
                source=SOURCE,
                size=size_of(path),
                unfinished="ollama pull finishes it",
            )
