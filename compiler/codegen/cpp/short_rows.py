"""Folds of short rows: lanes run across rows, since lanes along a row would mostly be joined.

for i < 4096: fold (for j < 18: ...)   ->   16 rows at a time, read as transposed blocks, without joins

With lanes along `j`, a fold of 18 numbers takes two vectors, one of which has two lanes, and four dependent steps that
join lanes; computations with the result run row by row. With lanes along `i`, all of this has full lanes, at the cost
of a few shuffles for each element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ir.accesses import accesses, loop_variables, roots, updated, values
from ...ir.dependence import Dependence
from ...ir.kernel import Fold, Loop, Statement
from ...ir.ops import OPS
from ...ir.reducers import REDUCERS
from ...ir.value import Op, Value, walk
from .turned import ANYWHERE, Turned

_JOINS = 16  # cost of joining the lanes of a fold, in cheap operations
_ALONE = 10  # the same for the only fold of a row, of one component: joins of several rows overlap
_WAITS = 52  # the same for a fold of functions, which depend on the previous row
_TURN = 3  # cost of transposing a row for each of its vectors, in cheap operations
_COSTLY = 12  # cost of a function, in cheap operations
_BLOCKS = 4  # number of vectors of rows from which on lanes across rows are worthwhile


def rows_pay(loop: Loop, lanes: int, rows: dict[int, Turned], dependence: Dependence, expanded: frozenset[str]) -> bool:
    """Whether lanes along `loop` save more than the transposition of the rows of its inner loops costs.

    Args:
        loop: a loop of independent iterations that contain folds.
        lanes: the lanes of a vector.
        rows: the accesses that inner loops make row by row, by the identity of the loop.
        dependence: the variables that each value of the kernel depends on.
        expanded: scratch buffers that have an element for each lane.
    """
    extent = loop.var.extent
    if not loop.parallel or not isinstance(extent, int) or extent < _BLOCKS * lanes or not updated(loop.body):
        return False
    joins = _joins(loop)
    gain = float(_COSTLY * sum(map(_is_costly, set(_outside(loop.body)))))
    for inner in _inner(loop.body):
        if not isinstance(inner.var.extent, int) or loop_variables(inner.body):
            return False
        if _scatters(inner, loop, rows, dependence, expanded):
            return False
        turned, whole = rows.get(id(inner)), inner.var.extent / lanes
        moved = 0 if turned is None else len(turned.loads) + len(turned.stores)
        found = set(values(inner.body))
        costly = sum(map(_is_costly, found))
        work = len(found) + (_COSTLY - 1) * costly
        gain += (-(-inner.var.extent // lanes) - whole) * work - whole * _TURN * moved
        gain += (_WAITS if costly else joins) * len(updated(inner.body))
    return gain > 0


def _joins(loop: Loop) -> int:
    """The cost of joining the lanes of each fold of a row."""
    found = updated(loop.body).values()
    return _ALONE if [len(REDUCERS[r.reducer].components) for r in found] == [1] else _JOINS


def _inner(body: Iterable[Statement]) -> list[Loop]:
    """The outermost loops of statements."""
    found: list[Loop] = []
    for statement in body:
        if isinstance(statement, Fold):
            found += _inner(statement.body)
        elif isinstance(statement, Loop):
            found.append(statement)
    return found


def _scatters(
    inner: Loop, loop: Loop, rows: dict[int, Turned], dependence: Dependence, expanded: frozenset[str]
) -> bool:
    """Whether an inner loop accesses memory otherwise than by rows, contiguously, or at one place for all lanes."""
    turned = rows.get(id(inner))
    known = {(v.buffer, v.indices[0]) for v in turned.loads} if turned else set()
    known |= {(s.buffer, s.indices[0]) for s in turned.stores} if turned else set()
    return any(
        (a.buffer, a.offset) not in known
        and a.buffer not in expanded
        and dependence.stride(a.offset, loop.var, ANYWHERE) not in (0, 1)
        for a in accesses(inner.body)
    )


def _outside(body: Iterable[Statement]) -> Iterator[Value]:
    """The values that are computed once for each row."""
    for statement in body:
        if isinstance(statement, Fold):
            yield from _outside(statement.body)
        elif not isinstance(statement, Loop):
            yield from walk(roots(statement))


def _is_costly(value: Value) -> bool:
    return isinstance(value, Op) and OPS[value.name].costly


__all__ = ["rows_pay"]
