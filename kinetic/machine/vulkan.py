"""GPUs through Vulkan, with the optional package `vulkan`.

*Source*: the Vulkan specification.
"""

from __future__ import annotations

from kinetic.machine.gpu import Gpu, Probe

API = "Vulkan"
_CPU_DEVICE, _DEVICE_LOCAL = 4, 1


def probe() -> Probe:
    """All devices that Vulkan reports, or why there are none."""
    try:
        import vulkan as vk
    except ImportError:
        return Probe(API, reason="not installed (pip install 'kinetic-engine[vulkan]')")
    except OSError:
        return Probe(API, reason="no Vulkan driver is installed")
    try:
        application = vk.VkApplicationInfo(pApplicationName="kinetic", apiVersion=1 << 22)
        instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=application), None)
    except (vk.VkError, vk.VkException, OSError) as error:
        return Probe(API, reason=f"no usable Vulkan driver ({type(error).__name__})")
    try:
        devices = vk.vkEnumeratePhysicalDevices(instance)
        gpus = tuple(_gpu(vk, device) for device in devices)
    except (vk.VkError, vk.VkException) as error:
        return Probe(API, reason=f"the driver failed ({type(error).__name__})")
    finally:
        vk.vkDestroyInstance(instance, None)
    return Probe(API, gpus=gpus, reason="" if gpus else "no device is reported")


def _gpu(vk, device) -> Gpu:  # type: ignore[no-untyped-def]
    properties = vk.vkGetPhysicalDeviceProperties(device)
    memory = vk.vkGetPhysicalDeviceMemoryProperties(device)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    version = properties.apiVersion
    told = f"Vulkan {version >> 22 & 127}.{version >> 12 & 1023}.{version & 4095}"
    return Gpu(
        name=str(properties.deviceName),
        api=API,
        total=sum(heap.size for heap in heaps if heap.flags & _DEVICE_LOCAL),
        driver=told,
        software=properties.deviceType == _CPU_DEVICE,
    )
