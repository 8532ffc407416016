"""Packing: small kernels next to each other become one, their loops one after the other.

    k1: for i < 64: ...                                 k1: for i < 64: ...
    k2: for j < 16: ...                            ->       for j < 16: ...

A launch is saved, and small loops have no parallelism to lose. Likewise updates of parameters in
place, of any size: optimizer steps are many independent loops over memory that is there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.program import Buffer
from .fusion import Step
from .legality import MAX_BUFFERS, MAX_MEMBERS, is_small, side_by_side
from .members import Axes, Group
from .profit import bytes_of, touched, written


def packed(steps: Sequence[Step], buffers: Mapping[str, Buffer], axes: Axes) -> list[Step]:
    """Steps in order, neighbouring small kernels packed; `axes` gives out axes, those of the groups are its own."""
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else None
        if isinstance(last, Group) and isinstance(step, Group) and _packs(last, step, buffers):
            shared = sorted(touched(last) & touched(step), key=lambda name: (-bytes_of(buffers[name]), name))
            found[-1] = Group(side_by_side(last, step, shared, axes).members, (), last.key)
        else:
            found.append(step)
    return found


def _packs(a: Group, b: Group, buffers: Mapping[str, Buffer]) -> bool:
    names = touched(a) | touched(b)
    if len(a.members) + len(b.members) > MAX_MEMBERS or len(names) > MAX_BUFFERS:
        return False
    if len({buffers[name].device for name in written(a) | written(b)}) > 1:
        return False
    return is_small((*a.members, *b.members)) or (_updates(a, buffers) and _updates(b, buffers))


def _updates(group: Group, buffers: Mapping[str, Buffer]) -> bool:
    """Whether all that a group writes is there before the program runs."""
    return all(buffers[name].kind != "made" for name in written(group))
