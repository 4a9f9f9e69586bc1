"""The worker pool: started, stopped, called from anywhere, never stuck, never half done."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.cpu_device import Memory, compile_for, device, graph_of, outputs, plain_rows
from support.random_graphs import random_graph

from kinetic.errors import InternalError
from kinetic.ir.build import Builder
from kinetic.ir.program import Program
from kinetic.ir.reference import Reference, rows
from kinetic.runtime.devices.cpu import CpuDevice
from kinetic.runtime.devices.weights import LoadOptions

ROWS = 40


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Rows through a few products and gates, with barriers between them."""
    objects = tmp_path_factory.mktemp("objects")
    graph, _ = random_graph(21, 12)
    return compile_for("scalar", graph, objects, max_rows=ROWS, max_outputs=ROWS)


@pytest.fixture(scope="module")
def memory() -> Memory:
    return random_graph(21, 12)[1]


@pytest.fixture(scope="module")
def expected(memory: Memory) -> dict[str, bytes]:
    graph, _ = random_graph(21, 12)
    step = rows(np.arange(ROWS))
    return {k: v.tobytes() for k, v in Reference(graph, memory.weight).step(step).items()}


def words(cpu: CpuDevice) -> dict[str, bytes]:
    found = outputs(cpu, plain_rows(np.arange(ROWS), wanted=range(ROWS)))
    return {k: v.tobytes() for k, v in found.items()}


def workers() -> int:
    return sum(t.name.startswith("kinetic-worker") for t in threading.enumerate())


def test_many_pools_start_and_stop(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    before = workers()
    for i in range(60):
        with device(program, memory, threads=1 + i % 5, n_ctx=64) as cpu:
            assert words(cpu) == expected
    assert workers() == before


def test_a_pool_nobody_closed_stops_with_its_last_reference(
    program: Program, memory: Memory
) -> None:
    before = workers()
    cpu = CpuDevice(program, memory, threads=3, n_ctx=64, n_pages=1)
    assert workers() == before + 2
    del cpu
    gc.collect()
    deadline = time.monotonic() + 10
    while workers() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers() == before


def test_more_threads_than_cpus(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    with device(program, memory, threads=4 * (os.cpu_count() or 1) + 1, n_ctx=64) as cpu:
        for _ in range(3):
            assert words(cpu) == expected


def test_workers_that_fell_asleep_wake_up(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    with device(program, memory, threads=2, n_ctx=64) as cpu:
        for pause in (0, 0.002, 0.02, 0.1, 0.001, 0.3):
            time.sleep(pause)
            assert words(cpu) == expected


def test_threads_of_python_may_take_turns(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    with device(program, memory, threads=2, n_ctx=64) as cpu:
        turn, wrong = threading.Lock(), []

        def run() -> None:
            for _ in range(20):
                with turn:
                    if words(cpu) != expected:
                        wrong.append(threading.get_ident())

        callers = [threading.Thread(target=run) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert wrong == []


def test_two_devices_run_side_by_side(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    found: list[bool] = []

    def run(cpu: CpuDevice) -> None:
        found.extend(words(cpu) == expected for _ in range(15))

    with (
        device(program, memory, threads=2, n_ctx=64) as first,
        device(program, memory, threads=2, n_ctx=64) as second,
    ):
        callers = [threading.Thread(target=run, args=(cpu,)) for cpu in (first, second)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert found == [True] * 30


def test_threads_may_load_at_once(
    program: Program, memory: Memory, expected: dict[str, bytes]
) -> None:
    start, found = threading.Barrier(4), []

    def run() -> None:
        start.wait()
        with device(program, memory, threads=1, n_ctx=64) as cpu:
            found.append(words(cpu) == expected)

    callers = [threading.Thread(target=run) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 4


def test_a_closed_pool_refuses_instead_of_leaving_old_words(
    program: Program, memory: Memory
) -> None:
    cpu = CpuDevice(program, memory, threads=2, n_ctx=64, n_pages=1)
    cpu.close()
    cpu.close()
    with pytest.raises(InternalError, match="the worker pool is closed"):
        words(cpu)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_the_caller_keeps_its_cpus(program: Program, memory: Memory) -> None:
    before = os.sched_getaffinity(0)
    with device(program, memory, threads=len(before), n_ctx=64) as cpu:
        words(cpu)
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


FORKED = """
import os, sys, numpy as np
sys.path.insert(0, sys.argv[1])
from support.cpu_device import compile_for, outputs, plain_rows
from support.random_graphs import random_graph
from kinetic.errors import InternalError
from kinetic.runtime.devices.cpu import CpuDevice
graph, memory = random_graph(21, 12)
cpu = CpuDevice(compile_for("scalar", graph), memory, threads=2, n_ctx=64, n_pages=1)
before = outputs(cpu, plain_rows(np.arange(5), wanted=[0]))
child = os.fork()
if child == 0:
    try:
        outputs(cpu, plain_rows(np.arange(5), wanted=[0]))
    except InternalError as error:
        print(error, flush=True)
        sys.exit(0)
    os._exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
after = outputs(cpu, plain_rows(np.arange(5), wanted=[0]))
print("same", all((before[k].view(np.uint32) == after[k].view(np.uint32)).all() for k in before))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_and_the_parent_goes_on() -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tests)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told, child, same = done.stdout.splitlines()
    assert told.startswith("the worker threads stayed in the process that loaded the model")
    assert (child, same) == ("child 0", "same True")


UNCLOSED = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from support.cpu_device import compile_for, outputs, plain_rows
from support.random_graphs import random_graph
from kinetic.runtime.devices.cpu import CpuDevice
graph, memory = random_graph(21, 12)
cpu = CpuDevice(compile_for("scalar", graph), memory, threads=3, n_ctx=64, n_pages=1)
outputs(cpu, plain_rows(np.arange(5), wanted=[0]))
if sys.argv[2] == "error":
    raise SystemExit("stopped")
"""


@pytest.mark.parametrize("how", ["end", "error"])
def test_a_program_that_closes_nothing_still_ends(how: str) -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED, str(tests), how],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (1 if how == "error" else 0)
    assert done.stderr.strip() == ("stopped" if how == "error" else "")


def test_loading_tells_how_far_it_is() -> None:
    b = Builder()
    x = b.embed(b.tokens(), b.declare("x", "F32", (4, 64)), name="x")
    y = b.linear(x, b.declare("a", "F32", (16, 64)), name="y")
    z = b.linear(x, b.declare("b", "F16", (20, 64)), name="z")
    small = Memory()
    small.put_floats("x", np.ones((4, 64)))
    small.put_floats("a", np.ones((16, 64)))
    small.put("b", "F16", (20, 64), np.ones((20, 64), np.float16).view(np.uint8))
    made = compile_for("scalar", graph_of({"y": y, "z": z}))
    seen: list[tuple[str, int, int]] = []
    load = LoadOptions(progress=lambda *a: seen.append(a))
    CpuDevice(made, small, threads=1, n_ctx=64, n_pages=1, load=load).close()
    assert seen[-1][1] == seen[-1][2] == sum(w.nbytes for w in made.packed)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
