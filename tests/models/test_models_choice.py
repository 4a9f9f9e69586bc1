"""Which file of a repository is taken, and what is said about it."""

from __future__ import annotations

import pytest

from kinetic.errors import ModelFileError
from kinetic.models.choice import Budget, RemoteFile, choose, models_in

GB = 1 << 30
SIZES = {"Q2_K": 1, "Q4_K_M": 2, "Q5_K_M": 3, "Q6_K": 4, "Q8_0": 5, "F16": 10}
FILES = [RemoteFile(f"m-{q}.gguf", n * GB) for q, n in SIZES.items()]
FILES += [RemoteFile("README.md", 10), RemoteFile("mmproj-F32.gguf", 9)]
FILES += [RemoteFile("mmproj-F16.gguf", 5)]


def pick(files=FILES, *, room=100 * GB, quant=None, file=None, projector=True):
    budget = Budget(room, "half the free memory")
    return choose("o/r", files, quant=quant, file=file, projector=projector, budget=budget)


@pytest.mark.parametrize(
    ("room", "quant", "says"),
    [
        (100, "Q8_0", "largest of"),
        (5, "Q6_K", "fits 5.0 GiB of half the free memory"),
        (3, "Q4_K_M", "largest of"),
        (1, "Q4_K_M", "larger than 1.0 GiB"),
    ],
)
def test_the_largest_preferred_one_that_fits(room, quant, says):
    chosen = pick(room=room * GB)
    assert chosen.model.quant == quant
    assert says in chosen.why


def test_a_named_quantization_or_file_is_taken_whatever_its_size():
    assert pick(quant="f16", room=1).model.quant == "F16"
    assert pick(file="m-Q2_K.gguf", room=1).model.quant == "Q2_K"
    with pytest.raises(ModelFileError, match="o/r has no Q3_K; it has Q2_K, Q4_K_M"):
        pick(quant="Q3_K")
    with pytest.raises(ModelFileError, match=r"no file x\.gguf"):
        pick(file="x.gguf")


def test_the_projector_comes_along_unless_it_is_not_wanted():
    chosen = pick()
    assert chosen.projector is not None
    assert chosen.projector.path == "mmproj-F16.gguf"
    assert chosen.files[-1] is chosen.projector
    assert pick(projector=False).projector is None


def test_split_models_are_one_choice_with_all_parts():
    names = ["Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf"]
    chosen = pick([RemoteFile(name, GB) for name in names])
    assert [f.path for f in chosen.model.files] == sorted(names)
    assert chosen.model.size == 2 * GB
    with pytest.raises(ModelFileError, match=r"lacks m-Q4_K_M-00001-of-00002\.gguf"):
        pick([RemoteFile(names[0], GB)])


def test_a_repository_without_preferred_ones():
    chosen = pick([RemoteFile("m-IQ2_XS.gguf", GB), RemoteFile("m-IQ4_XS.gguf", 2 * GB)])
    assert chosen.model.quant == "IQ4_XS"
    assert "it has none of Q4_K_M" in chosen.why


def test_a_repository_without_gguf_files_points_at_can_run():
    with pytest.raises(ModelFileError, match="kinetic can-run o/r"):
        pick([RemoteFile("model.safetensors", GB)])


def test_two_files_of_one_quantization_must_be_told_apart():
    files = [RemoteFile("a-Q8_0.gguf", 1), RemoteFile("b-Q8_0.gguf", 2)]
    with pytest.raises(ModelFileError, match=r"--file: a-Q8_0\.gguf, b-Q8_0\.gguf"):
        pick(files, quant="Q8_0")
    assert [m.stem for m in models_in(files)] == ["a-Q8_0", "b-Q8_0"]
