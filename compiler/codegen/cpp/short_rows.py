"""Short rows that are folded, or whose neighbours are computed with: lanes run across rows.

for i < 4096: fold (for j < 18: ...)   ->   16 rows at a time, read as transposed blocks, without joins

With lanes along `j`, a fold of 18 numbers takes two vectors, one of which has two lanes, and four dependent steps that
join lanes; computations with the result run row by row. With lanes along `i`, all of this has full lanes, at the cost
of a few shuffles for each element.

for i < 4096: { for j < 11: t[j] = ...;  for j < 10: y[10*i + j] = f(t[j], t[j + 1]) }

With lanes along `j`, a vector of `t[j + 1]` lies across two vectors that have just been stored. Processors hand on
what one store wrote, but wait for the cache where it was two. With lanes along `i`, `t` has a vector for each `j`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...ir.accesses import accesses, loop_variables, roots, updated, values
from ...ir.dependence import Dependence
from ...ir.index.bounds import bounds
from ...ir.index.index import Var, mul, sub
from ...ir.kernel import Fold, Loop, Statement
from ...ir.lanes import Turned
from ...ir.ops import OPS
from ...ir.program import Store
from ...ir.reducers import REDUCERS
from ...ir.value import Load, Op, Value, walk
from .turned import ANYWHERE, APART

_JOINS = 16  # cost of joining the lanes of a fold, in cheap operations
_ALONE = 10  # the same for the only fold of a row, of one component: joins of several rows overlap
_WAITS = 52  # the same for a fold of functions, which depend on the previous row
_STORED = 16  # cost of waiting until what was stored can be read across vectors, in cheap operations
_AHEAD = 2  # operations of a row that run in the time of one of such waiting, where functions are in flight
_HELD = 1 << 15  # bytes of such rows that the first cache holds
_TURN = 3  # cost of transposing a row for each of its vectors, in cheap operations
_CALLED = 9  # the same by functions
_FAR = 10  # the same for vectors of 64 bytes from or to memory that no second cache holds
_LARGE = 1 << 22  # bytes of rows from which on they are such memory
_COSTLY = 12  # cost of a function, in cheap operations
_BLOCKS = 4  # number of vectors of rows from which on lanes across rows are worthwhile


def rows_pay(
    loop: Loop,
    lanes: int,
    rows: dict[int, Turned],
    dependence: Dependence,
    expanded: frozenset[str],
    sizes: Mapping[str, int],
) -> bool:
    """Whether lanes along `loop` save more than the transposition of the rows of its inner loops costs.

    Args:
        loop: a loop of independent iterations that contain folds, or read what they stored across vectors.
        lanes: the lanes of a vector.
        rows: the accesses that inner loops make row by row, by the identity of the loop.
        dependence: the variables that each value of the kernel depends on.
        expanded: scratch buffers that have an element for each lane.
        sizes: the bytes of an element of each buffer.
    """
    extent = loop.var.extent
    if not loop.parallel or not isinstance(extent, int) or extent < _BLOCKS * lanes:
        return False
    stored = _stored(loop, expanded, dependence)
    if not updated(loop.body) and not _are_near(loop, lanes, stored, dependence, sizes):
        return False
    joins, turn = _joins(loop), _turning(loop, lanes, rows, sizes)
    gain = float(_COSTLY * sum(map(_is_costly, set(_outside(loop.body)))))
    for inner in outermost_loops(loop.body):
        if not isinstance(inner.var.extent, int) or loop_variables(inner.body):
            return False
        if _scatters(inner, loop, rows, dependence, expanded):
            return False
        turned, whole = rows.get(id(inner)), inner.var.extent / lanes
        found = set(values(inner.body))
        costly = sum(map(_is_costly, found))
        work = len(found) + (_COSTLY - 1) * costly
        gain += (-(-inner.var.extent // lanes) - whole) * work - whole * sum(turn[v.buffer] for v in _moved(turned))
        gain += (_WAITS if costly else joins) * len(updated(inner.body))
        if _is_shifted(inner, stored, dependence):
            gain += max(0, _WAITS - -(-inner.var.extent // lanes) * work / _AHEAD) if costly else _STORED
    return gain > 0


def _stored(loop: Loop, expanded: frozenset[str], dependence: Dependence) -> dict[str, set[tuple[Any, Any]]]:
    """How each scratch buffer is stored: the step from one iteration of an inner loop to the next, and the start."""
    found: dict[str, set[tuple[Any, Any]]] = {}
    for access in accesses(loop.body, loop.var):
        if access.stored and access.buffer in expanded:
            found.setdefault(access.buffer, set()).add(_places(access.offset, access.inner, dependence))
    return found


def _places(offset: Any, var: Var | None, dependence: Dependence) -> tuple[Any, Any]:
    """The step of an offset along a loop, and where it starts; no step where there is none."""
    step = 0 if var is None else dependence.stride(offset, var, ANYWHERE)
    return step, sub(offset, mul(step, var.index())) if var is not None and step is not None else offset


def _is_shifted(inner: Loop, stored: Mapping[str, set[tuple[Any, Any]]], dependence: Dependence) -> bool:
    """Whether a loop reads scratch in other vectors than it was stored in: shifted, reversed, or in strides."""
    for access in accesses(inner.body, inner.var):
        if not access.stored and access.buffer in stored:
            places = _places(access.offset, access.inner, dependence)
            if places[0] != 0 and stored[access.buffer] != {places}:
                return True
    return False


def _are_near(
    loop: Loop,
    lanes: int,
    stored: Mapping[str, set[tuple[Any, Any]]],
    dependence: Dependence,
    sizes: Mapping[str, int],
) -> bool:
    """Whether what iterations store in scratch is soon read across vectors, and the first cache holds it for lanes."""
    inner = outermost_loops(loop.body)
    if not any(_is_shifted(one, stored, dependence) for one in inner):
        return False
    rows = [(one.var.extent, a.buffer) for one in inner for a in accesses(one.body) if a.stored and a.buffer in stored]
    return all(isinstance(n, int) for n, _ in rows) and lanes * sum(n * sizes[name] for n, name in rows) <= _HELD


def _moved(turned: Turned | None) -> tuple[Load | Store, ...]:
    return () if turned is None else (*turned.loads, *turned.stores)


def _turning(loop: Loop, lanes: int, rows: Mapping[int, Turned], sizes: Mapping[str, int]) -> dict[str, float]:
    """The cost of transposing a vector of each buffer: of rows in large memory, each begins in another place of it."""
    moved = [v for turned in rows.values() for v in _moved(turned)]
    longest = max((bounds(inner.var.extent)[1] or 1 for inner in outermost_loops(loop.body)), default=1)
    bytes_of_row = longest * sum(sizes[name] for name in {v.buffer for v in moved})
    cost = _CALLED if len(moved) > APART else _TURN
    far = _FAR * lanes / 64 if loop.var.extent * bytes_of_row > _LARGE else 0
    return {v.buffer: max(cost, far * sizes[v.buffer]) for v in moved}


def _joins(loop: Loop) -> int:
    """The cost of joining the lanes of each fold of a row."""
    found = updated(loop.body).values()
    return _ALONE if [len(REDUCERS[r.reducer].components) for r in found] == [1] else _JOINS


def outermost_loops(body: Iterable[Statement]) -> list[Loop]:
    """The outermost loops of statements."""
    found: list[Loop] = []
    for statement in body:
        if isinstance(statement, Fold):
            found += outermost_loops(statement.body)
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
