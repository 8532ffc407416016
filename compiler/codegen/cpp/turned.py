"""Accesses that are scattered over lanes but contiguous along a loop inside: blocks of them are transposed.

lanes of i: for j: y[96*i + j] = f(i, j)   ->   for 16 j at a time: 16 vectors of f, transposed, stored as 16 rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.accesses import accesses, statements, stored_buffers, values
from ...ir.dependence import Dependence
from ...ir.index.bounds import bounds
from ...ir.index.index import Var
from ...ir.kernel import Assign, Loop, Update
from ...ir.program import Store
from ...ir.value import Guarded, Load

_NEAR = 4  # elements between lanes up to which whole vectors are read, and lanes chosen from them
_LEAST = 5  # elements of a row from which on blocks of rows are transposed, though no row fills a vector
ANYWHERE = 1 << 40  # a stride that holds for so many lanes holds for any offset


@dataclass(frozen=True)
class Turned:
    """What of a loop is read and written as rows along it, while a loop around it runs in lanes."""

    loads: tuple[Load, ...]
    stores: tuple[Store, ...]


def turned(loop: Loop, lane: Var, lanes: int, dependence: Dependence) -> Turned | None:
    """The accesses of a loop inside a loop of lanes that are better made row by row; None where there are none.

    Args:
        loop: the inner loop.
        lane: the variable whose values lanes are; its iterations are independent.
        lanes: how many.
        dependence: of the kernel's values.
    """
    low, high = bounds(loop.var.extent)
    if high is not None and high < (_LEAST if low == high else lanes):
        return None
    if any(not isinstance(s, (Assign, Update)) for s in loop.body):
        return None
    found = list(values(loop.body))
    if any(isinstance(v, Guarded) for v in found):
        return None
    rows = lambda offset: is_row(offset, loop.var, lane, dependence)  # noqa: E731
    written = stored_buffers(loop.body)
    loads = tuple(v for v in found if isinstance(v, Load) and v.buffer not in written and rows(v.indices[0]))
    touched = [a.buffer for a in accesses(loop.body)]
    stores = tuple(
        s.store
        for s in loop.body
        if isinstance(s, Assign)
        and s.store.mode is None
        and touched.count(s.store.buffer) == 1
        and rows(s.store.indices[0])
    )
    return Turned(loads, stores) if loads or stores else None


def is_row(offset: Any, var: Var, lane: Var, dependence: Dependence) -> bool:
    """Whether an access moves by one element along `var`, and by as many for all lanes."""
    step = dependence.stride(offset, lane, ANYWHERE)
    if step is None or (isinstance(step, int) and abs(step) <= _NEAR):
        return False
    return dependence.stride(offset, var, ANYWHERE) == 1


def turned_inside(loop: Loop, lanes: int, dependence: Dependence) -> dict[int, Turned]:
    """The same for all loops inside of one that runs in lanes, by their identity."""
    inner: Sequence[Loop] = [s for s in statements(loop.body) if isinstance(s, Loop)] if loop.parallel else []
    found = {id(s): turned(s, loop.var, lanes, dependence) for s in inner}
    return {key: made for key, made in found.items() if made is not None}
