"""Looking inside: a model's IR, plan and assembly, and the ladder of KINETIC_DEBUG."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kinetic import families, settings
from kinetic.codegen.pipeline import CPU_PASSES, kernel_functions, run_passes
from kinetic.codegen.pipeline import schedule as make_schedule
from kinetic.codegen.targets.llvm_x86 import CpuTarget, assembly, cpu_target, module_text
from kinetic.errors import UsageError
from kinetic.ir.gguf_split import open_model
from kinetic.ir.graph import Graph
from kinetic.ir.program import Launch


def notice(text: str) -> None:
    """A line on stderr that a user should see."""
    print(f"kinetic: {text}", file=sys.stderr)


def debug(level: int, text: str) -> None:
    """A line for those who set KINETIC_DEBUG to `level` or more."""
    if settings.debug_level() >= level:
        notice(text)


def debug_compiled(graph: Graph, target: CpuTarget) -> None:
    """Levels 3 to 6 of the ladder: plan, IR after each pass, LLVM IR, assembly."""
    level = settings.debug_level()
    if level >= 3:
        debug(3, "plan\n" + _plan_text(graph, target))
    if level >= 4:
        run_passes(graph, observe=lambda name, after: debug(4, f"after {name}\n{after}"))
    if level >= 5:
        source = module_text(target, kernel_functions(make_schedule(run_passes(graph), target)))
        debug(5, "LLVM IR\n" + source)
        if level >= 6:
            debug(6, "assembly\n" + assembly(target, source))


def show(
    path: str | os.PathLike[str] | Path,
    *,
    after: str | None = None,
    plan: bool = False,
    asm: str | None = None,
    device_class: str | None = None,
) -> str:
    """The IR of a model, after a pass if one is named; or its plan; or a kernel's assembly.

    *Raises* `UsageError` for an unknown pass or kernel.
    """
    graph, target = _graph(path), cpu_target(device_class)
    if plan:
        return _plan_text(graph, target)
    if asm is not None:
        return _assembly_of(graph, target, asm)
    return str(run_passes(graph, after=after) if after else graph)


def show_names(path: str | os.PathLike[str] | Path, *, device_class: str | None = None) -> str:
    """The passes and kernels that `show` can be asked for."""
    made = make_schedule(run_passes(_graph(path)), cpu_target(device_class))
    lines = ["passes:", *(f"  {p.name:16} {p.sentence}" for p in CPU_PASSES), "kernels:"]
    return "\n".join(lines + [f"  {name}" for name in sorted(made.kernels)]) + "\n"


def _graph(path: str | os.PathLike[str] | Path) -> Graph:
    with open_model(path) as file:
        return families.build(file)


def _plan_text(graph: Graph, target: CpuTarget) -> str:
    made = make_schedule(run_passes(graph), target)
    lines = [f"{len(made.launches)} launches, arena {made.arena_bytes / 2**20:.1f} MiB"]
    lines += [_launch_text(i, launch) for i, launch in enumerate(made.launches)]
    return "\n".join(lines) + "\n"


def _launch_text(index: int, launch: Launch) -> str:
    args = ", ".join(f"{a.kind.name.lower()} {a.value}".rstrip() for a in launch.args)
    barrier = " | barrier" if launch.barrier else ""
    return f"{index:4} {launch.kernel}({args}) -> %{launch.node}{barrier}"


def _assembly_of(graph: Graph, target: CpuTarget, kernel: str) -> str:
    made = make_schedule(run_passes(graph), target)
    if kernel not in made.kernels:
        names = ", ".join(sorted(made.kernels))
        raise UsageError(f"no kernel of this model is called {kernel!r}; it has {names}")
    only = [*made.kernels[kernel]()]
    known = {f.name for f in only}
    needed = [f for f in kernel_functions(made) if f.name in known]
    return assembly(target, module_text(target, needed))
