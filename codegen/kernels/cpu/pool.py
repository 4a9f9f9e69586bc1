"""The native worker pool and plan executor: no Python between operations.

Each worker is a thread that entered `pool_worker` once and stays there. A step is one
call of `pool_run`: it raises the epoch, and then every thread walks the same array of
operation records, calling each kernel with its own index and meeting the others at a
barrier where the record asks for one. Workers spin a while for the next epoch, then
sleep on it (a futex on Linux; elsewhere they yield).
"""

from __future__ import annotations

import sys

from kinetic.codegen.targets.llvm_ir import Function, Value
from kinetic.ir.cpu_abi import (
    OP_BARRIER,
    OP_KERNEL,
    OP_SIZE,
    POOL_ARRIVALS,
    POOL_COUNT,
    POOL_COUNTERS,
    POOL_OPS,
    POOL_SLEEPERS,
    POOL_SPINS,
    POOL_STOP,
    POOL_THREAD_LINES,
    POOL_THREADS,
    WORD,
)

_FUTEX = 202
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_YIELD_EVERY = 4095


def _yield(k: Function) -> None:
    name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    k.call(name, "i32")


def _load_acquire(k: Function, address: Value) -> Value:
    return k.emit(f"load atomic i64, ptr {address.ref} seq_cst, align 8", "i64")


def _spin_until(k: Function, address: Value, reached: str, goal: Value) -> None:
    """Wait until the word at `address` compares as `reached` with `goal`."""
    entry, spin, wait, rest, again, done = (
        k.new_label(p) for p in ("entry", "spin", "wait", "rest", "again", "done")
    )
    k.branch(entry)
    k.label(entry)
    k.branch(spin)
    k.label(spin)
    count = k.new_label("%n")
    k.line(f"{count} = phi i64 [ 0, %{entry} ], [ {count}.next, %{again} ]")
    now = _load_acquire(k, address)
    k.line(f"br i1 {now.compare(reached, goal).ref}, label %{done}, label %{wait}")
    k.label(wait)
    k.call("llvm.x86.sse2.pause", "void")
    k.line(f"{count}.next = add i64 {count}, 1")
    tired = Value(k, "i64", f"{count}.next") & _YIELD_EVERY
    k.line(f"br i1 {tired.compare('eq', 0).ref}, label %{rest}, label %{again}")
    k.label(rest)
    _yield(k)
    k.branch(again)
    k.label(again)
    k.branch(spin)
    k.label(done)


def _barrier() -> Function:
    k = Function("pool_barrier", (("ptr", "pool"), ("i64", "ith"), ("i64", "nth")))
    mine = k.gep(k.arg["pool"], k.arg["ith"] * 64 + POOL_THREAD_LINES)
    goal = k.load("i64", mine, align=8) + k.arg["nth"]
    k.store(goal, mine, align=8)
    arrivals = k.gep(k.arg["pool"], POOL_ARRIVALS)
    k.emit(f"atomicrmw add ptr {arrivals.ref}, i64 1 seq_cst", "i64")
    _spin_until(k, arrivals, "sge", goal)
    return k.ret()


def _walk() -> Function:
    """Run every operation record of the plan, on this thread's share."""
    k = Function("pool_walk", (("ptr", "pool"), ("i64", "ith")))
    pool, ith = k.arg["pool"], k.arg["ith"]
    ops = k.load("ptr", pool, POOL_OPS, align=8)
    count = k.load("i64", pool, POOL_COUNT, align=8)
    nth = k.load("i64", pool, POOL_THREADS, align=8)
    with k.loop(0, count) as i:
        op = k.gep(ops, i.index * OP_SIZE)
        kernel = k.load("ptr", op, OP_KERNEL, align=8)
        k.line(f"call void {kernel.ref}(ptr {op.ref}, i64 {ith.ref}, i64 {nth.ref})")
        meet = k.load("i64", op, OP_BARRIER, align=8).compare("ne", 0)
        with k.if_(meet):
            k.call_local("pool_barrier", "void", pool, ith, nth)
    return k.ret()


def _worker() -> Function:
    k = Function("pool_worker", (("ptr", "pool"), ("i64", "ith")))
    pool, ith = k.arg["pool"], k.arg["ith"]
    sleepers = k.gep(pool, POOL_SLEEPERS)
    spins = k.load("i64", pool, POOL_SPINS, align=8)
    outer, spin, pause, sleep, nap, go, run, fin = (
        k.new_label(p) for p in ("outer", "spin", "pause", "sleep", "nap", "go", "run", "fin")
    )
    k.branch(outer)
    k.label(outer)
    k.line(f"%seen = phi i64 [ 0, %entry ], [ %epoch, %{run} ]")
    k.branch(spin)
    k.label(spin)
    k.line(f"%n = phi i64 [ 0, %{outer} ], [ %n.next, %{pause} ], [ 0, %{nap} ]")
    k.line(f"%epoch = load atomic i64, ptr {pool.ref} seq_cst, align 8")
    k.line("%changed = icmp ne i64 %epoch, %seen")
    k.line(f"br i1 %changed, label %{go}, label %{pause}")
    k.label(pause)
    k.call("llvm.x86.sse2.pause", "void")
    k.line("%n.next = add i64 %n, 1")
    k.line(f"%tired = icmp sgt i64 %n.next, {spins.ref}")
    k.line(f"br i1 %tired, label %{sleep}, label %{spin}")
    k.label(sleep)
    k.emit(f"atomicrmw add ptr {sleepers.ref}, i64 1 seq_cst", "i64")
    _sleep(k, pool)
    k.emit(f"atomicrmw sub ptr {sleepers.ref}, i64 1 seq_cst", "i64")
    k.branch(nap)
    k.label(nap)
    k.branch(spin)
    k.label(go)
    stop = k.load("i64", pool, POOL_STOP, align=8).compare("ne", 0)
    k.line(f"br i1 {stop.ref}, label %{fin}, label %{run}")
    k.label(run)
    k.call_local("pool_walk", "void", pool, ith)
    k.branch(outer)
    k.label(fin)
    return k.ret()


def _sleep(k: Function, pool: Value) -> None:
    """Sleep until the epoch is no longer `%seen`; may wake early."""
    if sys.platform == "linux":
        k.declares.add("declare i64 @syscall(i64, ...)")
        k.line("%low = trunc i64 %seen to i32")
        k.emit(
            f"call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr {pool.ref}, i64 {_WAIT_PRIVATE}, "
            "i32 %low, ptr null, ptr null, i32 0)",
            "i64",
        )
    elif sys.platform == "win32":
        k.declares.add("declare void @Sleep(i32)")
        k.line("call void @Sleep(i32 1)")
    else:
        _yield(k)


def _run() -> Function:
    k = Function("pool_run", (("ptr", "pool"),))
    pool = k.arg["pool"]
    counters = k.load("ptr", pool, POOL_COUNTERS, align=8)
    with k.loop(0, k.load("i64", pool, POOL_COUNT, align=8)) as i:
        k.store(k.zero("i64"), counters, i.index * WORD, align=8)
    k.emit(f"atomicrmw add ptr {pool.ref}, i64 1 seq_cst", "i64")
    if sys.platform == "linux":
        asleep = _load_acquire(k, k.gep(pool, POOL_SLEEPERS)).compare("ne", 0)
        k.declares.add("declare i64 @syscall(i64, ...)")
        with k.if_(asleep):
            k.emit(
                f"call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr {pool.ref}, "
                f"i64 {_WAKE_PRIVATE}, i32 2147483647)",
                "i64",
            )
    going = k.load("i64", pool, POOL_STOP, align=8).compare("eq", 0)
    with k.if_(going):
        k.call_local("pool_walk", "void", pool, k.const("i64", 0))
    return k.ret()


def pool() -> list[Function]:
    """The pool's functions. Python calls `pool_worker(pool, i)` and `pool_run(pool)`.

    `pool_run` returns when thread 0 is done, so a plan's last operation asks for a
    barrier.
    """
    return [_barrier(), _walk(), _worker(), _run()]
