"""Sums of elements that are all zero but one are that element: no loop.

fold sum over j < 30522 of (g[i] if t[i] == j and t[i] != -100 else 0)
    ->   g[i] if t[i] >= 0 and t[i] < 30522 and t[i] != -100 else 0

Gradients of losses that choose a class are such rows; autograd adds them up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import torch

from ..ir.index.index import Index, Var
from ..ir.program import Definition
from ..ir.value import Const, Number, Op, Result, Rewriter, Value, variables
from .flat_access import rewritten


def without_one_hot(item: Definition) -> Definition:
    """A definition whose sums are all of one-hot rows, as a pointwise one; else as it is."""
    reduced = [v for v in item.reduced if v.extent != 1]
    if len(reduced) != 1 or item.scan or any(r.reducer != "sum" for r in item.reductions):
        return item
    found = {r.name: _chosen(r.values[0], reduced[0]) for r in item.reductions}
    if not found or None in found.values():
        return item
    results = Rewriter(value=lambda v: found[v.reduction] if isinstance(v, Result) else None)
    at_zero = Rewriter(atom=dict.fromkeys(item.reduced, 0).get)  # type: ignore[arg-type]
    return rewritten(rewritten(replace(item, reduced=(), reductions=()), results), at_zero)


def _chosen(value: Value, var: Var) -> Value | None:
    """The sum over `var` of a value that is zero but where `var` is one number; None where it is not such."""
    if not isinstance(value, Op) or value.name != "where":
        return None
    condition, chosen, other = value.args
    if not isinstance(other, Const) or other.number != 0 or var in variables([chosen]):
        return None
    conditions = list(_all(condition))
    hits = [(c, number) for c in conditions if (number := _compared(c, var)) is not None]
    if len(hits) != 1:
        return None
    hit, number = hits[0]
    others = [c for c in conditions if c is not hit]
    if var in variables([number, *others]):
        return None
    inside = [
        Op(name, (number, _bound(end, number.dtype)), torch.bool) for name, end in (("ge", 0), ("lt", var.extent))
    ]
    together = reduce(lambda a, b: Op("logical_and", (a, b), torch.bool), [*inside, *others])
    return Op("where", (together, chosen, other), value.dtype)


def _all(condition: Value) -> Iterator[Value]:
    """The parts of a conjunction."""
    if isinstance(condition, Op) and condition.name == "logical_and":
        for part in condition.args:
            yield from _all(part)
    else:
        yield condition


def _compared(condition: Value, var: Var) -> Value | None:
    """The value that `var` itself is compared with for equality."""
    if not isinstance(condition, Op) or condition.name != "eq":
        return None
    a, b = condition.args
    place = next((x for x in (a, b) if isinstance(x, Number) and x.index == var.index()), None)
    return None if place is None else b if place is a else a


def _bound(number: int | Index, dtype: torch.dtype) -> Value:
    return Number(number, dtype) if isinstance(number, Index) else Const(number, dtype)


__all__ = ["without_one_hot"]
