"""What the computer is asked, with drivers that answer well, badly or not at all."""

from __future__ import annotations

import builtins
import ctypes
import sys
from types import SimpleNamespace

import pytest

from kinetic.cli.here import Here, budget
from kinetic.machine import cuda, vulkan
from kinetic.machine.cpu import FEATURES, cpu_features, cpu_name, cpu_threads, system_name
from kinetic.machine.gpu import Gpu, Probe, probe_all
from kinetic.machine.memory import Memory, memory, read_speed

ATTRIBUTES = {75: 8, 76: 6, 36: 7_001_000, 37: 192}


class Driver:
    """A CUDA driver in Python: `fails` names the call that returns an error."""

    def __init__(self, fails: str = "", count: int = 1, compute: tuple[int, int] = (8, 6)):
        self.fails, self.count = fails, count
        self.attributes = {**ATTRIBUTES, 75: compute[0], 76: compute[1]}
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            if name == self.fails:
                return 100
            self.answer(name, arguments)
            return 0

        return call

    def answer(self, name: str, arguments) -> None:
        def put(index: int, value: object) -> None:
            arguments[index]._obj.value = value

        if name == "cuDriverGetVersion":
            put(0, 13030)
        elif name == "cuDeviceGetCount":
            put(0, self.count)
        elif name == "cuDeviceGetName":
            arguments[0].value = b"NVIDIA Test GPU"
        elif name == "cuDeviceTotalMem_v2":
            put(0, 6 << 30)
        elif name == "cuDeviceGetAttribute":
            put(0, self.attributes[arguments[1]])
        elif name == "cuMemGetInfo_v2":
            put(0, 5 << 30)
        elif name == "cuGetErrorString":
            put(1, b"no CUDA-capable device is detected")


def probe_with(monkeypatch, driver) -> Probe:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    return cuda.probe()


def test_a_good_gpu_is_described(monkeypatch):
    driver = Driver()
    (gpu,) = probe_with(monkeypatch, driver).gpus
    assert gpu == Gpu(
        "NVIDIA Test GPU",
        "CUDA",
        6 << 30,
        "CUDA 13.3, compute 8.6",
        free=5 << 30,
        bandwidth=2 * 7_001_000_000 * 24,
    )
    assert "cuDevicePrimaryCtxRelease_v2" in driver.calls  # the context is given back


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver(fails="cuInit"), "no CUDA-capable device"),
        (Driver(count=0), "reports no GPU"),
        (SimpleNamespace(cuInit=lambda _: 0), "too old"),
    ],
)
def test_a_driver_that_fails_is_a_reason(monkeypatch, driver, reason):
    probe = probe_with(monkeypatch, driver)
    assert probe.gpus == ()
    assert reason in probe.reason


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRetain", "cuMemGetInfo_v2"])
def test_free_memory_that_nobody_tells_is_none(monkeypatch, call):
    (gpu,) = probe_with(monkeypatch, Driver(fails=call)).gpus
    assert gpu.free == 0


def test_an_old_gpu_says_so(monkeypatch):
    (gpu,) = probe_with(monkeypatch, Driver(compute=(6, 1))).gpus
    assert "too old: kernels need 7.5" in gpu.driver


def test_no_driver_is_a_reason(monkeypatch):
    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "no NVIDIA driver" in cuda.probe().reason


@pytest.mark.parametrize(
    ("error", "reason"), [(ImportError, "pip install"), (OSError, "no Vulkan driver")]
)
def test_vulkan_that_is_not_there_is_a_reason(monkeypatch, error, reason):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "vulkan":
            raise error
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "vulkan", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert reason in vulkan.probe().reason


def test_every_interface_has_gpus_or_a_reason():
    for probe in probe_all():
        assert probe.gpus or probe.reason


def test_memory_is_what_the_control_group_allows(tmp_path):
    whole = memory(tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert memory(tmp_path) == Memory(1_000_000, 600_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path).total == whole.total


@pytest.mark.parametrize("threads", [1, 3])
def test_reading_has_a_speed(threads):
    assert 1e7 < read_speed(threads, nbytes=1 << 22, rounds=2) < 1e13


def test_the_processor_has_a_name_and_features():
    assert cpu_name()
    assert system_name()
    assert cpu_threads() >= 1
    assert set(FEATURES) < set(cpu_features())


def test_a_download_may_take_half_of_the_free_memory():
    here = Here(Memory(16 << 30, 8 << 30), 4, 30e9, ())
    assert budget(here).nbytes == 4 << 30
    # A GPU that this version cannot use counts for nothing.
    gpu = Gpu("x", "none", 24 << 30, "", free=20 << 30)
    here = Here(Memory(16 << 30, 8 << 30), 4, 30e9, (Probe("none", (gpu,)),))
    assert budget(here).nbytes == 4 << 30
