"""Parts of definitions that nobody reads: stores, and places of extrema.

fold argmax over j of (x[i, j], j): y[i] = fold; p[i] = fold.1     ->   fold max over j of x[i, j]: y[i] = fold

The second store goes if nothing reads `p`, and with it the place: a fold of extrema alone takes half of the time. It
gives zeros of any sign where they are equal, so that the place stays where the sign may show (`zeros.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ..ir.program import Definition, Item, Program, Reduction
from ..ir.reducers import REDUCERS
from ..ir.value import Result, Value, walk
from .dependences import checked, effects, roots
from .zeros import is_unsigned, seen_signs, unsigned_buffers


def without_unread(items: Iterable[Item], program: Program) -> list[Item]:
    """The items of a program, with only the stores that something reads, and the folds that these stores need."""
    items = list(items)
    wanted = {*program.outputs, *(name for name, b in program.buffers.items() if b.kind != "made")}
    wanted = wanted.union(*(effects(item).reads for item in items))
    less = [_stored_part(item, wanted) if isinstance(item, Definition) else item for item in items]
    if not any(REDUCERS[r.reducer].wins for item in less if isinstance(item, Definition) for r in item.reductions):
        return less
    signs, unsigned = seen_signs(less, program), unsigned_buffers(less, program)
    return [_folded_part(item, signs, unsigned) if isinstance(item, Definition) else item for item in less]


def _stored_part(item: Definition, wanted: Collection[str]) -> Definition:
    """A definition without the stores that are not `wanted`; scans stay as they are."""
    if item.scan or not item.reductions:
        return item
    stores = tuple(s for s in item.stores if s.buffer in wanted)
    less = replace(item, stores=stores)
    return less if stores and checked(less) == checked(item) else item


def _folded_part(item: Definition, signs: set[Value | str], unsigned: set[str]) -> Definition:
    """A definition that folds no places of which it reads none."""
    if item.scan or not item.reductions:
        return item
    read = {v for v in walk(roots(replace(item, reductions=()))) if isinstance(v, Result)}
    placed = {v.reduction for v in read if v.component == 1}
    signed = {v.reduction for v in read & signs}
    return replace(
        item,
        reductions=tuple(
            r if r.name in placed or (r.name in signed and _may_be_minus_zero(r.values[0], unsigned)) else _alone(r)
            for r in item.reductions
        ),
    )


def _may_be_minus_zero(value: Value, unsigned: set[str]) -> bool:
    return value.dtype.is_floating_point and not is_unsigned(value, unsigned)


def _alone(reduction: Reduction) -> Reduction:
    wins = REDUCERS[reduction.reducer].wins
    return reduction if wins is None else replace(reduction, reducer=wins[1], values=reduction.values[:1])


__all__ = ["without_unread"]
