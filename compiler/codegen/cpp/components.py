"""Components of small vectors (points, corners of boxes, quaternions) side by side: lanes run along the vectors.

for i: for c < 3: t[3*i + c] = f(x[3*i + c])          for i: t[3*i] = a; t[3*i + 1] = b; t[3*i + 2] = c
       for c < 3: y[3*i + c] = t[3*i + (c+1)%3]  ->          y[3*i] = b; y[3*i + 1] = c; y[3*i + 2] = a

Interleaved accesses become whole vectors (`woven.py`), and nothing that an iteration has stored is read from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...ir.accesses import accesses, loaded_buffers, statements, values
from ...ir.dependence import Dependence
from ...ir.index.index import Var, sub
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ...ir.program import Store
from ...ir.value import Load, Number, Rewriter, Value, walk
from .plan import weight_of
from .turned import ANYWHERE
from .woven import MOST, in_turns

_CODE = 256  # operations of the unrolled body, at most
_LONG = 16  # fewest iterations of the loop that will run in lanes


def unroll_components(kernel: Kernel) -> Kernel:
    """The kernel in which loops over the components of small vectors are unrolled."""
    dtypes = {b.name: b.dtype for b in (*kernel.scratch, *(p.buffer for p in kernel.params))}
    own = {b.name for b in kernel.scratch}
    body = tuple(_statement(s, dtypes, own) for s in kernel.body)
    if body == kernel.body:
        return kernel
    unread = own - loaded_buffers(body)
    scratch = tuple(b for b in kernel.scratch if b.name not in unread)
    return replace(kernel, body=_without(body, unread), scratch=scratch)


def _statement(statement: Statement, dtypes: dict[str, torch.dtype], own: set[str]) -> Statement:
    if not isinstance(statement, Loop):
        return statement
    made = _unrolled(statement, dtypes, own)
    if made is not None:
        return made
    body = tuple(_statement(s, dtypes, own) for s in statement.body)
    return statement if body == statement.body else replace(statement, body=body)


def _unrolled(loop: Loop, dtypes: dict[str, torch.dtype], own: set[str]) -> Loop | None:
    """The loop with its short loops unrolled; None where that is not possible, or does not pay."""
    short = [s for s in statements(loop.body) if isinstance(s, Loop)]
    extent = loop.var.extent
    if not loop.parallel or (isinstance(extent, int) and extent < _LONG) or len(short) < 2:
        return None
    if not all(_is_short(s) for s in short) or any(
        isinstance(s, Assign) and s.store.mode for s in statements(loop.body)
    ):
        return None
    if any(isinstance(s, Assign) for fold in loop.body if isinstance(fold, Fold) for s in statements(fold.body)):
        return None
    made = tuple(_forwarded(_flat(loop.body), dtypes))
    small = sum(map(weight_of, set(values(made)))) <= _CODE
    return replace(loop, body=made) if small and _alternates(made, loop.var, own) else None


def _is_short(loop: Loop) -> bool:
    extent = loop.var.extent
    return isinstance(extent, int) and 2 <= extent <= MOST and all(isinstance(s, (Assign, Update)) for s in loop.body)


def _flat(body: Iterable[Statement]) -> Iterator[Statement]:
    """Statements with those of short loops one after the other."""
    for statement in body:
        if isinstance(statement, Fold):
            yield Fold(statement.reductions, tuple(_flat(statement.body)))
        elif isinstance(statement, Loop):
            places = range(statement.var.extent)  # type: ignore[arg-type]
            yield from (_at(inner, {statement.var: place}) for place in places for inner in statement.body)
        else:
            yield statement


def _at(statement: Statement, by: dict[Any, Any]) -> Statement:
    """A statement of a short loop in one of its iterations."""
    return _with(statement, Rewriter(atom=by.get))


def _forwarded(body: Iterable[Statement], dtypes: dict[str, torch.dtype]) -> Iterator[Statement]:
    """Statements that compute with what was stored before, in place of loads."""
    known: dict[tuple[str, Any], Value] = {}

    def stored(value: Value) -> Value | None:
        return known.get((value.buffer, value.indices[0])) if isinstance(value, Load) else None

    for statement in body:
        now = Rewriter(value=stored)
        if isinstance(statement, Fold):
            yield Fold(statement.reductions, tuple(_with(s, now) for s in statement.body))
            continue
        assign = _with(statement, now)
        yield assign
        assert isinstance(assign, Assign), assign
        store = assign.store
        known = {key: value for key, value in known.items() if not _overwrites(store, key, value)}
        if dtypes[store.buffer] == store.value.dtype and not _reads(store.value, store.buffer):
            known[store.buffer, store.indices[0]] = store.value


def _with(statement: Statement, now: Rewriter) -> Statement:
    """A statement with values rewritten."""
    if isinstance(statement, Update):
        return Update(replace(statement.reduction, values=tuple(map(now, statement.reduction.values))))
    assert isinstance(statement, Assign), statement
    store = statement.store
    return Assign(replace(store, indices=tuple(map(now.index, store.indices)), value=now(store.value)))


def _overwrites(store: Store, place: tuple[str, Any], value: Value) -> bool:
    """Whether a store may change what is known: the element at `place`, or memory that `value` or the place reads."""
    if _reads(value, store.buffer) or _reads(Number(place[1], torch.int64), store.buffer):
        return True
    away = sub(place[1], store.indices[0])
    return place[0] == store.buffer and not (isinstance(away, int) and away != 0)


def _reads(value: Value, buffer: str) -> bool:
    return any(isinstance(v, Load) and v.buffer == buffer for v in walk([value]))


def _alternates(body: Sequence[Statement], var: Var, own: set[str]) -> bool:
    """Whether stores along a loop, but those to scratch, are contiguous or interleaved, and anything is interleaved."""
    dependence, found = Dependence(), [a for a in accesses(body, var) if a.buffer not in own]
    stored = in_turns([a for a in found if a.stored], var, dependence)
    near = stored | in_turns([a for a in found if not a.stored], var, dependence)
    writes = {(a.buffer, a.offset) for a in found if a.stored} - stored
    return bool(near) and all(dependence.stride(offset, var, ANYWHERE) == 1 for _, offset in writes)


def _without(body: Iterable[Statement], unread: set[str]) -> tuple[Statement, ...]:
    """Statements without stores to buffers that nobody reads."""
    left: list[Statement] = []
    for statement in body:
        if isinstance(statement, (Loop, Fold)):
            left.append(replace(statement, body=_without(statement.body, unread)))
        elif not isinstance(statement, Assign) or statement.store.buffer not in unread:
            left.append(statement)
    return tuple(left)


__all__ = ["unroll_components"]
