"""Accesses that are scattered over lanes but contiguous along an inner loop: blocks of them are transposed.

lanes of i: for j: y[96*i + j] = f(i, j)   ->   for 16 j at a time: 16 vectors of f, transposed, stored as 16 rows
lanes of i: for j < 7: fold x[7*i + j]     ->   7 whole vectors are 16 rows, of which every seventh element is selected
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.accesses import accesses, statements, stored_buffers, values
from ...ir.dependence import Dependence
from ...ir.index.bounds import bounds
from ...ir.index.index import Var
from ...ir.kernel import Assign, Loop, Statement, Update
from ...ir.lanes import LoopTile, Turned
from ...ir.value import Guarded, Load

NEAR = 4  # distance of lanes, in elements, up to which whole vectors are read and lanes are selected from them
APART = 4  # blocks of rows of one kernel up to which each is transposed by code of its own
_LEAST = 5  # elements of a row from which on blocks of rows are transposed although no row fills a vector
IN_TURNS = (5, 6, 7, 8, 9, 10, 12)  # elements of rows that are taken apart as whole vectors
WRITTEN = 128  # operations of such rows up to which they are written one by one: more take g++ four times as long
ANYWHERE = 1 << 40  # a stride that holds for this many lanes holds for any offset


def turned(loop: Loop, lane: Var, lanes: int, dependence: Dependence) -> Turned | None:
    """The accesses of a loop, inside a loop in lanes, that are faster row by row; None if there are none.

    Args:
        loop: the inner loop.
        lane: the variable of the loop in lanes, whose iterations are independent.
        lanes: the lanes of a vector.
        dependence: the variables that each value of the kernel depends on.
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
    """Whether an access moves by one element along `var`, and by the same number of elements from lane to lane."""
    step = dependence.stride(offset, lane, ANYWHERE)
    if step is None or (isinstance(step, int) and abs(step) <= NEAR):
        return False
    return dependence.stride(offset, var, ANYWHERE) == 1


def turned_inside(loop: Loop, lanes: int, dependence: Dependence) -> dict[int, Turned]:
    """The same for all loops inside a loop in lanes, by their identity."""
    inner: Sequence[Loop] = [s for s in statements(loop.body) if isinstance(s, Loop)] if loop.parallel else []
    found = {id(s): turned(s, loop.var, lanes, dependence) for s in inner}
    return {key: made for key, made in found.items() if made is not None}


def are_apart(body: Sequence[Statement]) -> bool:
    """Whether rows are transposed by functions, and loops over them kept: with more, compiling takes minutes."""
    hows = [s.lanes for s in statements(body) if isinstance(s, Loop)]
    tiles = sum(isinstance(how, LoopTile) and how.unrolled for how in hows)
    return tiles + sum(len(how.loads) + len(how.stores) for how in hows if isinstance(how, Turned)) > APART
