"""NVIDIA GPUs through the driver's own library, which needs nothing installed beside it.

*Source*: the CUDA driver API.
"""

from __future__ import annotations

import ctypes
import os

from kinetic.machine.gpu import Gpu, Probe

API = "CUDA"
_MAJOR, _MINOR, _CLOCK_KHZ, _BUS_BITS = 75, 76, 36, 37  # device attributes
OLDEST = (7, 5)
"""Turing: the oldest compute capability that kernels are made for."""


class _Refused(Exception):
    """A call of the driver failed; holds its reason."""


def probe() -> Probe:
    """All NVIDIA GPUs, or why there are none."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return Probe(API, reason="no NVIDIA driver is installed")
    try:
        return Probe(API, gpus=tuple(_gpus(driver)))
    except _Refused as refused:
        return Probe(API, reason=str(refused))
    except AttributeError:
        return Probe(API, reason="the NVIDIA driver is too old; install a current one")


def _gpus(driver: ctypes.CDLL) -> list[Gpu]:
    _call(driver, "cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if count.value < 1:
        raise _Refused("the NVIDIA driver reports no GPU")
    return [_gpu(driver, i, version.value) for i in range(count.value)]


def _gpu(driver: ctypes.CDLL, index: int, version: int) -> Gpu:
    device, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    _call(driver, "cuDeviceGet", ctypes.byref(device), index)
    _call(driver, "cuDeviceGetName", name, len(name), device)
    _call(driver, "cuDeviceTotalMem_v2", ctypes.byref(total), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    major, minor = attribute(_MAJOR), attribute(_MINOR)
    # Two transfers a clock.
    bandwidth = 2 * attribute(_CLOCK_KHZ) * 1000 * attribute(_BUS_BITS) // 8
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}, compute {major}.{minor}"
    if (major, minor) < OLDEST:
        cuda += f" (too old: kernels need {OLDEST[0]}.{OLDEST[1]})"
    return Gpu(
        name=name.value.decode("utf-8", "replace"),
        api=API,
        total=total.value,
        driver=cuda,
        free=_free(driver, device),
        bandwidth=bandwidth,
    )


def _free(driver: ctypes.CDLL, device: ctypes.c_int) -> int:
    """Free memory, which only a context can tell. 0 when the GPU gives none."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    try:
        _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    except _Refused:
        return 0
    try:
        _call(driver, "cuCtxSetCurrent", context)
        _call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value
    except _Refused:
        return 0
    finally:
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    status = getattr(driver, name)(*arguments)
    if status == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    told = text.value.decode("utf-8", "replace") if text.value else f"error {status}"
    raise _Refused(f"the NVIDIA driver says: {told}")
