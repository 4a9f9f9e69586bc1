"""The CPU device: binds a program to memory and threads, and runs steps.

Matrices are repacked by `weights.py`; vectors are widened here. A step fills the step
block and makes one native call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError, InternalError
from kinetic.ir import cpu_abi as abi
from kinetic.ir.program import Arg, ArgKind, CacheLayout, Launch, PackedWeight, Program, RopeTable
from kinetic.ir.quant import by_ggml_id
from kinetic.ir.quant.decode import as_blocks, dequantize
from kinetic.ir.rope_tables import RopeScaling, rope_table
from kinetic.runtime.devices.base import TensorSource
from kinetic.runtime.devices.mapping import Mapping
from kinetic.runtime.devices.pool import WorkerPool, aligned
from kinetic.runtime.devices.weights import LoadOptions, PackedWeights
from kinetic.runtime.rows import Rows

_DRAWS = 4
"""Chunks a thread should get of a product, so that an uneven start evens out."""
_LARGEST_CHUNK = 16
_LARGE_STEP = 256
"""Rows of a step after which the embedding table's pages are let go."""
_TABLE_ROWS = 1024
"""Positions by which a rope table grows."""

_NOTHING: npt.NDArray[np.float32] = np.zeros(0, np.float32)
N_SLOTS = 8
"""Recurrent states unless the caller says otherwise."""


class _Rope:
    """One rope table, filled as positions are reached."""

    def __init__(self, table: RopeTable, n_ctx: int, factors: npt.NDArray[np.float32] | None):
        attrs: dict[str, Any] = dict(table.attrs)
        self._rot, self._base = attrs["rot"], attrs["base"]
        self._scaling = RopeScaling(
            attrs["scaling"] or "none",
            attrs["factor"],
            attrs["n_ctx_orig"],
            attrs["attn_factor"],
        )
        self._factors = factors
        self.cos = np.empty((n_ctx, self._rot // 2), np.float32)
        self.sin = np.empty((n_ctx, self._rot // 2), np.float32)
        self._filled = 0

    def reach(self, position: int) -> None:
        """Have rows up to and with `position`."""
        if position < self._filled:
            return
        stop = min(len(self.cos), -(-(position + 1) // _TABLE_ROWS) * _TABLE_ROWS)
        positions = np.arange(self._filled, stop)
        cos, sin = rope_table(
            positions, self._rot, self._base, scaling=self._scaling, freq_factors=self._factors
        )
        self.cos[self._filled : stop], self.sin[self._filled : stop] = cos, sin
        self._filled = stop


def _last_positions(positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The last position of each row's text, of whole texts that lie side by side.

    *Raises* `InternalError` where a text is not whole or not in order.
    """
    starts = np.flatnonzero(positions == 0)
    lengths = np.diff(np.append(starts, len(positions)))
    expected = np.arange(len(positions)) - np.repeat(starts, lengths) if len(starts) else None
    if expected is None or starts[0] or (positions != expected).any():
        raise InternalError("a step of this model takes whole texts, each in order")
    return np.repeat(lengths - 1, lengths).astype(np.int32)


class CpuDevice:
    """A program with its weights on this machine's CPU.

    `n_ctx` bounds a row's position; `n_pages` is the size of every cache, `n_slots` the
    number of recurrent states (memory that is never touched is never resident).

    A device `beside` another one of the same file takes its threads and the matrices that both
    have, and must be closed before it.
    """

    def __init__(
        self,
        program: Program,
        source: TensorSource,
        *,
        threads: int,
        n_ctx: int,
        n_pages: int,
        n_slots: int = N_SLOTS,
        load: LoadOptions | None = None,
        beside: CpuDevice | None = None,
    ):
        self.program, self._source = program, source
        self.whole_steps = True
        """Whether a step is one native call, or for debugging one for each launch."""
        self.threads, self.n_ctx, self.n_pages = threads, n_ctx, n_pages
        self.n_slots = n_slots if program.states else 0
        if program.n_positions is not None and n_ctx > program.n_positions:
            raise ContextError(
                f"a context of {n_ctx} tokens is more than the {program.n_positions} positions "
                "that the model knows; lower -c"
            )
        self._functions = program.link()
        self._beside = beside
        self._pool: WorkerPool = (
            WorkerPool(self._functions, threads) if beside is None else beside._pool
        )
        self._arena = Mapping(program.arena_bytes)
        self._step = aligned(abi.STEP_SIZE).view(np.int64)
        self._out_rows = np.zeros(max(1, program.max_outputs), np.int32)
        units = 2 * threads * -(-n_ctx // abi.SEGMENT)
        self._scratch = Mapping(units * program.state_bytes)
        self._vectors = {
            v.key: self._widen(v.tensor, v.rows, v.transposed) for v in program.vectors
        }
        self._ropes = [self._rope(t) for t in program.tables]
        launched = [arg for launch in program.launches for arg in launch.args]
        self._raw = sorted({str(a.value) for a in launched if a.kind is ArgKind.RAW})
        known: dict[PackedWeight, int] = {} if beside is None else beside.packed
        mine = [weight for weight in program.packed if weight not in known]
        self._weights = PackedWeights(
            mine, source, self._functions, self._pool, load or LoadOptions(), self._raw
        )
        self.packed: dict[PackedWeight, int] = known | {
            weight: self._weights.address[weight.key] for weight in mine
        }
        """Where each repacked matrix lies."""
        self._address = {weight.key: self.packed[weight] for weight in program.packed}
        self._caches = {name: self._cache(c) for name, c in program.caches.items()}
        self._states = Mapping(self.n_slots * program.slot_bytes)
        self._held: object = None
        self._plan = self._bind(program.launches)

    # -- loading ---------------------------------------------------------------------
    def _widen(
        self, tensor: str, rows: tuple[int, int], transposed: bool = False
    ) -> npt.NDArray[np.float32]:
        """A tensor of the file as f32, padded with zeros to a multiple of eight."""
        info = self._source.tensors[tensor]  # type: ignore[attr-defined]
        fmt = by_ggml_id(info.type_id)
        values = dequantize(fmt, as_blocks(fmt, self._source.data(tensor))).reshape(info.shape)
        values = values[rows[0] : rows[0] + rows[1]]
        values = (values.T if transposed else values).reshape(-1)
        out = aligned(-(-len(values) // 8) * 32).view(np.float32)
        out[: len(values)] = values
        return out

    def _rope(self, table: RopeTable) -> _Rope:
        factors = None
        if table.factors is not None:
            pairs = int(dict(table.attrs)["rot"]) // 2  # type: ignore[arg-type]
            factors = self._widen(table.factors, (0, pairs))[:pairs]
        return _Rope(table, self.n_ctx, factors)

    def _cache(self, layout: CacheLayout) -> tuple[Mapping, Mapping]:
        nbytes = self.n_pages * layout.page_bytes
        return Mapping(nbytes), Mapping(nbytes)

    # -- binding -----------------------------------------------------------------------
    def _bind(self, launches: tuple[Launch, ...]) -> npt.NDArray[np.int64]:
        plan = np.zeros((len(launches), abi.OP_SIZE // 8), np.int64)
        for record, launch in zip(plan, launches, strict=True):
            record[abi.OP_KERNEL // 8] = self._functions[launch.kernel]
            record[abi.OP_BARRIER // 8] = int(launch.barrier)
            first = abi.OP_ARGS // 8
            for i, arg in enumerate(launch.args):
                record[first + i] = self._word(arg)
        return plan

    def _word(self, arg: Arg) -> int:
        """An argument as the 64-bit word its kernel reads."""
        kind, value = arg.kind, arg.value
        if kind is ArgKind.FLOAT:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        if kind is ArgKind.STEP:
            return int(self._step.ctypes.data)
        if kind is ArgKind.COUNT:
            offset = abi.STEP_ROWS if value == "T" else abi.STEP_OUTPUTS
            return int(self._step.ctypes.data) + offset
        if kind is ArgKind.SCRATCH:
            return self._scratch.address
        if kind is ArgKind.STATE_STRIDE:
            return self.program.slot_bytes
        if isinstance(value, str):
            if kind is ArgKind.PACKED:
                return self._address[value]
            if kind is ArgKind.VECTOR:
                return int(self._vectors[value].ctypes.data)
            if kind is ArgKind.RAW:
                return int(self._source.data(value).ctypes.data)
            if kind is ArgKind.STATE:
                return self._states.address + self.program.states[value].offset
            return self._caches[value][kind is ArgKind.CACHE_V].address
        number = int(value)
        if kind is ArgKind.BUFFER:
            return self._arena.address + number
        if kind in (ArgKind.COS, ArgKind.SIN):
            rope = self._ropes[number]
            return int((rope.cos if kind is ArgKind.COS else rope.sin).ctypes.data)
        if kind is ArgKind.CHUNK:
            return max(1, min(_LARGEST_CHUNK, number // (self.threads * _DRAWS)))
        return number

    # -- running -----------------------------------------------------------------------
    def step(self, rows: Rows) -> None:
        """Run the rows of one step.

        *Raises* `ContextError` when a step is larger than the program allows.
        """
        program, count, wanted = self.program, len(rows), len(rows.wanted)
        if not 0 < count <= program.max_rows or wanted > program.max_outputs:
            raise ContextError(
                f"a step of {count} rows with {wanted} outputs exceeds the program's "
                f"{program.max_rows} and {program.max_outputs}"
            )
        if program.states:
            self._check_states(rows)
        hidden = self._hidden(rows)
        for rope in self._ropes:
            rope.reach(int(rows.positions.max()))
        tables = np.array([t.ctypes.data for t in rows.tables], np.int64)
        self._held = (rows, tables, hidden)  # what the step block points at, for `replay`
        self._out_rows[:wanted] = rows.wanted
        step = self._step
        step[abi.STEP_ROWS // 8] = count
        step[abi.STEP_OUTPUTS // 8] = wanted
        step[abi.STEP_TOKENS // 8] = rows.tokens.ctypes.data
        step[abi.STEP_POSITIONS // 8] = rows.positions.ctypes.data
        step[abi.STEP_SLOTS // 8] = rows.slots.ctypes.data
        step[abi.STEP_PAGES // 8] = tables.ctypes.data
        step[abi.STEP_OUT_ROWS // 8] = self._out_rows.ctypes.data
        step[abi.STEP_STATE_IN // 8] = rows.state_in.ctypes.data
        step[abi.STEP_STATE_OUT // 8] = rows.state_out.ctypes.data
        step[abi.STEP_HIDDEN // 8] = hidden.ctypes.data
        if program.whole_texts:
            last = _last_positions(rows.positions)  # lives until the step is done
            step[abi.STEP_LAST // 8] = last.ctypes.data
        if self.whole_steps:
            self._pool.run(self._plan)
        else:
            self._run_one_by_one()
        if count >= _LARGE_STEP:
            # A prompt touches rows all over the table; the system holds on to every page.
            for name in self._raw:
                self._source.advise_dontneed(name)

    def _run_one_by_one(self) -> None:
        """The plan, a native call for each launch: where it breaks, that launch is to blame."""
        for i in range(len(self._plan)):
            alone = self._plan[i : i + 1].copy()
            alone[0, abi.OP_BARRIER // 8] = 1
            self._pool.run(alone)

    def replay(self, first: int, last: int) -> None:
        """Run launches `first` to `last` of the last step again, to measure them.

        Memory is shared out over a step, so only a stretch from its start on reads what it would
        read there; a kernel alone runs on what lies in its place.
        """
        self._pool.run(self._plan[first:last].copy())

    def output(self, name: str, count: int) -> npt.NDArray[np.float32]:
        """The first `count` rows of an output: a view that the next step overwrites."""
        out = self.program.outputs[name]
        size = count * out.stride
        view = self._arena.bytes[out.offset : out.offset + size].view(np.float32)
        return view.reshape(count, out.stride // 4)[:, : out.width]

    # -- cache pages ---------------------------------------------------------------------
    def _parts(self, page: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Where a page lies: its keys and its values in each cache, in the caches' order."""
        if not 0 <= page < self.n_pages:
            raise InternalError(f"there is no page {page} of the {self.n_pages} of the cache")
        for name, layout in self.program.caches.items():
            for half in self._caches[name]:
                yield half.bytes[page * layout.page_bytes : (page + 1) * layout.page_bytes]

    def read_page(self, page: int) -> npt.NDArray[np.uint8]:
        """A copy of what a page holds in all caches."""
        return np.concatenate([np.zeros(0, np.uint8), *self._parts(page)])

    def write_page(self, page: int, content: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_page` gave, into this page or another."""
        at, parts = 0, list(self._parts(page))
        if content.shape != (sum(len(part) for part in parts),):
            raise InternalError(f"{content.shape} bytes are not a page of this model's caches")
        for part in parts:
            part[:] = content[at : at + len(part)]
            at += len(part)

    def copy_page(self, source: int, target: int) -> None:
        """Make a page hold what another one does, in all caches."""
        for old, new in zip(self._parts(source), self._parts(target), strict=True):
            new[:] = old

    def _hidden(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The vectors given with the rows, where the program reads such."""
        width = self.program.hidden
        if not width:
            return _NOTHING
        if rows.hidden is None or rows.hidden.shape != (len(rows), width):
            raise InternalError(f"the rows of this step come without vectors of {width} values")
        return np.ascontiguousarray(rows.hidden, np.float32)

    # -- recurrent states --------------------------------------------------------------
    def _check_states(self, rows: Rows) -> None:
        """Slots must exist, for kernels take them as they are."""
        for slots, least in ((rows.state_in, abi.FRESH), (rows.state_out, abi.NOT_KEPT)):
            if slots.shape != (len(rows),) or slots.min() < least or slots.max() >= self.n_slots:
                raise InternalError(
                    f"a step of {len(rows)} rows names the states {slots.tolist()[:8]}; there "
                    f"must be one a row, below {self.n_slots}"
                )
        if rows.state_in[0] == abi.CONTINUE:
            raise InternalError("the first row of a step has no row before it to go on from")

    def _slot(self, slot: int) -> npt.NDArray[np.uint8]:
        size = self.program.slot_bytes
        if not 0 <= slot < self.n_slots:
            raise InternalError(f"there is no slot {slot} of the {self.n_slots} for states")
        return self._states.bytes[slot * size : (slot + 1) * size]

    def read_state(self, slot: int) -> npt.NDArray[np.uint8]:
        """A copy of what a slot of recurrent state holds."""
        return self._slot(slot).copy()

    def write_state(self, slot: int, state: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_state` gave, into this slot or another."""
        if state.shape != (self.program.slot_bytes,):
            raise InternalError(
                f"a state of shape {state.shape} is not one of {self.program.slot_bytes} bytes"
            )
        self._slot(slot)[:] = state

    def copy_state(self, source: int, target: int) -> None:
        """Make a slot hold what another one does."""
        self._slot(target)[:] = self._slot(source)

    def close(self) -> None:
        """Stop the threads."""
        if self._beside is None:
            self._pool.close()
