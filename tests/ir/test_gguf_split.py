"""Split models: any part opens all, and what does not belong together is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.gguf_writer import write_gguf

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.gguf_parts import part_name
from kinetic.ir.gguf_split import SplitGGUF, open_model

F32 = 0


def tensor(value: float) -> tuple[tuple[int, ...], int, bytes]:
    return (2, 8), F32, np.full(16, value, np.float32).tobytes()


def write_part(
    folder: Path, no: int, count: int, tensors: dict[str, float], **keys: object
) -> Path:
    metadata: dict[str, object] = {
        "split.no": np.uint16(keys.get("says", no - 1)),
        "split.count": np.uint16(count),
        "split.tensors.count": np.int32(keys.get("total", 3)),
    }
    if no == 1:
        metadata = {"general.architecture": "llama", **metadata}
    path = folder / f"big-{no:05}-of-{count:05}.gguf"
    return write_gguf(path, metadata, {n: tensor(v) for n, v in tensors.items()})


@pytest.fixture
def parts(tmp_path) -> list[Path]:
    return [
        write_part(tmp_path, 1, 3, {"a": 1.0}),
        write_part(tmp_path, 2, 3, {"b": 2.0}),
        write_part(tmp_path, 3, 3, {"c": 3.0}),
    ]


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("in_memory", [False, True])
def test_any_part_opens_the_whole_model(parts, index, in_memory):
    with open_model(parts[index], in_memory=in_memory) as model:
        assert isinstance(model, SplitGGUF)
        assert model.architecture == "llama"
        assert list(model.tensors) == ["a", "b", "c"]
        for name, value in {"a": 1.0, "b": 2.0, "c": 3.0}.items():
            assert (model.data(name).view(np.float32) == value).all()
        assert model.size == sum(p.stat().st_size for p in parts)
        for name in model.tensors:
            model.advise_dontneed(name)
            model.release(name)


def test_a_whole_file_is_opened_as_before(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {"a": tensor(1.0)})
    with open_model(path) as model:
        assert type(model) is GGUFFile


def test_a_single_part_alone_says_that_it_is_one(parts):
    with pytest.raises(UnsupportedError, match="part 2 of 3 of a split model"):
        GGUFFile.open(parts[1])


def test_the_identity_is_that_of_all_parts(parts):
    with open_model(parts[0]) as model:
        before = model.identity()
    write_part(parts[0].parent, 3, 3, {"c": 4.0})
    with open_model(parts[0]) as model:
        assert model.identity() != before


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"part 3 of 3 .* big-00002-of-00003\.gguf is missing"):
        open_model(parts[2])


def test_a_part_under_another_name_cannot_find_the_others(parts):
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(ModelFileError, match="not named like one"):
        open_model(renamed)


def test_parts_in_the_wrong_order_are_refused(parts):
    write_part(parts[0].parent, 2, 3, {"b": 2.0}, says=2)
    with pytest.raises(ModelFileError, match="says that it is part 3 of 3, but is named part 2"):
        open_model(parts[0])


def test_a_tensor_in_two_parts_is_refused(parts):
    write_part(parts[0].parent, 3, 3, {"a": 3.0})
    with pytest.raises(ModelFileError, match="tensor a is in an earlier part"):
        open_model(parts[0])


def test_a_number_of_tensors_that_does_not_add_up_is_refused(parts):
    write_part(parts[0].parent, 1, 3, {"a": 1.0}, total=4)
    with pytest.raises(ModelFileError, match="has 4 tensors and its 3 parts hold 3"):
        open_model(parts[0])


def test_a_damaged_part_is_named(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-8])
    with pytest.raises(ModelFileError, match=r"big-00003-of-00003\.gguf.*truncated"):
        open_model(parts[0])


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-1-of-2.gguf"]
)
def test_names_that_are_no_part(name):
    assert part_name(name) is None
