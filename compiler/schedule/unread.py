"""Parts of definitions that nobody reads: stores, and places of extrema.

fold argmax over j of (x[i, j], j): y[i] = fold; p[i] = fold.1     ->   fold max over j of x[i, j]: y[i] = fold

The second store goes if nothing reads `p`, and with it the place: a fold of extrema alone takes half of the time. Zeros
of both signs are equal: which of them is given is then left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ..ir.program import Definition, Item, Program, Reduction
from ..ir.value import Result, walk
from .dependences import checked, effects, values_in

_ALONE = {"argmax": "max", "argmin": "min"}


def without_unread(items: Iterable[Item], program: Program) -> list[Item]:
    """The items of a program, which only store what something reads, and fold what these stores need."""
    items = list(items)
    wanted = {*program.outputs, *(name for name, b in program.buffers.items() if b.kind != "made")}
    wanted = wanted.union(*(effects(item).reads for item in items))
    return [_read_part(item, wanted) if isinstance(item, Definition) else item for item in items]


def _read_part(item: Definition, wanted: Collection[str]) -> Definition:
    """A definition without what is not `wanted`; scans stay as they are."""
    if item.scan or not item.reductions:
        return item
    stores = tuple(s for s in item.stores if s.buffer in wanted)
    less = replace(item, stores=stores)
    if stores and checked(less) == checked(item):
        item = less
    roots = [v for s in item.stores for v in (s.value, *values_in(s.indices))]
    read = {(v.reduction, v.component) for v in walk(roots) if isinstance(v, Result)}
    return replace(item, reductions=tuple(r if (r.name, 1) in read else _alone(r) for r in item.reductions))


def _alone(reduction: Reduction) -> Reduction:
    reducer = _ALONE.get(reduction.reducer)
    return reduction if reducer is None else replace(reduction, reducer=reducer, values=reduction.values[:1])


__all__ = ["without_unread"]
