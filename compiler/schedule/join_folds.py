"""Folded loops that go through memory as one loop would become one loop.

fold over n < 8, h < 56, w < 56 of x[3136*n + 56*h + w]   ->   fold over r < 25088 of x[r]

A reduction that is split then has parts of any length, rather than those that the sizes of its dims allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..ir.index.index import Atom, Var, mul, quotient, remainder
from ..ir.program import Definition
from ..ir.value import Rewriter, indices_of, walk
from .affine import joint_runs
from .flat_access import rewritten


def with_joined_folds(item: Definition, flat: Definition) -> Definition:
    """`item` with runs of folded loops joined where neither an offset nor a number tells them apart.

    Args:
        item: with its folded loops outermost first; the loops of its results stay as they are.
        flat: the same with one offset for each access.
    """
    numbers = [*_numbers(flat)]
    runs = joint_runs([v for v in item.reduced if v.extent != 1], numbers)
    if all(len(run) == 1 for run in runs):
        return item
    by: dict[Atom, Any] = {v: 0 for v in item.reduced if v.extent == 1}
    reduced = tuple(_joined(run, by) for run in runs)
    return replace(rewritten(item, Rewriter(atom=by.get)), reduced=reduced)


def _numbers(flat: Definition) -> Iterator[Any]:
    """All that is computed from loop variables: offsets, and numbers among values."""
    for value in walk([v for r in flat.reductions for v in r.values] + [s.value for s in flat.stores]):
        yield from indices_of(value)
    for store in flat.stores:
        yield from store.indices


def _joined(run: Sequence[Var], by: dict[Atom, Any]) -> Var:
    """One loop for a run; `by` gets each loop of the run as an index of the new loop."""
    if len(run) == 1:
        return run[0]
    extent: Any = 1
    for var in run:
        extent = mul(extent, var.extent)
    whole = Var(run[-1].name, extent)
    rest: Any = whole.index()
    for var in reversed(run):
        by[var] = remainder(rest, var.extent) if var is not run[0] else rest
        rest = quotient(rest, var.extent)
    return whole


__all__ = ["with_joined_folds"]
