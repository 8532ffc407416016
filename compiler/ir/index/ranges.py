"""Ranges of integer values, as far as their form tells."""

from __future__ import annotations

from typing import Any

import torch

from ..value import Const, Number, Op, Value
from . import index as ix
from .bounds import known_lt, known_nonnegative
from .index import Loaded

Range = tuple[Any, Any]  # indices; None: not known
_UNKNOWN: Range = (None, None)


def value_bounds(value: Value) -> Range:
    """The least and the greatest that an integer value can be, as indices.

    maximum(x, 0)  ->  (0, None)        remainder(x, 8)  ->  (0, 7)
    """
    if isinstance(value, (Const, Number)):
        exact = value.number if isinstance(value, Const) else value.index
        return exact, exact
    if not isinstance(value, Op):
        return _UNKNOWN
    if value.name == "cast":
        return _converted(value)
    if value.name in ("maximum", "minimum"):
        return _clamped(value)
    if value.name in ("add", "sub"):
        return _added(value)
    if value.name == "where":
        (a, b), (c, d) = map(value_bounds, value.args[1:])
        return _joined(a, c, ix.least), _joined(b, d, ix.most)
    if value.name == "remainder":
        low, high = value_bounds(value.args[1])
        return (0, high - 1) if isinstance(low, int) and low > 0 and high is not None else _UNKNOWN
    return _UNKNOWN


def _converted(value: Op) -> Range:
    """The range of an integer in another type that holds it."""
    source = value.args[0].dtype
    if source.is_floating_point or value.dtype.is_floating_point or value.dtype == torch.bool:
        return _UNKNOWN
    found, limits = value_bounds(value.args[0]), torch.iinfo(value.dtype)
    own = None if source == torch.bool else torch.iinfo(source)
    holds = own is None or (limits.min <= own.min and own.max <= limits.max)
    fits = all(isinstance(end, int) and limits.min <= end <= limits.max for end in found)
    return found if holds or fits else _UNKNOWN


def _added(value: Op) -> Range:
    """The range of a sum or difference that cannot overflow."""
    (a, b), (c, d) = map(value_bounds, value.args)
    if not all(isinstance(end, int) for end in (a, b, c, d)) or value.dtype.is_floating_point:
        return _UNKNOWN
    low, high = (a + c, b + d) if value.name == "add" else (a - d, b - c)
    limits = torch.iinfo(value.dtype)
    return (low, high) if limits.min <= low and high <= limits.max else _UNKNOWN


def _clamped(value: Op) -> Range:
    (a, b), (c, d) = map(value_bounds, value.args)
    if value.name == "maximum":
        low = ix.most(a, c) if a is not None and c is not None else a if c is None else c
        return low, _joined(b, d, ix.most)
    high = ix.least(b, d) if b is not None and d is not None else b if d is None else d
    return _joined(a, c, ix.least), high


def _joined(a: Any, b: Any, join: Any) -> Any:
    return None if a is None or b is None else join(a, b)


def wraps(atom: Loaded) -> bool:
    """Whether an index may count from the end."""
    low, _ = value_bounds(atom.value)
    return atom.wrap and (low is None or not known_nonnegative(low))


def in_range(atom: Loaded) -> bool:
    """Whether an index needs no check: what it may be is known to fit."""
    low, high = value_bounds(atom.value)
    if low is None or high is None:
        return False
    negative = known_nonnegative(low) or (atom.wrap and known_nonnegative(low + atom.size))
    return negative and known_lt(high, atom.size)
