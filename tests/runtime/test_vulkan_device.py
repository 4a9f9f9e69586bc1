"""The class `vulkan`: tiny decoders give the CPU's words, what it lacks is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cpu_device import same_words
from support.tiny_models import ARCHS, tiny_model

from kinetic.api import Model, SamplingParams
from kinetic.codegen.gpu_pipeline import compile_for_vulkan
from kinetic.codegen.pipeline import compile_graph
from kinetic.codegen.targets.llvm_x86 import cpu_target
from kinetic.errors import UnsupportedError
from kinetic.families import build
from kinetic.ir.gguf import GGUFFile
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.vulkan import VulkanDevice
from kinetic.runtime.engine import Engine, Work

RUNS = (
    *("llama", "qwen2", "qwen3", "gemma3", "granite", "ernie4_5", "olmo2", "exaone4"),
    *("hunyuan-dense", "smollm3", "phi3", "glm4", "qwen3vl", "mistral3"),
)
"""Families that the class runs."""
FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "F32", "F16", "BF16")
N_CTX = 1100
SIZE = {"n_vocab": 320}


def needs_vulkan() -> None:
    vk = pytest.importorskip("vulkan", reason="the package vulkan is not installed")
    try:
        made = vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(
                pApplicationInfo=vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
            ),
            None,
        )
        found = vk.vkEnumeratePhysicalDevices(made)
        vk.vkDestroyInstance(made, None)
    except Exception as error:
        pytest.skip(f"no Vulkan driver: {error!r}")
    if not found:
        pytest.skip("the Vulkan driver has no device")


def logits_of(device: CpuDevice | VulkanDevice, lengths: tuple[int, ...]) -> list[np.ndarray]:
    """A prompt in pieces, then tokens one by one: all logits of each step."""
    engine = Engine(device, N_CTX, Engine.pages_for(N_CTX))
    sequence, found = engine.new_sequence(), []
    rng = np.random.default_rng(7)
    for count in lengths:
        tokens = rng.integers(0, SIZE["n_vocab"], count).tolist()
        found += [x.copy() for x in engine.step([Work(sequence, tokens, min(count, 4))])]
    return found


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline cache for all tests: lavapipe takes up to seconds for a kernel it has not seen."""
    return tmp_path_factory.mktemp("pipelines")


def compare(path: Path, lengths: tuple[int, ...], **options: object) -> None:
    with GGUFFile.open(path) as file:
        graph = build(file)
        pages = Engine.pages_for(N_CTX)
        cpu = CpuDevice(
            compile_graph(graph, cpu_target()), file, threads=2, n_ctx=N_CTX, n_pages=pages
        )
        try:
            expected = logits_of(cpu, lengths)
        finally:
            cpu.close()
        gpu = VulkanDevice(
            compile_for_vulkan(graph),
            file,
            n_ctx=N_CTX,
            n_pages=pages,
            **options,  # type: ignore[arg-type]
        )
        try:
            got = logits_of(gpu, lengths)
        finally:
            gpu.close()
    assert all(same_words(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("arch", RUNS)
def test_logits_are_the_cpus(arch: str, tmp_path: Path, kept: Path) -> None:
    needs_vulkan()
    compare(tiny_model(arch, tmp_path / "m.gguf"), (33, 1, 5, 1), cache=kept)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_that_runs(name: str, tmp_path: Path, kept: Path) -> None:
    needs_vulkan()
    compare(tiny_model("qwen3", tmp_path / "m.gguf", formats=name), (9, 1, 2), cache=kept)


def test_long_contexts_meet_segments_and_windows(tmp_path: Path) -> None:
    needs_vulkan()
    compare(tiny_model("gemma3", tmp_path / "m.gguf"), (64,) * 9 + (1, 3))


def test_staged_memory_and_a_kept_pipeline_cache(tmp_path: Path) -> None:
    needs_vulkan()
    path, cache = tiny_model("llama", tmp_path / "m.gguf"), tmp_path / "pipelines"
    for _ in range(2):
        compare(path, (5, 1), staged=True, cache=cache)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("staged", [False, True])
def test_pages_are_read_written_and_copied(staged: bool, tmp_path: Path) -> None:
    needs_vulkan()
    with GGUFFile.open(tiny_model("qwen3", tmp_path / "m.gguf")) as file:
        gpu = VulkanDevice(
            compile_for_vulkan(build(file)), file, n_ctx=128, n_pages=3, staged=staged
        )
        try:
            content = np.random.default_rng(1).integers(
                0, 256, len(gpu.read_page(0)), dtype=np.uint8
            )
            gpu.write_page(1, content)
            gpu.copy_page(1, 2)
            assert (gpu.read_page(2) == content).all()
        finally:
            gpu.close()


@pytest.mark.parametrize("arch", [a for a in ARCHS if a not in RUNS])
def test_what_is_missing_is_named(arch: str, tmp_path: Path) -> None:
    with (
        GGUFFile.open(tiny_model(arch, tmp_path / "m.gguf")) as file,
        pytest.raises(UnsupportedError, match=f"no kernel for .* this {arch} model"),
    ):
        compile_for_vulkan(build(file))


def test_a_format_without_a_kernel_is_named(tmp_path: Path) -> None:
    with (
        GGUFFile.open(tiny_model("llama", tmp_path / "m.gguf", formats="IQ4_XS")) as file,
        pytest.raises(UnsupportedError, match="IQ4_XS"),
    ):
        compile_for_vulkan(build(file))


def test_the_model_loads_on_vulkan_by_name_and_answers_as_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    needs_vulkan()
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(kept))
    path, answers, classes = tiny_model("llama", tmp_path / "m.gguf"), [], []
    for device in ("auto", "vulkan", "vulkan0"):
        model = Model.load(path, device=device, ctx_size=256)
        try:
            pieces = model.generate([1, 5, 9], SamplingParams(temperature=0), max_tokens=12)
            answers.append([p.token_id for p in pieces])
            classes.append(model.device_class)
        finally:
            model.close()
    assert answers[0] == answers[1] == answers[2]
    assert classes[0].startswith("cpu-")
    assert classes[1:] == ["vulkan"] * 2


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    needs_vulkan()
    with pytest.raises(UnsupportedError, match="no device vulkan77"):
        Model.load(tiny_model("llama", tmp_path / "m.gguf"), device="vulkan77", ctx_size=256)


def test_sequences_that_share_steps_get_the_words_they_get_alone(
    tmp_path: Path, kept: Path
) -> None:
    needs_vulkan()
    with GGUFFile.open(tiny_model("qwen3", tmp_path / "m.gguf")) as file:
        pages = Engine.pages_for(256, 2)
        gpu = VulkanDevice(
            compile_for_vulkan(build(file)), file, n_ctx=256, n_pages=pages, cache=kept
        )
        try:
            engine = Engine(gpu, 256, pages)
            prompts = [list(range(3, 30)), list(range(90, 70, -1))]
            alone = []
            for prompt in prompts:
                sequence = engine.new_sequence()
                alone.append(engine.step([Work(sequence, prompt, 1)])[0].copy())
                sequence.close()
            work = [Work(engine.new_sequence(), prompt, 1) for prompt in prompts]
            together = [x.copy() for x in engine.step(work)]
        finally:
            gpu.close()
    assert all(same_words(a, b) for a, b in zip(together, alone, strict=True))
