"""Folds of few elements as values: the elements are written out, so that readers can compute the result.

y[i] = fold max over k < 3 of x[i, k] - b[k]     ->     y[i] = max(max(x[i, 0] - b[0], x[i, 1] - b[1]), x[i, 2] - b[2])

Coordinates, colors, channels of sounds, weights of a few inputs. A launch of its own takes longer. Folds of constants
need no launch at all: checks that are known to hold, such as those of `one_hot` after a remainder.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from ..ir.program import Definition, Reduction
from ..ir.reducers import REDUCERS
from ..ir.value import Const, Op, Result, Rewriter, Value, substitute
from .flat_access import rewritten

FEW = 8  # most elements that are written out


def without_constants(item: Definition) -> Definition:
    """A definition whose folds of one constant, over one element or more, are that constant.

    Triton lets each thread fold all lanes of a tile that depends on no load: 34 us for 300 truth values.
    """
    if item.scan or not all(isinstance(v.extent, int) and v.extent for v in item.reduced):
        return item
    alike = [r for r in item.reductions if REDUCERS[r.reducer].idempotent]
    known = {r.name: r.values[0] for r in alike if isinstance(r.values[0], Const)}
    if not known:
        return item
    rest = tuple(r for r in item.reductions if r.name not in known)
    results = Rewriter(value=lambda v: known.get(v.reduction) if isinstance(v, Result) else None)
    return rewritten(replace(item, reductions=rest, reduced=item.reduced if rest else ()), results)


def written_out(item: Definition) -> Definition | None:
    """A definition without its folds, which go through few elements each; None if it has none, or others."""
    extents = [v.extent for v in item.reduced]
    if not item.reductions or item.scan or not all(isinstance(n, int) and n for n in extents):
        return None
    count = 1
    for extent in extents:
        count *= extent
    if count > FEW or any(not REDUCERS[r.reducer].operation for r in item.reductions):
        return None
    found = {r.name: _value(r, item) for r in item.reductions}
    results = Rewriter(value=lambda v: found[v.reduction] if isinstance(v, Result) else None)
    return rewritten(replace(item, reduced=(), reductions=()), results)


def _value(reduction: Reduction, item: Definition) -> Value:
    """The elements, joined one after the other; a sum begins with 0.0, as eager's."""
    (element,) = reduction.values
    places = product(*(range(v.extent) for v in item.reduced))
    first, *others = (substitute(element, dict(zip(item.reduced, at, strict=True))) for at in places)
    total, name = first, REDUCERS[reduction.reducer].operation
    for other in others:
        total = Op(name, (total, other), element.dtype)
    if reduction.reducer == "sum" and element.dtype.is_floating_point:
        total = Op("add", (total, Const(0.0, element.dtype)), element.dtype)
    return total


__all__ = ["FEW", "without_constants", "written_out"]
