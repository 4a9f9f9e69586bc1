"""Tensors as a wrong file might have them."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

Shapes = dict[str, tuple[int, ...]]


@st.composite
def damaged(draw: st.DrawFn, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The shapes of a file's tensors, none, one or two of them missing, turned, of another size or
    rank, or with a companion that nobody knows."""
    found = dict(shapes)
    for name in draw(st.lists(st.sampled_from([*shapes]), max_size=2, unique=True)):
        shape = found.pop(name)
        changed = {
            "missing": {},
            "turned": {name: shape[::-1]},
            "deeper": {name: (*shape, 1)},
            "flat": {name: shape[:1]},
            "wider": {name: (*shape[:-1], shape[-1] + 1)},
            "longer": {name: (shape[0] + 1, *shape[1:])},
            "more": {name: shape, f"{name}.scale": shape[:1]},
        }
        found |= changed[draw(st.sampled_from([*changed]))]
    return found
