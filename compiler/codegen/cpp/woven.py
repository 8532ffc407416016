"""Interleaved accesses: pairs of real and imaginary parts, pairs of sines and cosines, pixels of three colors.

y[2*i] = a; y[2*i + 1] = b        ->   lanes of a and b interleaved, stored as two whole vectors
x[3*i], x[3*i + 1], x[3*i + 2]    ->   every third lane of three whole vectors
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.accesses import Access, loaded_buffers, roots
from ...ir.dependence import Dependence
from ...ir.index.index import Var, sub
from ...ir.kernel import Assign, Statement
from ...ir.program import Store
from ...ir.value import Guarded, Load, Value, operands

MOST = 4  # number of interleaved loads; for more, shuffles cost more than single lanes
MOST_STORED = 8  # the same of stores, which are woven in halves
_ANYWHERE = 1 << 40  # a stride that holds for this many lanes holds for any offset


def in_turns(found: Sequence[Access], var: Var, dependence: Dependence) -> set[tuple[str, Any]]:
    """Buffers and offsets of accesses, all loads or all stores, that together cover every element along `var`."""
    rows: dict[tuple[str, int], list[tuple[Any, set[int]]]] = {}
    whole: set[tuple[str, Any]] = set()
    most = MOST_STORED if any(a.stored for a in found) else MOST
    for access in dict.fromkeys((a.buffer, a.offset) for a in found):
        step = dependence.stride(access[1], var, _ANYWHERE)
        if not isinstance(step, int) or not 2 <= step <= most:
            continue
        same = rows.setdefault((access[0], step), [])
        for first, turns in same:
            away = sub(access[1], first)
            if isinstance(away, int):
                turns.add(away % step)
                break
        else:
            same.append((access[1], {0}))
    for (buffer, step), groups in rows.items():
        starts = [first for first, turns in groups if len(turns) == step]
        whole |= {
            (buffer, a.offset) for a in found if a.buffer == buffer for s in starts if isinstance(sub(a.offset, s), int)
        }
    return whole


@dataclass(frozen=True)
class Column:
    """A load of one of the columns of a table that a loop reads together: they are selected from the same vectors.

    Args:
        first: the offset of the first column.
        place: how many columns farther on this one is.
        span: the number of columns from the first to the last one.
    """

    first: Any
    place: int
    span: int


def columns(body: Sequence[Statement], var: Var, lanes: int, dependence: Dependence) -> dict[Load, Column]:
    """Loads of interleaved elements beside each other, of those that each iteration makes."""
    rows: dict[tuple[str, int], list[list[tuple[int, Load]]]] = {}
    for load in _always_loaded(body):
        step = dependence.stride(load.indices[0], var, lanes)
        if not isinstance(step, int) or not 2 <= step <= MOST_STORED:
            continue
        groups = rows.setdefault((load.buffer, step), [])
        for group in groups:
            away = sub(load.indices[0], group[0][1].indices[0])
            if isinstance(away, int):
                group.append((away, load))
                break
        else:
            groups.append([(0, load)])
    found: dict[Load, Column] = {}
    for (_, step), groups in rows.items():
        for group in groups:
            found |= _beside(sorted(group, key=lambda member: member[0]), step)
    return found


def _beside(group: Sequence[tuple[int, Load]], step: int) -> dict[Load, Column]:
    """The columns of loads in the order of memory; single ones are left out."""
    found: dict[Load, Column] = {}
    while group:
        begin, first = group[0]
        near = [member for member in group if member[0] - begin < step]
        span = near[-1][0] - begin + 1
        if span > 1:
            found |= {load: Column(first.indices[0], away - begin, span) for away, load in near}
        group = group[len(near) :]
    return found


def _always_loaded(body: Sequence[Statement]) -> dict[Load, None]:
    """The loads of a body's own statements that no condition guards."""
    found: dict[Load, None] = {}
    stack, seen = [value for statement in body for value in roots(statement)], set[Value]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Load):
            found[value] = None
        stack += [value.condition] if isinstance(value, Guarded) else operands(value)
    return found


def woven(body: Sequence[Statement], var: Var, dependence: Dependence) -> dict[Store, tuple[Store, ...]]:
    """Groups of stores that are made together at the place of the last one; the groups of the others are empty.

    Between the first and the last store of a group, no statement writes what the group reads or reads what it writes.
    """
    found: dict[Store, tuple[Store, ...]] = {}
    for places in _by_buffer(body).values():
        stores = [s.store for s in (body[p] for p in places) if isinstance(s, Assign)]
        group = _complete(stores, var, dependence)
        between = body[places[0] : places[-1] + 1]
        if group is None or not all(isinstance(s, Assign) for s in between):
            continue
        written = {s.store.buffer for s in between if isinstance(s, Assign)}
        if stores[0].buffer in loaded_buffers(body) or written & loaded_buffers(Assign(s) for s in stores):
            continue
        found |= dict.fromkeys(stores[:-1], ()) | {stores[-1]: group}
    return found


def _by_buffer(body: Sequence[Statement]) -> Mapping[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, statement in enumerate(body):
        if isinstance(statement, Assign):
            places.setdefault(statement.store.buffer, []).append(place)
    return places


def _complete(stores: Iterable[Store], var: Var, dependence: Dependence) -> tuple[Store, ...] | None:
    """Stores in the order of memory, if their number equals the stride of an iteration."""
    by_turn: dict[Any, Store] = {}
    steps: set[Any] = set()
    first = None
    for store in stores:
        offset = store.indices[0]
        first = offset if first is None else first
        steps.add(dependence.stride(offset, var, _ANYWHERE) if store.mode is None else None)
        by_turn[sub(offset, first)] = store
    step = steps.pop() if len(steps) == 1 else None
    if not isinstance(step, int) or not 2 <= step <= MOST_STORED or not all(isinstance(turn, int) for turn in by_turn):
        return None
    least = min(by_turn)
    wanted = [least + k for k in range(step)]
    return tuple(by_turn[turn] for turn in wanted) if sorted(by_turn) == wanted and len({*by_turn}) == step else None
