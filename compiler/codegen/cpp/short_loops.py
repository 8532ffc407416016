"""Short loops over interleaved elements (colors, parts of complex numbers, windows) are unrolled into long ones.

for i: for c < 3: y[3*i + c] = f(x[1000*c + i])   ->   for i: y[3*i] = f(x[i]); y[3*i + 1] = ...; y[3*i + 2] = ...
for c < 3: for i: y[1000*c + i] = f(x[3*i + c])   ->   for i: y[i] = f(x[3*i]); y[1000 + i] = ...; ...
for i: for c < 4: y[4*i + c] = f(x[2*i + c])      ->   for i: y[4*i] = f(x[2*i]); y[4*i + 1] = ...; ...

Lanes along `i` are then full, and interleaved accesses become whole vectors (`woven.py`). Lanes along `c` would fill
three lanes of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...ir.accesses import accesses, loaded_buffers, stored_buffers, values
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement
from ...ir.value import Guarded, Rewriter
from .plan import weight_of
from .turned import ANYWHERE, NEAR
from .woven import MOST, MOST_STORED

_CODE = 128  # operations of the unrolled body, at most
_LONG = 16  # fewest iterations of the loop that will run in lanes
_FILLED = 8  # iterations of a short loop in place, or over windows, that fill enough lanes of their own


def unroll_short_loops(kernel: Kernel) -> Kernel:
    """The kernel in which short parallel loops over interleaved elements are unrolled."""
    return replace(kernel, body=tuple(map(_unrolled, kernel.body)))


def _unrolled(statement: Statement) -> Statement:
    if isinstance(statement, Fold):
        return replace(statement, body=tuple(map(_unrolled, statement.body)))
    if not isinstance(statement, Loop):
        return statement
    chain = list(parallel_chain(statement)) if statement.parallel else _pair(statement)
    body = chain[-1].body
    for short in chain if statement.parallel else chain[-1:]:
        others = [loop for loop in chain if loop is not short]
        if not others or not _interleaves(short, others[-1], body):
            continue
        made: Sequence[Statement] = [
            _copy(assign, short.var, place)
            for place in range(short.var.extent)  # type: ignore[arg-type]
            for assign in body
            if isinstance(assign, Assign)
        ]
        for loop in reversed(others):
            made = [replace(loop, body=tuple(made))]
        return made[0]
    return replace(statement, body=tuple(map(_unrolled, statement.body)))


def parallel_chain(loop: Loop) -> Iterator[Loop]:
    """Perfectly nested parallel loops."""
    yield loop
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, Loop) and inner.parallel:
        yield from parallel_chain(inner)


def _pair(loop: Loop) -> list[Loop]:
    """A loop and the only statement in it, if that is a loop: nothing is reordered where the inner one is unrolled."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    return [loop, inner] if isinstance(inner, Loop) else [loop]


def _copy(assign: Assign, var: Var, place: int) -> Assign:
    store = assign.store
    by: dict[Any, Any] = {var: place}
    here = Rewriter(atom=by.get)
    return Assign(replace(store, indices=tuple(map(here.index, store.indices)), value=here(store.value)))


def _interleaves(short: Loop, long: Loop, body: Sequence[Statement]) -> bool:
    """Whether elements of the short loop alternate in memory along the long one, and nothing else is scattered."""
    extent, length = short.var.extent, long.var.extent
    if not isinstance(extent, int) or not 2 <= extent <= MOST_STORED or (isinstance(length, int) and length < _LONG):
        return False
    if not all(isinstance(s, Assign) and s.store.mode is None for s in body):
        return False
    found = set(values(body))
    if any(isinstance(v, Guarded) for v in found) or extent * sum(map(weight_of, found)) > _CODE:
        return False
    if stored_buffers(body) & loaded_buffers(body):
        return False
    dependence, turns, fills = Dependence(), 0, short.parallel
    for access in accesses(body):
        along = dependence.stride(access.offset, long.var, ANYWHERE)
        if along == extent and dependence.stride(access.offset, short.var, ANYWHERE) == 1:
            if extent > MOST and not access.stored:
                return False
            turns += 1
        elif along != 1 and (access.stored or along not in range(NEAR + 1)):
            return False
        else:
            fills = fills and along in (0, 1)
    return turns > 0 and (fills or extent < _FILLED)


__all__ = ["unroll_short_loops"]
