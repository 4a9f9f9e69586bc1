"""The Vulkan driver, as far as a device needs it: choice, memory, pipelines, submissions.

The package `vulkan` is an optional extra and only loaded here. Calls of a step go to its
cffi library directly, those of loading through its wrappers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import vulkan as vk
from vulkan._vulkan import ffi, lib

from kinetic.errors import InternalError, UnsupportedError
from kinetic.ir.gpu_program import Shader

API_VERSION = vk.VK_MAKE_VERSION(1, 3, 0)
FOREVER = 2**63
KINDS = {
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: "discrete",
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: "integrated",
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: "virtual",
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: "a driver that runs on the CPU",
}
"""Kinds of devices, best first."""
COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
TRANSFER = vk.VK_PIPELINE_STAGE_TRANSFER_BIT
HOST = vk.VK_PIPELINE_STAGE_HOST_BIT
SEEN_BY_HOST = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
STAGING_BYTES = 16 << 20


def _checked(result: int, what: str) -> None:
    """*Raises* `InternalError` where the driver reports a failure."""
    if result == vk.VK_ERROR_DEVICE_LOST:
        raise InternalError(
            f"the GPU was lost during {what}; start again, with --device cpu if it happens twice"
        )
    if result != vk.VK_SUCCESS:
        raise InternalError(f"the Vulkan driver answers {result} to {what}; use --device cpu")


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(f"{what}; use --device cpu")


class Buffer:
    """Memory of the device, and its bytes where the host sees them."""

    def __init__(self, handle: Any, memory: Any, nbytes: int, view: npt.NDArray[np.uint8] | None):
        self.handle, self.memory, self.nbytes, self.view = handle, memory, nbytes, view


class Driver:
    """One Vulkan device. `number` counts as the driver lists them; None takes the best.

    `staged` keeps all of the device's own memory out of the host's sight, as on most GPUs.

    *Raises* `UnsupportedError` where there is no device, or one that lacks what the
    arithmetic needs.
    """

    def __init__(self, number: int | None = None, *, staged: bool = False, cache: Path | None):
        info = vk.VkApplicationInfo(pApplicationName="kinetic", apiVersion=API_VERSION)
        try:
            self._instance = vk.vkCreateInstance(
                vk.VkInstanceCreateInfo(pApplicationInfo=info), None
            )
            found = list(vk.vkEnumeratePhysicalDevices(self._instance))
        except Exception as error:  # the package's own kinds, and none for a missing loader
            raise _refused(f"no Vulkan driver could be opened ({error})") from error
        self._physical = _chosen(found, number)
        properties = vk.vkGetPhysicalDeviceProperties(self._physical)
        self.name: str = properties.deviceName
        self.kind = KINDS.get(properties.deviceType, "other")
        if properties.apiVersion < API_VERSION:
            raise _refused(f"{self.name} offers less than Vulkan 1.3")
        self._family = self._queue_family()
        self._staged = staged
        self._device = self._open()
        self._queue = vk.vkGetDeviceQueue(self._device, self._family, 0)
        self._types = vk.vkGetPhysicalDeviceMemoryProperties(self._physical)
        flags = vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
        pool = vk.VkCommandPoolCreateInfo(queueFamilyIndex=self._family, flags=flags)
        self._pool = vk.vkCreateCommandPool(self._device, pool, None)
        self._fence = vk.vkCreateFence(self._device, vk.VkFenceCreateInfo(), None)
        self._fences = ffi.new("VkFence[1]", [self._fence])
        self._buffers: list[Buffer] = []
        self._undo: list[tuple[Any, Any]] = []
        self._staging: Buffer | None = None
        uuid = bytes(properties.pipelineCacheUUID).hex()
        self._cache_file = None if cache is None else cache / f"{uuid}.pipelines"
        self._cache = self._open_cache()

    def _queue_family(self) -> int:
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self._physical)
        for index, family in enumerate(families):
            if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
                return index
        raise _refused(f"{self.name} has no compute queue")

    def _open(self) -> Any:
        """The device with the features that shaders use, each checked."""
        controls = ffi.new(
            "VkPhysicalDeviceVulkan12Properties*",
            {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES},
        )
        both = ffi.new(
            "VkPhysicalDeviceProperties2*",
            {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, "pNext": controls},
        )
        lib.vkGetPhysicalDeviceProperties2(self._physical, both)
        for field in ("shaderRoundingModeRTEFloat32", "shaderSignedZeroInfNanPreserveFloat32"):
            if not getattr(controls, field):
                raise _refused(f"{self.name} does not promise exact arithmetic ({field})")
        chain = ffi.NULL
        structs = {}
        for name in ("VULKAN_1_3", "VULKAN_1_1"):
            kind = getattr(vk, f"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_{name}_FEATURES")
            struct = f"VkPhysicalDevice{name.title().replace('_', '')}Features*"
            chain = structs[name] = ffi.new(struct, {"sType": kind, "pNext": chain})
        features = ffi.new(
            "VkPhysicalDeviceFeatures2*",
            {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, "pNext": chain},
        )
        lib.vkGetPhysicalDeviceFeatures2(self._physical, features)
        for name, field in (
            ("VULKAN_1_3", "shaderIntegerDotProduct"),
            ("VULKAN_1_1", "storageBuffer16BitAccess"),
        ):
            if not getattr(structs[name], field):
                raise _refused(f"{self.name} lacks {field}")
        features.features.robustBufferAccess = 0
        priority = ffi.new("float[1]", [1.0])
        queue = ffi.new(
            "VkDeviceQueueCreateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                "queueFamilyIndex": self._family,
                "queueCount": 1,
                "pQueuePriorities": priority,
            },
        )
        create = ffi.new(
            "VkDeviceCreateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                "pNext": features,
                "queueCreateInfoCount": 1,
                "pQueueCreateInfos": queue,
            },
        )
        out = ffi.new("VkDevice*")
        _checked(lib.vkCreateDevice(self._physical, create, ffi.NULL, out), "opening the device")
        return out[0]

    # -- memory ------------------------------------------------------------------------
    def buffer(self, nbytes: int, *, host: bool = False) -> Buffer:
        """Memory of the device, or of the host for the device to read and write."""
        size = max(256, nbytes)
        usage = (
            vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        handle = vk.vkCreateBuffer(
            self._device, vk.VkBufferCreateInfo(size=size, usage=usage, sharingMode=0), None
        )
        needs = vk.vkGetBufferMemoryRequirements(self._device, handle)
        wanted = SEEN_BY_HOST if host else vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        index, flags = self._memory_type(needs.memoryTypeBits, wanted)
        allocate = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=index)
        try:
            memory = vk.vkAllocateMemory(self._device, allocate, None)
        except vk.VkErrorOutOfDeviceMemory as error:
            raise _refused(f"{self.name} has no {size >> 20} MiB left for this model") from error
        vk.vkBindBufferMemory(self._device, handle, memory, 0)
        view = None
        if host or (flags & SEEN_BY_HOST == SEEN_BY_HOST and not self._staged):
            mapped = vk.vkMapMemory(self._device, memory, 0, size, 0)
            view = np.frombuffer(mapped, np.uint8)
        made = Buffer(handle, memory, size, view)
        self._buffers.append(made)
        return made

    def _memory_type(self, allowed: int, wanted: int) -> tuple[int, int]:
        for index in range(self._types.memoryTypeCount):
            flags = self._types.memoryTypes[index].propertyFlags
            if allowed >> index & 1 and flags & wanted == wanted:
                return index, flags
        raise _refused(f"{self.name} has no memory of the kind that is needed")

    def write(self, buffer: Buffer, offset: int, content: npt.NDArray[np.uint8]) -> None:
        """Put bytes into a buffer, through memory that both sides see if need be."""
        if buffer.view is not None:
            buffer.view[offset : offset + len(content)] = content
            return
        staging = self._stage()
        assert staging.view is not None
        for start in range(0, len(content), STAGING_BYTES):
            part = content[start : start + STAGING_BYTES]
            staging.view[: len(part)] = part
            self.copy(staging, 0, buffer, offset + start, len(part))

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A copy of bytes of a buffer."""
        if buffer.view is not None:
            return buffer.view[offset : offset + nbytes].copy()
        staging, parts = self._stage(), []
        assert staging.view is not None
        for start in range(0, nbytes, STAGING_BYTES):
            count = min(STAGING_BYTES, nbytes - start)
            self.copy(buffer, offset + start, staging, 0, count)
            parts.append(staging.view[:count].copy())
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def copy(self, source: Buffer, at: int, target: Buffer, to: int, nbytes: int) -> None:
        """Copy bytes between buffers, and wait."""
        commands = self.begin()
        region = ffi.new("VkBufferCopy*", {"srcOffset": at, "dstOffset": to, "size": nbytes})
        lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)
        self.barrier(commands, TRANSFER, HOST | TRANSFER)
        self.end(commands)
        self.run(self.submission(commands))
        vk.vkFreeCommandBuffers(self._device, self._pool, 1, [commands])

    def _stage(self) -> Buffer:
        if self._staging is None:
            self._staging = self.buffer(STAGING_BYTES, host=True)
        return self._staging

    # -- pipelines -----------------------------------------------------------------------
    def _open_cache(self) -> Any:
        """What the driver compiled in earlier runs; it checks the header itself."""
        known = b""
        if self._cache_file is not None and self._cache_file.exists():
            known = self._cache_file.read_bytes()
        data = ffi.from_buffer(known) if known else ffi.NULL
        create = ffi.new(
            "VkPipelineCacheCreateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                "initialDataSize": len(known),
                "pInitialData": data,
            },
        )
        out = ffi.new("VkPipelineCache*")
        result = lib.vkCreatePipelineCache(self._device, create, ffi.NULL, out)
        _checked(result, "opening the pipeline cache")
        return out[0]

    def keep_cache(self) -> None:
        """Write what the driver compiled to the cache folder."""
        if self._cache_file is None:
            return
        size = ffi.new("size_t*")
        lib.vkGetPipelineCacheData(self._device, self._cache, size, ffi.NULL)
        data = ffi.new("char[]", size[0])
        if lib.vkGetPipelineCacheData(self._device, self._cache, size, data):
            return
        self._cache_file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._cache_file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(bytes(ffi.buffer(data, size[0])))
        fresh.replace(self._cache_file)

    def pipeline(self, shader: Shader) -> tuple[Any, Any, Any]:
        """(pipeline, its layout, layout of its buffers)."""
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        bindings = [
            vk.VkDescriptorSetLayoutBinding(
                binding=index,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=stage,
            )
            for index in range(shader.buffers)
        ]
        buffers = vk.vkCreateDescriptorSetLayout(
            self._device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None
        )
        ranges = None
        if shader.params:
            ranges = [vk.VkPushConstantRange(stageFlags=stage, offset=0, size=4 * shader.params)]
        layout = vk.vkCreatePipelineLayout(
            self._device,
            vk.VkPipelineLayoutCreateInfo(pSetLayouts=[buffers], pPushConstantRanges=ranges),
            None,
        )
        code = vk.VkShaderModuleCreateInfo(codeSize=len(shader.code), pCode=shader.code)
        module = vk.vkCreateShaderModule(self._device, code, None)
        entry = vk.VkPipelineShaderStageCreateInfo(stage=stage, module=module, pName="main")
        info = vk.VkComputePipelineCreateInfo(stage=entry, layout=layout)
        made = vk.vkCreateComputePipelines(self._device, self._cache, 1, [info], None)[0]
        vk.vkDestroyShaderModule(self._device, module, None)
        self._undo += [
            (vk.vkDestroyPipeline, made),
            (vk.vkDestroyPipelineLayout, layout),
            (vk.vkDestroyDescriptorSetLayout, buffers),
        ]
        return made, layout, buffers

    def descriptors(
        self, wanted: Sequence[tuple[Any, Sequence[tuple[Buffer, int, int]]]]
    ) -> list[Any]:
        """A set for each (layout, [(buffer, offset, bytes), ...])."""
        kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        total = sum(len(ranges) for _, ranges in wanted)
        size = vk.VkDescriptorPoolSize(type=kind, descriptorCount=max(1, total))
        info = vk.VkDescriptorPoolCreateInfo(maxSets=max(1, len(wanted)), pPoolSizes=[size])
        pool = vk.vkCreateDescriptorPool(self._device, info, None)
        self._undo.append((vk.vkDestroyDescriptorPool, pool))
        made = []
        for layout, ranges in wanted:
            allocate = vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[layout])
            one = vk.vkAllocateDescriptorSets(self._device, allocate)[0]
            writes = [
                vk.VkWriteDescriptorSet(
                    dstSet=one,
                    dstBinding=index,
                    dstArrayElement=0,
                    descriptorType=kind,
                    pBufferInfo=[
                        vk.VkDescriptorBufferInfo(buffer=b.handle, offset=offset, range=nbytes)
                    ],
                )
                for index, (b, offset, nbytes) in enumerate(ranges)
            ]
            vk.vkUpdateDescriptorSets(self._device, len(writes), writes, 0, None)
            made.append(ffi.new("VkDescriptorSet[1]", [one]))
        return made

    # -- commands ------------------------------------------------------------------------
    def begin(self) -> Any:
        """Commands to record."""
        allocate = vk.VkCommandBufferAllocateInfo(
            commandPool=self._pool,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        commands = vk.vkAllocateCommandBuffers(self._device, allocate)[0]
        vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
        return commands

    def barrier(self, commands: Any, before: int = COMPUTE, after: int = COMPUTE) -> None:
        """What comes next sees what came before."""
        memory = ffi.new(
            "VkMemoryBarrier*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                "srcAccessMask": vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT,
                "dstAccessMask": vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT,
            },
        )
        none = ffi.NULL
        lib.vkCmdPipelineBarrier(commands, before, after, 0, 1, memory, 0, none, 0, none)

    def dispatch(
        self,
        commands: Any,
        pipeline: tuple[Any, Any, Any],
        descriptors: Any,
        constants: bytes,
        grid: tuple[int, int, int],
    ) -> None:
        """Record one dispatch."""
        point, none = vk.VK_PIPELINE_BIND_POINT_COMPUTE, ffi.NULL
        code, layout, _ = pipeline
        lib.vkCmdBindPipeline(commands, point, code)
        lib.vkCmdBindDescriptorSets(commands, point, layout, 0, 1, descriptors, 0, none)
        if constants:
            data = ffi.from_buffer(constants)
            stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
            lib.vkCmdPushConstants(commands, layout, stage, 0, len(constants), data)
        lib.vkCmdDispatch(commands, *grid)

    def take_back(self, commands: Any, source: Buffer, at: int, to: Buffer, nbytes: int) -> None:
        """Record the copy of results to where the host sees them."""
        self.barrier(commands, COMPUTE, TRANSFER)
        region = ffi.new("VkBufferCopy*", {"srcOffset": at, "dstOffset": 0, "size": nbytes})
        lib.vkCmdCopyBuffer(commands, source.handle, to.handle, 1, region)
        self.barrier(commands, TRANSFER, HOST)

    def end(self, commands: Any) -> None:
        """Recording is over."""
        vk.vkEndCommandBuffer(commands)

    def submission(self, commands: Any) -> tuple[Any, Any]:
        """Recorded commands, ready to run any number of times."""
        held = ffi.new("VkCommandBuffer[1]", [commands])
        info = ffi.new(
            "VkSubmitInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_SUBMIT_INFO,
                "commandBufferCount": 1,
                "pCommandBuffers": held,
            },
        )
        return info, held

    def run(self, submission: tuple[Any, Any]) -> None:
        """Run recorded commands and wait for them."""
        _checked(lib.vkQueueSubmit(self._queue, 1, submission[0], self._fence), "a step")
        _checked(lib.vkWaitForFences(self._device, 1, self._fences, 1, FOREVER), "a step")
        _checked(lib.vkResetFences(self._device, 1, self._fences), "a step")

    def forget(self, submission: tuple[Any, Any]) -> None:
        """Give the memory of recorded commands back."""
        lib.vkFreeCommandBuffers(self._device, self._pool, 1, submission[1])

    def close(self) -> None:
        """Give everything back."""
        for destroy, thing in self._undo:
            destroy(self._device, thing, None)
        for buffer in self._buffers:
            buffer.view = None
            vk.vkDestroyBuffer(self._device, buffer.handle, None)
            vk.vkFreeMemory(self._device, buffer.memory, None)
        lib.vkDestroyPipelineCache(self._device, self._cache, ffi.NULL)
        vk.vkDestroyFence(self._device, self._fence, None)
        vk.vkDestroyCommandPool(self._device, self._pool, None)
        vk.vkDestroyDevice(self._device, None)
        vk.vkDestroyInstance(self._instance, None)


def _chosen(found: Sequence[Any], number: int | None) -> Any:
    """The device of a number, or the first of the best kind."""
    if not found:
        raise _refused("the Vulkan driver has no device")
    if number is not None:
        if number >= len(found):
            raise UnsupportedError(
                f"there is no device vulkan{number}; the last one is vulkan{len(found) - 1}"
            )
        return found[number]
    order = list(KINDS)

    def rank(device: Any) -> int:
        kind = vk.vkGetPhysicalDeviceProperties(device).deviceType
        return order.index(kind) if kind in order else len(order)

    return min(found, key=rank)
