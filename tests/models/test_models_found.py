"""Models of every program, found by listing folders; names that resolve to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.models.folders import all_models, in_packages
from kinetic.models.found import group_files, quant_in, stem_of
from kinetic.models.names import closest, find_named
from kinetic.models.remove import files_to_remove, remove
from kinetic.models.state import State

OWN = Path(".local/share/kinetic/models")


def put(path: Path, data: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_ollama(home: Path, where: str, digest: str, *, projector: str = "") -> None:
    store = home / ".ollama" / "models"
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]
    if projector:
        kind = "application/vnd.ollama.image.projector"
        layers.append({"mediaType": kind, "digest": f"sha256:{projector}"})
    put(store / "manifests" / where, json.dumps({"layers": layers}).encode())
    for name in filter(None, (digest, projector)):
        put(store / "blobs" / f"sha256-{name}")


def named(typed: str) -> Path:
    found = find_named(typed, all_models())
    assert found is not None
    return found.path


def test_an_empty_computer_has_no_models():
    assert [m for m in all_models() if m.source != "package"] == []


def test_kinetics_own_folder(home):
    path = put(home / OWN / "gemma-3-1b-it-Q4_K_M.gguf")
    put(home / OWN / "notes.txt")
    put(home / OWN / "sub" / "other.gguf")
    assert named("gemma-3-1b-it-q4_k_m") == named("gemma-3-1b-it-Q4_K_M.gguf") == path
    assert named("other") == named("sub/other")
    assert named("other").name == "other.gguf"


def test_ollama_names_take_latest_or_the_only_tag(home):
    library = "registry.ollama.ai/library"
    put_ollama(home, f"{library}/qwen3/4b", "a" * 64)
    put_ollama(home, f"{library}/qwen3/latest", "b" * 64, projector="c" * 64)
    put_ollama(home, f"{library}/gemma3/1b", "d" * 64)
    put_ollama(home, "hf.co/org/repo-GGUF/Q4_K_M", "e" * 64)
    assert named("qwen3:4b").name == "sha256-" + "a" * 64
    assert named("qwen3").name == "sha256-" + "b" * 64
    assert named("gemma3").name == "sha256-" + "d" * 64
    assert named("hf.co/org/repo-GGUF:Q4_K_M") == named("org/repo-gguf")
    model = find_named("qwen3", all_models())
    assert model is not None
    assert model.projector is not None
    assert model.projector.name == "sha256-" + "c" * 64


def test_a_bare_name_with_several_tags_asks_for_one(home):
    for i, tag in enumerate(("4b", "8b")):
        put_ollama(home, f"registry.ollama.ai/library/qwen3/{tag}", str(i) * 64)
    with pytest.raises(ModelFileError, match="several files; add one of :4b, :8b"):
        find_named("qwen3", all_models())


@pytest.mark.parametrize(
    "digest", ["../../../etc/passwd", "sha256:../x", "sha256:" + "g" * 64, "", "sha256:" + "a" * 63]
)
def test_a_manifest_cannot_name_a_file_outside_of_the_store(home, digest):
    store = home / ".ollama" / "models"
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
    where = store / "manifests" / "registry.ollama.ai" / "library" / "m" / "t"
    put(where, json.dumps({"layers": [layer]}).encode())
    assert all_models() == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"layers": 3}', b"[" * 100_000, b"\xff\xfe"])
def test_a_manifest_that_is_none_is_passed_over(home, data):
    put(home / ".ollama/models/manifests/registry.ollama.ai/library/m/t", data)
    assert all_models() == []


def test_lm_studio_and_the_hub_cache_are_named_by_repository(home):
    one = put(home / ".lmstudio/models/lmstudio-community/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf")
    put(home / ".lmstudio/models/lmstudio-community/Qwen3-4B-GGUF/mmproj-F16.gguf")
    hub = home / ".cache/huggingface/hub/models--org--repo-GGUF"
    revision = "0" * 40
    put(hub / "refs" / "main", revision.encode())
    q4 = put(hub / "snapshots" / revision / "m-Q4_K_M.gguf")
    q8 = put(hub / "snapshots" / revision / "m-Q8_0.gguf")
    put(hub / "snapshots" / ("1" * 40) / "old-Q8_0.gguf")
    assert named("lmstudio-community/Qwen3-4B-GGUF") == one
    assert named("lmstudio-community/qwen3-4b-gguf:q4_k_m") == named("Qwen3-4B-Q4_K_M") == one
    assert (named("org/repo-GGUF:Q4_K_M"), named("org/repo-GGUF:Q8_0")) == (q4, q8)
    with pytest.raises(ModelFileError, match=r"add one of :Q4_K_M, :Q8_0"):
        find_named("org/repo-GGUF", all_models())
    model = find_named("Qwen3-4B-Q4_K_M", all_models())
    assert model is not None
    assert model.projector is not None
    assert model.projector.name == "mmproj-F16.gguf"


def test_folders_are_where_the_variables_say(home, tmp_path, monkeypatch):
    for variable, inside in {
        "KINETIC_MODELS": "own.gguf",
        "OLLAMA_MODELS": "manifests/registry.ollama.ai/library/o/t",
        "LLAMA_CACHE": "ggml-org_m.gguf",
        "HF_HOME": "hub/models--a--b/snapshots/x/hub.gguf",
    }.items():
        monkeypatch.setenv(variable, str(tmp_path / variable))
        put(tmp_path / variable / inside)
    names = {model.name for model in all_models()}
    assert {"own", "ggml-org_m", "a/b"} <= names


def test_two_models_of_one_name_get_different_names(home):
    put(home / OWN / "m.gguf")
    put(home / OWN / "a" / "m.gguf")
    put(home / ".lmstudio/models/org/repo/m.gguf")
    models = all_models()
    assert [m.name for m in models] == ["a/m", "m", "org/repo"] or len(
        {m.name.lower() for m in models}
    ) == 3
    assert named("m").parent in (home / OWN, home / OWN / "a")


def test_parts_of_a_split_model_are_one_model(home):
    for no in (1, 2, 3):
        put(home / OWN / f"big-{no:05}-of-00003.gguf", b"x" * no)
    put(home / OWN / "half-00001-of-00002.gguf")
    big = find_named("big", all_models())
    assert big is not None
    assert (big.size, len(big.files), big.unfinished) == (6, 3, "")
    with pytest.raises(ModelFileError, match="unfinished download: 1 of its parts"):
        find_named("half", all_models())


def test_unfinished_downloads_are_shown_as_such(home):
    part = put(home / OWN / "m-Q4_K_M.gguf.part")
    State("org/repo", "main", "m-Q4_K_M.gguf", "org/repo:Q4_K_M", 1000, "", 100).write(part)
    put(home / ".ollama/models/blobs" / ("sha256-" + "a" * 64 + "-partial"))
    put(home / ".cache/llama.cpp/x.gguf.downloadInProgress")
    put(home / ".cache/huggingface/hub/models--a--b/blobs/abcdef.incomplete")
    models = all_models()
    assert len(models) == 4
    assert all(model.unfinished for model in models)
    with pytest.raises(ModelFileError, match=r"unfinished download: 0% of .*kinetic pull org/repo"):
        find_named("m-Q4_K_M", models)
    assert closest("m-Q4_K_M", models) == []


def test_a_miss_lists_the_closest_names(home):
    for name in ("Qwen3-4B-Q4_K_M", "Qwen3-8B-Q4_K_M", "gemma-3-1b-it-Q4_K_M"):
        put(home / OWN / f"{name}.gguf")
    models = all_models()
    assert find_named("qwen3-4b-q4km", models) is None
    assert closest("qwen3-4b-q4km", models)[0] == "Qwen3-4B-Q4_K_M"
    assert closest("gemma", models) == ["gemma-3-1b-it-Q4_K_M"]
    assert closest("zzzzzz", models) == []


def test_models_of_python_packages_are_found_without_importing_them(tmp_path, monkeypatch):
    package = tmp_path / "site" / "kinetic_demo"
    put(package / "__init__.py", b"raise RuntimeError('listing models must run no code')")
    put(package / "demo-Q8_0.gguf")
    info = tmp_path / "site" / "kinetic_demo-1.dist-info"
    put(info / "METADATA", b"Metadata-Version: 2.1\nName: kinetic-demo\nVersion: 1\n")
    put(info / "entry_points.txt", b"[kinetic.models]\ndemo = kinetic_demo\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = {model.name: model for model in in_packages()}
    assert found["demo"].path == package / "demo-Q8_0.gguf"
    with pytest.raises(UnsupportedError, match="pip uninstall"):
        files_to_remove(found["demo"], [])


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-4-E2B_q4_0-it.gguf", "Q4_0"),
        ("Qwen3-30B-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("m.IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-bf16.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Qwen3-4B.gguf", ""),
    ],
)
def test_the_quantization_in_a_name(name, quant):
    assert quant_in(name) == quant


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40))
def test_any_file_name_can_be_looked_at(name):
    quant_in(name)
    assert len(stem_of(name)) <= len(name)
    group_files([Path("/nowhere") / f"{name}.gguf"])


def test_removing_takes_what_belongs_to_the_model_alone(home):
    first = put(home / OWN / "a.gguf", b"12345")
    second = put(home / OWN / "b.gguf")
    own = put(home / OWN / "mmproj-a.gguf", b"123")
    models = all_models()
    model = find_named("a", models)
    assert model is not None
    files = files_to_remove(model, models)
    assert set(files) == {first, own}
    assert remove(files) == 8
    assert second.exists()
    assert not own.exists()


def test_removing_from_the_hub_cache_takes_the_blob_too(home):
    hub = home / ".cache/huggingface/hub/models--org--repo"
    blob = put(hub / "blobs" / "abc", b"1234567")
    link = hub / "snapshots" / "x" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    model = find_named("org/repo", all_models())
    assert model is not None
    assert remove(files_to_remove(model, [])) == 7
    assert not blob.exists()
    assert not link.is_symlink()


def test_ollamas_models_are_ollamas_to_delete(home):
    put_ollama(home, "registry.ollama.ai/library/qwen3/4b", "a" * 64)
    model = find_named("qwen3", all_models())
    assert model is not None
    with pytest.raises(UnsupportedError, match="ollama rm qwen3:4b"):
        files_to_remove(model, [])
