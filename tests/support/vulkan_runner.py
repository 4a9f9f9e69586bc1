"""Runs one GPU kernel at a time through Vulkan, with numpy arrays for buffers.

A test tool: it allocates, dispatches, waits, copies back and frees at every call. The
`vulkan` package wraps set-up calls; feature structs are built with its cffi, because the
same chain has to go to the query and to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import vulkan as vk
from support.gpu_arguments import Number, pack_params
from vulkan._vulkan import ffi, lib

from kinetic.codegen.kernels.builder import GpuCode, Kernel
from kinetic.codegen.targets import spirv

API_VERSION = vk.VK_MAKE_VERSION(1, 3, 0)
FOREVER = 2**63
"""Nanoseconds to wait for a dispatch."""


@dataclass
class Pipeline:
    """A kernel that the driver has compiled; kept until the process ends."""

    set_layout: object
    layout: object
    pipeline: object


class VulkanRunner:
    """The first Vulkan device with a compute queue.

    *Raises*: any exception of the `vulkan` package or `LookupError` where there is none.
    """

    def __init__(self) -> None:
        info = vk.VkApplicationInfo(pApplicationName="kinetic", apiVersion=API_VERSION)
        self._instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=info), None)
        self._physical, self._family = self._find_queue()
        self.name = vk.vkGetPhysicalDeviceProperties(self._physical).deviceName
        self._device = self._create_device()
        self._queue = vk.vkGetDeviceQueue(self._device, self._family, 0)
        self._memory = vk.vkGetPhysicalDeviceMemoryProperties(self._physical)
        pool = vk.VkCommandPoolCreateInfo(queueFamilyIndex=self._family)
        self._commands = vk.vkCreateCommandPool(self._device, pool, None)
        self._code: dict[Kernel, GpuCode] = {}
        self._pipelines: dict[Kernel, Pipeline] = {}

    def code(self, kernel: Kernel) -> GpuCode:
        """The kernel's module, built once."""
        if kernel not in self._code:
            self._code[kernel] = spirv.emit(kernel)
        return self._code[kernel]

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        buffers: Mapping[str, np.ndarray],
        params: Mapping[str, Number],
    ) -> None:
        """Run a kernel over the grid; what it wrote lands in the arrays of `buffers`."""
        code = self.code(kernel)
        with ExitStack() as later:
            bound = [self._buffer(buffers[slot.name], later) for slot in code.buffers]
            pipeline = self._pipeline(kernel)
            descriptors = self._descriptors(pipeline, bound, later)
            constants = pack_params(code.params, params)
            self._dispatch(pipeline, descriptors, constants, grid, later)
            for slot, (_, _, view) in zip(code.buffers, bound, strict=True):
                array = buffers[slot.name]
                if array.flags.writeable:
                    array.reshape(-1).view(np.uint8)[:] = view[: array.nbytes]

    # -- set-up -------------------------------------------------------------------

    def _find_queue(self) -> tuple[object, int]:
        for device in vk.vkEnumeratePhysicalDevices(self._instance):
            families = vk.vkGetPhysicalDeviceQueueFamilyProperties(device)
            for index, family in enumerate(families):
                if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
                    return device, index
        raise LookupError("no Vulkan device has a compute queue")

    def _create_device(self) -> object:
        """A device with every feature it has, but for bounds checks in shaders."""
        chain = ffi.NULL
        kept = []
        for struct, kind in (
            ("VkPhysicalDeviceVulkan13Features*", "VULKAN_1_3_FEATURES"),
            ("VkPhysicalDeviceVulkan12Features*", "VULKAN_1_2_FEATURES"),
            ("VkPhysicalDeviceVulkan11Features*", "VULKAN_1_1_FEATURES"),
            ("VkPhysicalDeviceFeatures2*", "FEATURES_2"),
        ):
            kind_value = getattr(vk, f"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_{kind}")
            chain = ffi.new(struct, {"sType": kind_value, "pNext": chain})
            kept.append(chain)
        lib.vkGetPhysicalDeviceFeatures2(self._physical, chain)
        chain.features.robustBufferAccess = 0
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
                "pNext": chain,
                "queueCreateInfoCount": 1,
                "pQueueCreateInfos": queue,
            },
        )
        out = ffi.new("VkDevice*")
        result = lib.vkCreateDevice(self._physical, create, ffi.NULL, out)
        if result != vk.VK_SUCCESS:
            raise LookupError(f"vkCreateDevice answers {result}")
        return out[0]

    # -- one launch ---------------------------------------------------------------

    def _buffer(self, array: np.ndarray, later: ExitStack) -> tuple[object, int, np.ndarray]:
        """(buffer, bytes, mapped view) with the array's bytes in it."""
        if not array.flags.c_contiguous:
            raise ValueError("arrays of a launch have to be contiguous")
        size = max(16, -(-array.nbytes // 16) * 16)
        usage = vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        buffer = vk.vkCreateBuffer(
            self._device, vk.VkBufferCreateInfo(size=size, usage=usage, sharingMode=0), None
        )
        self._later(later, vk.vkDestroyBuffer, buffer)
        needs = vk.vkGetBufferMemoryRequirements(self._device, buffer)
        memory = vk.vkAllocateMemory(
            self._device,
            vk.VkMemoryAllocateInfo(
                allocationSize=needs.size, memoryTypeIndex=self._host_memory(needs.memoryTypeBits)
            ),
            None,
        )
        self._later(later, vk.vkFreeMemory, memory)
        vk.vkBindBufferMemory(self._device, buffer, memory, 0)
        view = np.frombuffer(vk.vkMapMemory(self._device, memory, 0, size, 0), np.uint8)
        view[: array.nbytes] = array.reshape(-1).view(np.uint8)
        return buffer, size, view

    def _host_memory(self, allowed: int) -> int:
        wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        for index in range(self._memory.memoryTypeCount):
            flags = self._memory.memoryTypes[index].propertyFlags
            if allowed >> index & 1 and flags & wanted == wanted:
                return index
        raise LookupError("the device has no coherent memory that the host sees")

    def _pipeline(self, kernel: Kernel) -> Pipeline:
        if kernel not in self._pipelines:
            self._pipelines[kernel] = self._compile(self.code(kernel))
        return self._pipelines[kernel]

    def _compile(self, code: GpuCode) -> Pipeline:
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        bindings = [
            vk.VkDescriptorSetLayoutBinding(
                binding=index,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=stage,
            )
            for index in range(len(code.buffers))
        ]
        set_layout = vk.vkCreateDescriptorSetLayout(
            self._device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None
        )
        ranges = None
        if code.params:
            ranges = [vk.VkPushConstantRange(stageFlags=stage, offset=0, size=4 * len(code.params))]
        layout = vk.vkCreatePipelineLayout(
            self._device,
            vk.VkPipelineLayoutCreateInfo(pSetLayouts=[set_layout], pPushConstantRanges=ranges),
            None,
        )
        shader = vk.vkCreateShaderModule(
            self._device,
            vk.VkShaderModuleCreateInfo(codeSize=len(code.code), pCode=code.code),
            None,
        )
        entry = vk.VkPipelineShaderStageCreateInfo(stage=stage, module=shader, pName="main")
        info = vk.VkComputePipelineCreateInfo(stage=entry, layout=layout)
        pipeline = vk.vkCreateComputePipelines(self._device, None, 1, [info], None)[0]
        vk.vkDestroyShaderModule(self._device, shader, None)
        return Pipeline(set_layout, layout, pipeline)

    def _descriptors(
        self, pipeline: Pipeline, bound: list[tuple[object, int, np.ndarray]], later: ExitStack
    ) -> object:
        kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        pool = vk.vkCreateDescriptorPool(
            self._device,
            vk.VkDescriptorPoolCreateInfo(
                maxSets=1,
                pPoolSizes=[vk.VkDescriptorPoolSize(type=kind, descriptorCount=len(bound))],
            ),
            None,
        )
        self._later(later, vk.vkDestroyDescriptorPool, pool)
        allocate = vk.VkDescriptorSetAllocateInfo(
            descriptorPool=pool, pSetLayouts=[pipeline.set_layout]
        )
        descriptors = vk.vkAllocateDescriptorSets(self._device, allocate)[0]
        writes = [
            vk.VkWriteDescriptorSet(
                dstSet=descriptors,
                dstBinding=index,
                dstArrayElement=0,
                descriptorType=kind,
                # The size in bytes: the package's VK_WHOLE_SIZE is -1, which overflows.
                pBufferInfo=[vk.VkDescriptorBufferInfo(buffer=buffer, offset=0, range=size)],
            )
            for index, (buffer, size, _) in enumerate(bound)
        ]
        vk.vkUpdateDescriptorSets(self._device, len(writes), writes, 0, None)
        return descriptors

    def _dispatch(
        self,
        pipeline: Pipeline,
        descriptors: object,
        constants: bytes,
        grid: tuple[int, int, int],
        later: ExitStack,
    ) -> None:
        allocate = vk.VkCommandBufferAllocateInfo(
            commandPool=self._commands,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        commands = vk.vkAllocateCommandBuffers(self._device, allocate)[0]
        later.callback(vk.vkFreeCommandBuffers, self._device, self._commands, 1, [commands])
        vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
        point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        vk.vkCmdBindPipeline(commands, point, pipeline.pipeline)
        vk.vkCmdBindDescriptorSets(commands, point, pipeline.layout, 0, 1, [descriptors], 0, None)
        if constants:
            lib.vkCmdPushConstants(
                commands,
                pipeline.layout,
                vk.VK_SHADER_STAGE_COMPUTE_BIT,
                0,
                len(constants),
                ffi.from_buffer(constants),
            )
        vk.vkCmdDispatch(commands, *grid)
        vk.vkEndCommandBuffer(commands)
        fence = vk.vkCreateFence(self._device, vk.VkFenceCreateInfo(), None)
        self._later(later, vk.vkDestroyFence, fence)
        vk.vkQueueSubmit(self._queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[commands])], fence)
        vk.vkWaitForFences(self._device, 1, [fence], True, FOREVER)

    def _later(self, later: ExitStack, destroy: Callable[..., None], thing: object) -> None:
        later.callback(destroy, self._device, thing, None)
