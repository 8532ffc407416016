"""The work of statements, counted in memory accesses and cheap operations."""

from __future__ import annotations

from typing import Any

from ...ir.accesses import roots
from ...ir.index.index import add, mul
from ...ir.kernel import Fold, Loop, Statement
from ...ir.ops import OPS
from ...ir.value import Guarded, Load, Op, Value, walk

GRAIN = 65536  # work from which on another thread is worth waking
_COSTLY = 6


def work_of(statement: Statement) -> Any:
    """The work of a statement as an index: 2 loads, an addition and a store, 768 times  ->  3072."""
    if isinstance(statement, Loop):
        return mul(statement.var.extent, work_of_all(statement.body))
    if isinstance(statement, Fold):
        return work_of_all(statement.body)
    return 1 + sum(map(_work, walk(roots(statement))))


def work_of_all(body: tuple[Statement, ...]) -> Any:
    """The total work of statements."""
    total: Any = 0
    for statement in body:
        total = add(total, work_of(statement))
    return total


def _work(value: Value) -> int:
    if isinstance(value, Op):
        return _COSTLY if OPS[value.name].costly else 1
    return isinstance(value, (Load, Guarded))
