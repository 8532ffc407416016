"""Moves 16-bit floats as bits if the kernel does not compute with them: conversions to float32 and back are omitted.

    out[i, j] = table[ids[i], j]       bfloat16, loaded as float32, rounded   ->   int16, loaded and stored

The copy equals eager's to the bit, including the payload of NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ...ir.accesses import roots, statements
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement
from ...ir.program import Buffer, Store
from ...ir.value import HALVES, Const, Guarded, Load, Op, Value, walk


def move_bits(kernel: Kernel) -> Kernel:
    """The flattened kernel with 16-bit integers in place of 16-bit floats that are only moved."""
    buffers = [*(p.buffer for p in kernel.params), *kernel.scratch]
    moved = _moved(kernel, {b.name: b.dtype for b in buffers if b.dtype in HALVES})
    if not moved:
        return kernel

    def as_bits(buffer: Buffer) -> Buffer:
        return replace(buffer, dtype=torch.int16) if buffer.name in moved else buffer

    return replace(
        kernel,
        params=tuple(replace(p, buffer=as_bits(p.buffer)) for p in kernel.params),
        scratch=tuple(map(as_bits, kernel.scratch)),
        body=tuple(_statement(s, moved) for s in kernel.body),
    )


def _moved(kernel: Kernel, halves: dict[str, torch.dtype]) -> dict[str, torch.dtype]:
    """Those of the given buffers whose elements are only copied from one to another."""
    found, before = dict(halves), -1
    while found and len(found) != before:
        before = len(found)
        for statement in statements(kernel.body):
            store = statement.store if isinstance(statement, Assign) else None
            leaves = set(_leaves(store.value)) if store is not None and store.buffer in found else set()
            if store is not None and (store.mode is not None or not all(_fits(v, store, found) for v in leaves)):
                found.pop(store.buffer, None)
                leaves = set()
            computed = {v.buffer for v in walk(_computed(statement, leaves)) if isinstance(v, Load)}
            found = {name: dtype for name, dtype in found.items() if name not in computed}
    return found


def _computed(statement: Statement, leaves: set[Value]) -> Iterator[Value]:
    """The values of a statement that take part in computations, without those that are only moved."""
    if not leaves or not isinstance(statement, Assign):
        yield from roots(statement)
        return
    own = set(roots(statement)) - {statement.store.value}
    yield from own
    yield from _conditions(statement.store.value)
    for leaf in leaves:
        yield from (v for v in walk([leaf]) if v is not leaf)


def _conditions(value: Value) -> Iterator[Value]:
    return (chosen[0] for part in _parts(value) if (chosen := _choice(part)) is not None)


def _leaves(value: Value) -> Iterator[Value]:
    """The values of which one is stored, found through choices."""
    return (part for part in _parts(value) if _choice(part) is None)


def _parts(value: Value) -> list[Value]:
    """A value and all values that it chooses from, each once."""
    found = {value: None}
    todo = [value]
    while todo:
        _, *branches = _choice(todo.pop()) or (None,)
        fresh = [branch for branch in branches if branch not in found]
        found.update(dict.fromkeys(fresh))
        todo += fresh
    return list(found)


def _choice(value: Value) -> tuple[Any, ...] | None:
    """The condition and branches of a value that is a choice; None for other values."""
    if isinstance(value, Guarded):
        return value.condition, value.value, value.other
    return value.args if isinstance(value, Op) and value.name == "where" else None


def _fits(value: Value, store: Store, moved: dict[str, torch.dtype]) -> bool:
    if isinstance(value, Load):
        return moved.get(value.buffer) == moved[store.buffer]
    return isinstance(value, Const) and isinstance(value.number, (bool, int, float))


def _statement(statement: Statement, moved: dict[str, torch.dtype]) -> Statement:
    if isinstance(statement, (Loop, Fold)):
        return replace(statement, body=tuple(_statement(s, moved) for s in statement.body))
    if isinstance(statement, Assign) and statement.store.buffer in moved:
        store = statement.store
        return Assign(replace(store, value=_bits(store.value, moved[store.buffer])))
    return statement


def _bits(value: Value, dtype: torch.dtype) -> Value:
    """A moved value, as 16 bits."""
    if isinstance(value, Load):
        return Load(value.buffer, value.indices, torch.int16)
    if isinstance(value, Const):
        return Const(int(torch.tensor(value.number, dtype=dtype).view(torch.int16)), torch.int16)
    condition, *branches = _choice(value) or ()
    first, second = (_bits(branch, dtype) for branch in branches)
    if isinstance(value, Guarded):
        return Guarded(condition, first, second, torch.int16)
    return Op("where", (condition, first, second), torch.int16)
