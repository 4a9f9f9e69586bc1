"""What encoder families build, and what they say to a file that they cannot run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import damaged
from support.gguf_writer import write_gguf
from support.golden import check_golden
from support.tiny_encoders import CTX, ENCODERS, RANK, D, keys, shapes, tiny_encoder
from support.tiny_models import tiny_model

from kinetic.errors import ModelFileError, UnsupportedError
from kinetic.families import build, is_embedding
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph
from kinetic.ir.text import parse
from kinetic.ir.verify import verify

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "bert": ("bert", {"pooling": RANK}),
    "nomic-bert": ("nomic-bert", {}),
    "gemma-embedding": ("gemma-embedding", {"dense": True}),
}


def graph_of(path: Path) -> Graph:
    with GGUFFile.open(path) as file:
        assert is_embedding(file)
        return build(file)


@pytest.mark.parametrize("label", VARIANTS)
def test_the_graph_of_each_family(label: str, tmp_path: Path, golden_dir: Path) -> None:
    arch, options = VARIANTS[label]
    graph = graph_of(tiny_encoder(arch, tmp_path / "m.gguf", **options))  # type: ignore[arg-type]
    verify(graph)
    assert parse(str(graph)).same_as(graph)
    check_golden(golden_dir / "ir" / f"{label}.ir", str(graph))


def test_a_file_that_does_not_say_is_pooled_by_the_mean(tmp_path: Path) -> None:
    path = tiny_encoder("bert", tmp_path / "m.gguf", metadata={"bert.pooling_type": None})
    graph = graph_of(path)
    assert graph.meta.pooling == "mean" and list(graph.outputs) == ["embedding"]


@pytest.mark.parametrize(
    ("arch", "metadata", "error", "message"),
    [
        ("bert", {"bert.attention.causal": True}, UnsupportedError, "attention.causal is set"),
        ("bert", {"bert.pooling_type": 0}, UnsupportedError, "a vector for each token"),
        ("bert", {"bert.pooling_type": 7}, ModelFileError, "is 7, expected a number from 0 to 4"),
        ("bert", {"bert.pooling_type": RANK}, ModelFileError, "cls.output.weight is missing"),
        ("bert", {"bert.rope.freq_base": 1e4}, UnsupportedError, "rope.freq_base is set"),
        ("bert", {"bert.context_length": 64}, ModelFileError, r"position_embd.* \[128, 64\], but"),
        ("bert", {"bert.attention.max_alibi_bias": 8.0}, UnsupportedError, "max_alibi_bias is not"),
        (
            "nomic-bert",
            {"nomic-bert.moe_every_n_layers": 2},
            UnsupportedError,
            "moe_every_n_layers",
        ),
        (
            "gemma-embedding",
            {"gemma-embedding.attention.sliding_window": 1},
            ModelFileError,
            "sliding_window is 1",
        ),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(
    arch: str, metadata: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as found:
        graph_of(tiny_encoder(arch, tmp_path / "m.gguf", metadata=metadata))
    assert "\n" not in str(found.value) and "m.gguf" in str(found.value)


def test_a_decoder_that_scales_its_outputs_has_no_embedding(tmp_path: Path) -> None:
    """The scale belongs to logits; silently taking it along would be another vector."""
    size = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288, "formats": "F32"}
    path = tiny_model("granite", tmp_path / "m.gguf", metadata={"granite.pooling_type": 3}, **size)
    with pytest.raises(UnsupportedError, match=r"granite\.pooling_type is set: embeddings of a"):
        graph_of(path)


def test_an_untied_head_is_not_needed_for_embeddings(tmp_path: Path) -> None:
    size = {"n_embd": 64, "n_ff": 96, "head_dim": 16, "n_vocab": 288, "formats": "F32"}
    path = tiny_model("llama", tmp_path / "m.gguf", metadata={"llama.pooling_type": 3}, **size)
    graph = graph_of(path)
    assert graph.meta.pooling == "last"
    assert "output.weight" not in [w.name for w in graph.weights()]


numbers = (
    st.integers(-(2**40), 2**40)
    | st.integers(-2, 9)
    | st.sampled_from([0.0, 1e-45, 1.0, 3e38, float("nan"), float("inf"), D, CTX])
    | st.text(max_size=5)
    | st.booleans()
    | st.lists(st.integers(0, 9), min_size=1, max_size=3)
)


@settings(
    max_examples=150, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), arch=st.sampled_from(ENCODERS), pooling=st.sampled_from([1, RANK]))
def test_any_settings_build_or_fail_in_one_sentence(
    tmp_path: Path, data: st.DataObject, arch: str, pooling: int
) -> None:
    dense = arch == "gemma-embedding" and data.draw(st.booleans())
    found = keys(arch, pooling=pooling, dense=dense)
    own = [key for key in found if key.startswith(f"{arch}.")]
    for key in data.draw(st.lists(st.sampled_from(own), max_size=3)):
        found[key] = data.draw(numbers)
    wrong = data.draw(damaged(shapes(arch, pooling=pooling, dense=dense)))
    tensors = {name: (shape, 0, bytes(4 * int(np.prod(shape)))) for name, shape in wrong.items()}
    try:
        verify(graph_of(write_gguf(tmp_path / "m.gguf", found, tensors)))
    except (ModelFileError, UnsupportedError) as error:  # nothing else: it is the file's fault
        assert "\n" not in str(error)


def test_info_says_what_it_is(tmp_path: Path) -> None:
    from kinetic.cli.info import as_text, describe

    for pooling, words in ((1, "embedding model, mean pooling"), (RANK, "reranking model")):
        path = tiny_encoder("bert", tmp_path / "m.gguf", pooling=pooling)
        with GGUFFile.open(path) as file:
            text = as_text(describe(path, file))
        assert words in text and "runs           yes" in text
