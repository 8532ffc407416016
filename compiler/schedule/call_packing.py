"""On CPUs, small kernels that follow each other become one, their loops one after the other.

    k1: for i < 64: ...                                 k1: for i < 64: ...
    k2: for j < 16: ...                            ->       for j < 16: ...

A call is saved, and small loops have no parallelism to lose. Likewise updates of parameters in
place, of any size: optimizer steps are many independent loops over memory that is there anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...rewrites.switches import allowed
from ..ir.program import Buffer
from .fusion import local_buffers
from .groups import Axes, Group, Step
from .legality import MAX_BUFFERS, MAX_MEMBERS, is_small, side_by_side
from .profit import bytes_of, touched, written
from .target import CPU, Target


def pack_calls(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], outputs: Iterable[str], axes: Axes, target: Target = CPU
) -> list[Step]:
    """Steps in order, neighbouring small kernels packed; `axes` gives out axes, those of the groups are its own."""
    local = local_buffers(steps, buffers, outputs)
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else None
        if isinstance(last, Group) and isinstance(step, Group) and _packs(last, step, buffers, local, target):
            shared = sorted(touched(last) & touched(step), key=lambda name: (-bytes_of(buffers[name]), name))
            found[-1] = Group(side_by_side(last, step, shared, axes).members, (), last.key)
        else:
            found.append(step)
    return found


def _packs(a: Group, b: Group, buffers: Mapping[str, Buffer], local: Collection[str], target: Target) -> bool:
    names = touched(a) | touched(b)
    if len(a.members) + len(b.members) > MAX_MEMBERS or len(names) > MAX_BUFFERS:
        return False
    writes = written(a) | written(b)
    if len({buffers[name].device for name in writes}) > 1:
        return False
    # Updates: all that is written is there before the program runs, or never leaves the kernel.
    updates = all(n in local or buffers[n].kind != "made" for n in writes)
    legal = updates or is_small((*a.members, *b.members), target)
    return legal and allowed("fusion", f"{a.name} beside {b.name}")
