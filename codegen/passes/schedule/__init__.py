"""Scheduling: the lowered graph as kernel launches, with barriers and a memory plan.

`core.py` has the walk and its memory; the other files say what each op launches.
"""

from kinetic.codegen.passes.schedule import (
    attention,
    draft,
    encoder,
    experts,
    products,
    recurrent,
    rows,
)
from kinetic.codegen.passes.schedule.core import Schedule, Scheduler

__all__ = [
    "Schedule",
    "Scheduler",
    "attention",
    "draft",
    "encoder",
    "experts",
    "products",
    "recurrent",
    "rows",
]
