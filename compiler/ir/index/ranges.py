"""Ranges of integer values, as far as their form tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..value import Const, Load, Number, Op, Value
from . import index as ix
from .bounds import known_lt, known_nonnegative
from .index import Loaded

Range = tuple[Any, Any]  # indices; None: not known
_UNKNOWN: Range = (None, None)
_BYTES = (torch.uint8, torch.int8)


def value_bounds(value: Value) -> Range:
    """The least and the greatest that an integer value can be, as indices.

    maximum(x, 0)  ->  (0, None)        remainder(x, 8)  ->  (0, 7)        x & 15  ->  (0, 15)
    """
    if isinstance(value, (Const, Number)):
        exact = value.number if isinstance(value, Const) else value.index
        return exact, exact
    if isinstance(value, Load) and value.dtype in _BYTES:
        return torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max
    known = _OPERATIONS.get(value.name) if isinstance(value, Op) else None
    return _UNKNOWN if known is None else known(value)  # type: ignore[arg-type]


def _chosen(value: Op) -> Range:
    (a, b), (c, d) = map(value_bounds, value.args[1:])
    return _joined(a, c, ix.least), _joined(b, d, ix.most)


def _rest(value: Op) -> Range:
    low, high = value_bounds(value.args[1])
    return (0, high - 1) if isinstance(low, int) and low > 0 and high is not None else _UNKNOWN


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


def _of_bits(value: Op) -> Range:
    """Some bits of an integer: ``x & 15`` is none of the others, ``x >> 4`` has no more than what is left of them."""
    consts = [part.number for part in value.args if isinstance(part, Const)]
    mask = consts[0] if len(consts) == 1 else -1
    if value.dtype == torch.bool or not isinstance(mask, int) or mask < 0:
        return _UNKNOWN
    if value.name == "bitwise_and":
        return 0, mask
    low, high = value_bounds(value.args[0])
    if not isinstance(value.args[1], Const) or not isinstance(low, int) or not isinstance(high, int):
        return _UNKNOWN
    return (low >> mask, high >> mask) if mask < torch.iinfo(value.dtype).bits else _UNKNOWN


def _clamped(value: Op) -> Range:
    (a, b), (c, d) = map(value_bounds, value.args)
    if value.name == "maximum":
        low = ix.most(a, c) if a is not None and c is not None else a if c is None else c
        return low, _joined(b, d, ix.most)
    high = ix.least(b, d) if b is not None and d is not None else b if d is None else d
    return _joined(a, c, ix.least), high


def _joined(a: Any, b: Any, join: Any) -> Any:
    return None if a is None or b is None else join(a, b)


_OPERATIONS: dict[str, Callable[[Op], Range]] = {
    "bitwise_and": _of_bits, "rshift": _of_bits, "cast": _converted, "maximum": _clamped, "minimum": _clamped,
    "add": _added, "sub": _added, "where": _chosen, "remainder": _rest,
}  # fmt: skip


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
