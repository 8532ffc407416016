"""The memory accesses of a loop tree, as code generation sees them: one offset each, loops by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .index.index import Index, Loaded, Var, atoms
from .kernel import Assign, Fold, Loop, Statement, Update
from .program import Reduction, StoreMode
from .value import Load, Rewriter, Value, walk


@dataclass(frozen=True)
class Access:
    """One load or store.

    Args:
        buffer: its name.
        offset: in elements.
        inner: the innermost loop around it, None outside of all.
        stored: whether it is a store, and `mode` the store's.
    """

    buffer: str
    offset: Any
    inner: Var | None
    stored: bool = False
    mode: StoreMode | None = None


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement of a body, outer ones before what is in them."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, Fold)):
            yield from statements(statement.body)


def nests(body: Sequence[Statement]) -> list[tuple[tuple[Var, ...], tuple[Statement, ...]]]:
    """The launches of a body: for each, the parallel loops around all of it, outermost first, and their contents."""
    if not any(isinstance(s, Loop) and s.parallel for s in body):
        return [((), tuple(body))]
    return [_peeled(statement) for statement in body]


def _peeled(statement: Statement) -> tuple[tuple[Var, ...], tuple[Statement, ...]]:
    loops: list[Var] = []
    body: tuple[Statement, ...] = (statement,)
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        loops.append(body[0].var)
        body = body[0].body
    return tuple(loops), body


def roots(statement: Statement) -> tuple[Value, ...]:
    """The values in a statement's own line, those that are read to find indices included."""
    if isinstance(statement, Update):
        return statement.reduction.values
    if not isinstance(statement, Assign):
        return ()
    return (*index_values(statement.store.indices[0]), statement.store.value)


def index_values(number: Any) -> tuple[Value, ...]:
    """The values that an index reads from memory."""
    return tuple(a.value for a in atoms(number) if isinstance(a, Loaded)) if isinstance(number, Index) else ()


def values(body: Iterable[Statement]) -> Iterator[Value]:
    """Every value in a body, operands first."""
    return walk([value for statement in statements(body) for value in roots(statement)])


def accesses(body: Iterable[Statement], inner: Var | None = None) -> Iterator[Access]:
    """Every access in a body."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from accesses(statement.body, statement.var)
        elif isinstance(statement, Fold):
            yield from accesses(statement.body, inner)
        else:
            yield from _own(statement, inner)


def _own(statement: Statement, inner: Var | None) -> Iterator[Access]:
    for value in walk(roots(statement)):
        if isinstance(value, Load):
            yield Access(value.buffer, value.indices[0], inner)
    if isinstance(statement, Assign):
        store = statement.store
        yield Access(store.buffer, store.indices[0], inner, True, store.mode)


def stored_buffers(body: Iterable[Statement]) -> set[str]:
    """The buffers that a body writes to."""
    return {s.store.buffer for s in statements(body) if isinstance(s, Assign)}


def loaded_buffers(body: Iterable[Statement]) -> set[str]:
    """The buffers that a body loads from."""
    return {v.buffer for v in values(body) if isinstance(v, Load)}


def updated(body: Iterable[Statement]) -> dict[str, Reduction]:
    """The reductions that a body updates, by name."""
    return {s.reduction.name: s.reduction for s in statements(body) if isinstance(s, Update)}


def loop_variables(body: Iterable[Statement]) -> set[Var]:
    """The variables of the loops in a body."""
    return {s.var for s in statements(body) if isinstance(s, Loop)}


def rewritten(statement: Statement, rewrite: Rewriter) -> Statement:
    """A statement whose indices and values, and those of the statements in it, are rewritten."""
    if isinstance(statement, Assign):
        store = statement.store
        indices = tuple(map(rewrite.index, store.indices))
        return Assign(replace(store, indices=indices, value=rewrite(store.value)))
    if isinstance(statement, Update):
        return Update(_rewritten(statement.reduction, rewrite))
    body = tuple(rewritten(inner, rewrite) for inner in statement.body)
    if isinstance(statement, Fold):
        return Fold(tuple(_rewritten(r, rewrite) for r in statement.reductions), body)
    return replace(statement, body=body)


def _rewritten(reduction: Reduction, rewrite: Rewriter) -> Reduction:
    return replace(reduction, values=tuple(map(rewrite, reduction.values)))
