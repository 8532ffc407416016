"""Folds of short rows: lanes along the rows' neighbours, where lanes along a row would mostly join and wait.

for i < 4096: fold (for j < 18: ...)   ->   16 rows at a time, read as blocks that are transposed, nothing to join

With lanes along `j` each fold of 18 numbers is two vectors, one of them with two lanes, and then four steps that join
lanes, one after the other; what is done with the result is done row by row. Along `i` all of that has full lanes, for
a few shuffles an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ir.accesses import accesses, loop_variables, roots, updated, values
from ...ir.dependence import Dependence
from ...ir.kernel import Fold, Loop, Statement
from ...ir.ops import OPS
from ...ir.value import Op, Value, walk
from .turned import ANYWHERE, Turned

_JOINS = 16  # cheap operations that joining the lanes of a fold takes
_WAITS = 52  # the same of a fold of functions, which wait for the row before
_TURN = 6  # cheap operations that it takes to transpose a row, for each vector of it
_COSTLY = 12  # cheap operations that take as long as a function
_BLOCKS = 4  # vectors of rows from which on lanes along them are worth it


def rows_pay(loop: Loop, lanes: int, rows: dict[int, Turned], dependence: Dependence, expanded: frozenset[str]) -> bool:
    """Whether lanes along `loop` save more than transposing what its inner loops read and write takes.

    Args:
        loop: independent iterations, each with folds inside.
        lanes: how many a vector has.
        rows: what inner loops read and write row by row, by the loop's identity.
        dependence: of the kernel's values.
        expanded: scratch that has an element for each lane.
    """
    extent = loop.var.extent
    if not loop.parallel or not isinstance(extent, int) or extent < _BLOCKS * lanes or not updated(loop.body):
        return False
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
        gain += (_WAITS if costly else _JOINS) * len(updated(inner.body))
    return gain > 0


def _inner(body: Iterable[Statement]) -> list[Loop]:
    """The loops of statements that are in no other loop of them."""
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
    """Whether an inner loop touches memory in another way than row by row, side by side, or all lanes at one place."""
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
    """What is computed once a row."""
    for statement in body:
        if isinstance(statement, Fold):
            yield from _outside(statement.body)
        elif not isinstance(statement, Loop):
            yield from walk(roots(statement))


def _is_costly(value: Value) -> bool:
    return isinstance(value, Op) and OPS[value.name].costly


__all__ = ["rows_pay"]
