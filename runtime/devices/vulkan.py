"""The Vulkan device: a GPU program with its weights and caches, run by recorded commands.

A step fills one small buffer (looked-up embeddings, angles, slots, page tables) and submits
commands that were recorded once for its shape: rows, outputs, segments, width of the table.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, InternalError, UnsupportedError
from kinetic.ir.cpu_abi import PAGE, SEGMENT
from kinetic.ir.gpu_program import Bound, GpuProgram, Space
from kinetic.ir.program import Program
from kinetic.ir.quant import by_ggml_id
from kinetic.ir.quant.decode import as_blocks, dequantize
from kinetic.runtime.devices.base import TensorSource
from kinetic.runtime.devices.rope_rows import RopeRows
from kinetic.runtime.rows import Rows

ALIGN = 256
CHUNK = 1 << 30
"""Bytes of weights in one buffer, at most unless one matrix is larger."""
MAX_SHAPES = 64
"""Shapes of steps whose commands are kept."""

Place = tuple[Any, int, int]
"""Buffer, offset and bytes."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


class VulkanDevice:
    """A program with its weights on a Vulkan device.

    `n_ctx` bounds a row's position; `n_pages` is the size of every cache. `number` is the
    device's in the driver's list, None for the best. `staged` sends all bytes through a
    staging buffer even where the host sees the device's memory. `cache` keeps compiled
    pipelines between runs.

    *Raises* `UnsupportedError` without a usable driver.
    """

    def __init__(
        self,
        program: GpuProgram,
        source: TensorSource,
        *,
        n_ctx: int,
        n_pages: int,
        number: int | None = None,
        staged: bool = False,
        cache: Path | None = None,
    ):
        try:
            from kinetic.runtime.devices.vulkan_driver import Driver
        except (ImportError, OSError) as error:
            raise UnsupportedError(
                f"--device vulkan needs the package vulkan and a Vulkan loader ({error}); "
                "install kinetic[vulkan] or use --device cpu"
            ) from error
        self.program: Program = program
        self._gpu, self._source = program, source
        self.n_ctx, self.n_pages, self.n_slots = n_ctx, n_pages, 0
        self._driver = Driver(number, staged=staged, cache=cache)
        self.name, self.kind = self._driver.name, self._driver.kind
        self._segments = _power_of_two(-(-n_ctx // SEGMENT))
        self._table_width = _power_of_two(-(-n_ctx // PAGE))
        self._arena = self._driver.buffer(program.arena_bytes)
        self._places: dict[tuple[Space, str], Place] = {}
        self._load()
        self._ropes = [
            RopeRows(t, n_ctx, None if t.factors is None else self._floats(t.factors).reshape(-1))
            for t in program.tables
        ]
        self._inputs = self._place_inputs()
        self._results = {
            name: self._driver.buffer(out.stride * self._most(name), host=True)
            for name, out in program.outputs.items()
        }
        self._pipelines = {n: self._driver.pipeline(s) for n, s in program.shaders.items()}
        self._driver.keep_cache()
        self._sets = self._bind()
        self._recorded: OrderedDict[tuple[int, int, int, int], Any] = OrderedDict()

    # -- loading ---------------------------------------------------------------------
    def _most(self, output: str) -> int:
        """Rows that an output may have."""
        return max(self._gpu.max_rows, self._gpu.max_outputs)

    def _floats(self, tensor: str) -> npt.NDArray[np.float32]:
        info = self._source.tensors[tensor]  # type: ignore[attr-defined]
        fmt = by_ggml_id(info.type_id)
        return dequantize(fmt, as_blocks(fmt, self._source.data(tensor))).reshape(info.shape)

    def _load(self) -> None:
        """Upload weights, several to a buffer, and make caches and scratch memory."""
        program, driver = self._gpu, self._driver
        contents: list[tuple[tuple[Space, str], int]] = [
            ((Space.WEIGHT, key), weight.nbytes) for key, weight in program.weights.items()
        ]
        vectors = {}
        for v in program.vectors:
            values = self._floats(v.tensor)[v.rows[0] : v.rows[0] + v.rows[1]]
            vectors[v.key] = np.ascontiguousarray(values, np.float32).reshape(-1)
            contents.append(((Space.VECTOR, v.key), vectors[v.key].nbytes))
        for group in _groups([(key, _aligned(nbytes)) for key, nbytes in contents]):
            buffer, at = driver.buffer(sum(nbytes for _, nbytes in group)), 0
            for (space, key), nbytes in group:
                if space is Space.VECTOR:
                    content = vectors[key].view(np.uint8)
                else:
                    weight = program.weights[key]
                    raw = self._source.data(weight.tensor).reshape(-1)
                    shape = self._source.tensors[weight.tensor].shape  # type: ignore[attr-defined]
                    first = weight.rows[0] * (raw.nbytes // shape[0])
                    content = raw[first : first + weight.nbytes]
                driver.write(buffer, at, content)
                self._places[space, key] = (buffer, at, len(content))
                at += nbytes
        for name, layout in program.caches.items():
            for space in (Space.KEYS, Space.VALUES):
                nbytes = self.n_pages * layout.page_bytes
                self._places[space, name] = (driver.buffer(nbytes), 0, nbytes)
        for name, each in program.scratch.items():
            nbytes = each * self._segments
            self._places[Space.SCRATCH, name] = (driver.buffer(nbytes), 0, nbytes)

    def _place_inputs(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Parts of the buffer that comes with each step, by name."""
        program, rows = self._gpu, self._gpu.max_rows
        sizes = {f"embed {table}": 4 * rows * width for table, width in program.embeds.items()}
        for number, table in enumerate(program.tables):
            rot = dict(table.attrs)["rot"]
            assert isinstance(rot, int)
            sizes |= {f"{n} {number}": 2 * rows * rot for n in ("cos", "sin")}
        sizes |= {"slots": 4 * rows, "lengths": 4 * rows}
        sizes |= {"tables": 4 * rows * self._table_width, "wanted": 4 * program.max_outputs}
        buffer, at, views = (
            self._driver.buffer(sum(_aligned(n) for n in sizes.values()), host=True),
            0,
            {},
        )
        assert buffer.view is not None
        for name, nbytes in sizes.items():
            self._places[Space.STEP, name] = (buffer, at, nbytes)
            views[name] = buffer.view[at : at + nbytes]
            at += _aligned(nbytes)
        return views

    def _where(self, bound: Bound) -> Place:
        if bound.space is Space.ARENA:
            return self._arena, bound.offset, bound.nbytes
        return self._places[bound.space, bound.key]

    def _bind(self) -> list[tuple[Any, Any]]:
        """Descriptors of every dispatch, and of its form for several rows."""
        wanted: list[tuple[Any, list[Place]]] = []
        places: list[range] = []
        for launch in self._gpu.dispatches:
            ranges = [self._where(bound) for bound in launch.buffers]
            ranges = [(b, offset, -(-nbytes // 4) * 4) for b, offset, nbytes in ranges]
            shaders = [launch.shader] + ([] if launch.wide is None else [launch.wide])
            places.append(range(len(wanted), len(wanted) + len(shaders)))
            wanted += [(self._pipelines[name][2], ranges) for name in shaders]
        made = self._driver.descriptors(wanted)
        return [(made[at[0]], made[at[-1]]) for at in places]

    # -- running -----------------------------------------------------------------------
    def step(self, rows: Rows) -> None:
        """Run the rows of one step.

        *Raises* `ContextError` when a step is larger than the program allows.
        """
        program, count, wanted = self._gpu, len(rows), len(rows.wanted)
        if not 0 < count <= program.max_rows or wanted > program.max_outputs:
            raise ContextError(
                f"a step of {count} rows with {wanted} outputs exceeds the program's "
                f"{program.max_rows} and {program.max_outputs}"
            )
        shape = self._fill(rows)
        if shape not in self._recorded:
            if len(self._recorded) >= MAX_SHAPES:
                self._driver.forget(self._recorded.popitem(last=False)[1])
            self._recorded[shape] = self._record(shape)
        self._recorded.move_to_end(shape)
        self._driver.run(self._recorded[shape])

    def _fill(self, rows: Rows) -> tuple[int, int, int, int]:
        """Write what comes with the rows; the shape of the step."""
        inputs = self._inputs
        for table in self._gpu.embeds:
            _put(inputs[f"embed {table}"], self._looked_up(table, rows.tokens))
        for number, rope in enumerate(self._ropes):
            cos, sin = rope.at(rows.positions)
            _put(inputs[f"cos {number}"], cos)
            _put(inputs[f"sin {number}"], sin)
        lengths = rows.positions + 1
        longest = int(lengths.max())
        segments = _power_of_two(-(-longest // SEGMENT))
        width = _power_of_two(-(-longest // PAGE))
        tables = np.zeros((len(rows), width), np.uint32)
        for row, (pages, length) in enumerate(zip(rows.tables, lengths.tolist(), strict=True)):
            tiles = -(-length // PAGE)
            tables[row, :tiles] = pages[:tiles]
        _put(inputs["slots"], rows.slots.astype(np.uint32))
        _put(inputs["lengths"], lengths.astype(np.uint32))
        _put(inputs["tables"], tables)
        _put(inputs["wanted"], rows.wanted.astype(np.uint32))
        return len(rows), len(rows.wanted), segments, width

    def _looked_up(self, table: str, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The dequantized rows of tokens."""
        info = self._source.tensors[table]  # type: ignore[attr-defined]
        fmt = by_ggml_id(info.type_id)
        raw = self._source.data(table).reshape(info.shape[0], -1)[tokens]
        found = dequantize(fmt, as_blocks(fmt, np.ascontiguousarray(raw).reshape(-1)))
        return found.reshape(len(tokens), -1).astype(np.float32)

    def _record(self, shape: tuple[int, int, int, int]) -> Any:
        """Commands of a step of this shape."""
        driver, program = self._driver, self._gpu
        rows, wanted, segments, width = shape
        sizes = {"1": 1, "T": rows, "R": wanted, "S": segments, "W": width}
        commands = driver.begin()
        for launch, sets in zip(program.dispatches, self._sets, strict=True):
            if launch.barrier:
                driver.barrier(commands)
            name, grid, chosen = launch.shader, launch.grid, sets[0]
            if rows > 1 and launch.wide is not None and launch.wide_grid is not None:
                name, grid, chosen = launch.wide, launch.wide_grid, sets[1]
            x, y, z = (e.of(sizes) for e in grid)
            if 0 in (x, y, z):
                continue
            words = [p if isinstance(p, int) else p.of(sizes) for p in launch.params]
            constants = struct.pack(f"<{len(words)}I", *words)
            driver.dispatch(commands, self._pipelines[name], chosen, constants, (x, y, z))
        for name, out in program.outputs.items():
            count = self._rows_of(name, rows, wanted)
            if count:
                nbytes = count * out.stride
                driver.take_back(commands, self._arena, out.offset, self._results[name], nbytes)
        driver.end(commands)
        return driver.submission(commands)

    def _rows_of(self, output: str, rows: int, wanted: int) -> int:
        return min(self._most(output), max(rows, wanted))

    def output(self, name: str, count: int) -> npt.NDArray[np.float32]:
        """The first `count` rows of an output: a view that the next step overwrites."""
        out, view = self._gpu.outputs[name], self._results[name].view
        assert view is not None
        floats = view[: count * out.stride].view(np.float32)
        return floats.reshape(count, out.stride // 4)[:, : out.width]

    # -- cache pages ---------------------------------------------------------------------
    def _parts(self, page: int) -> Iterator[Place]:
        """Where a page lies in each cache: its keys, then its values."""
        if not 0 <= page < self.n_pages:
            raise InternalError(f"there is no page {page} of the {self.n_pages} of the cache")
        for name, layout in self._gpu.caches.items():
            for space in (Space.KEYS, Space.VALUES):
                buffer = self._places[space, name][0]
                yield buffer, page * layout.page_bytes, layout.page_bytes

    def read_page(self, page: int) -> npt.NDArray[np.uint8]:
        """A copy of what a page holds in all caches."""
        parts = [self._driver.read(*place) for place in self._parts(page)]
        return np.concatenate([np.zeros(0, np.uint8), *parts])

    def write_page(self, page: int, content: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_page` gave, into this page or another."""
        at, parts = 0, list(self._parts(page))
        if content.shape != (sum(nbytes for _, _, nbytes in parts),):
            raise InternalError(f"{content.shape} bytes are not a page of this model's caches")
        for buffer, offset, nbytes in parts:
            self._driver.write(buffer, offset, content[at : at + nbytes])
            at += nbytes

    def copy_page(self, source: int, target: int) -> None:
        """Make a page hold what another one does, in all caches."""
        for old, new in zip(self._parts(source), self._parts(target), strict=True):
            self._driver.copy(old[0], old[1], new[0], new[1], old[2])

    # -- recurrent states: the class has none ----------------------------------------------
    def read_state(self, slot: int) -> npt.NDArray[np.uint8]:
        """*Raises* `InternalError`: programs of this class have no states."""
        raise InternalError(f"there is no slot {slot}: the class vulkan has no recurrent states")

    def write_state(self, slot: int, state: npt.NDArray[np.uint8]) -> None:
        """*Raises* `InternalError`, as `read_state`."""
        self.read_state(slot)

    def copy_state(self, source: int, target: int) -> None:
        """*Raises* `InternalError`, as `read_state`."""
        self.read_state(source)

    def close(self) -> None:
        """Give the device's memory back."""
        self._driver.close()


def _put(view: npt.NDArray[np.uint8], values: npt.NDArray[Any]) -> None:
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    view[: len(content)] = content


def _groups(
    sizes: list[tuple[tuple[Space, str], int]],
) -> Iterator[list[tuple[tuple[Space, str], int]]]:
    """Consecutive contents that share a buffer."""
    group: list[tuple[tuple[Space, str], int]] = []
    for key, nbytes in sizes:
        if group and sum(n for _, n in group) + nbytes > CHUNK:
            yield group
            group = []
        group.append((key, nbytes))
    if group:
        yield group
