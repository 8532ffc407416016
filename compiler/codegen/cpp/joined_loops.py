"""Two loops in one another that only occur as one number become one loop.

fold (for i < 375: for j < 4: update with x[4*i + j])   ->   fold (for k < 1500: update with x[k])

Fusion leaves such loops where it split an axis for a neighbor, whose loops they did not share in the end. Lanes along
`j` would fill a quarter of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...ir.accesses import rewritten, statements, updated, values
from ...ir.index.index import Var, mul
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement
from ...ir.value import Rewriter, indices_of
from ...schedule.affine import proportional


def join_loops(kernel: Kernel) -> Kernel:
    """The kernel with loops joined, inner ones first."""
    return replace(kernel, body=tuple(map(_joined, kernel.body)))


def _joined(statement: Statement) -> Statement:
    if not isinstance(statement, (Loop, Fold)):
        return statement
    body = tuple(map(_joined, statement.body))
    if isinstance(statement, Fold):
        now = updated(body)
        return Fold(tuple(now.get(r.name, r) for r in statement.reductions), body)
    made = replace(statement, body=body)
    inner = made.body[0] if len(made.body) == 1 else None
    if not isinstance(inner, Loop) or made.parallel != inner.parallel:
        return made
    if not all(proportional(number, made.var, inner.var) for number in _numbers(inner.body)):
        return made
    var = Var(made.var.name, mul(made.var.extent, inner.var.extent))
    by: dict[Any, Any] = {made.var: 0, inner.var: var.index()}
    here = Rewriter(atom=by.get)
    return Loop(var, tuple(rewritten(s, here) for s in inner.body), made.parallel)


def _numbers(body: Sequence[Statement]) -> Iterator[Any]:
    """All indices and extents of a body."""
    for value in values(body):
        yield from indices_of(value)
    for statement in statements(body):
        if isinstance(statement, Assign):
            yield from statement.store.indices
        elif isinstance(statement, Loop):
            yield statement.var.extent


__all__ = ["join_loops"]
