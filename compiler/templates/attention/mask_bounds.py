"""Bounds of causal and local masks: the keys that a score function is known to hide.

                                                     from        before
    where(j <= i + 3, s, -inf)                  ->   i + 4                  all keys from there on are hidden
    where(logical_and(j <= i, mask), s, -inf)   ->   i + 1
    where(j <= i & j > i - 8, s, -inf)          ->   i + 1       i - 7
    s + mask[i, j]                              ->

The contents of mask tensors are data, and not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...ir.index.index import Atom, Var, terms
from ...ir.value import Const, Number, Op, Rewriter, Value
from .description import mentions
from .score import is_lowest

_SWAPPED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}
_NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}
_FROM, _BEFORE = ("le", "lt"), ("ge", "gt")  # comparisons of the key that fail from an index on, or before an index


@dataclass(frozen=True)
class Limit:
    """A comparison of the score function that hides keys.

    Args:
        index: an index over lead variables and the row, which grows with the row; the score is -inf from it on, or
            before it.
        test: the comparison, whose value is `holds` for all keys on the other side.
    """

    index: Any
    test: Value
    holds: bool


def horizon(score: Value, key: Var, row: Var) -> Any:
    """An index that grows with `row`, from which on the score of every `key` is -inf.

    Returns:
        None if the formula has no such index.
    """
    found = last_limit(score, key, row)
    return None if found is None else found.index


def last_limit(score: Value, key: Var, row: Var) -> Limit | None:
    """The limit from which on every key is hidden."""
    return _growing(_hidden(score, key, _FROM), row)


def first_limit(score: Value, key: Var, row: Var) -> Limit | None:
    """The limit before which every key is hidden."""
    return _growing(_hidden(score, key, _BEFORE), row)


def inside(score: Value, limit: Limit) -> Value:
    """The score of keys that the limit does not hide."""
    known = Const(limit.holds, torch.bool)
    return Rewriter(lambda value: known if value is limit.test else None)(score)


def _growing(found: Limit | None, row: Var) -> Limit | None:
    slopes = {} if found is None else _slopes(found.index, row)
    return found if all(monomial == (row,) and factor >= 0 for monomial, factor in slopes.items()) else None


def _hidden(score: Value, key: Var, sides: tuple[str, ...]) -> Limit | None:
    if not isinstance(score, Op) or score.name != "where":
        return None
    condition, chosen, other = score.args
    if is_lowest(other):
        return _fails(condition, key, sides) or _hidden(chosen, key, sides)
    if is_lowest(chosen):
        return _fails(Op("logical_not", (condition,), condition.dtype), key, sides) or _hidden(other, key, sides)
    return None


def _fails(condition: Value, key: Var, sides: tuple[str, ...]) -> Limit | None:
    """An index from which on (or before which) the condition is false for all keys."""
    if not isinstance(condition, Op):
        return None
    if condition.name in ("logical_not", "bitwise_not"):
        return _holds(condition.args[0], key, sides)
    if condition.name in ("logical_and", "bitwise_and"):
        found = (_fails(part, key, sides) for part in condition.args)
        return next((limit for limit in found if limit is not None), None)
    return _compared(condition, condition.name, True, key, sides)


def _holds(condition: Value, key: Var, sides: tuple[str, ...]) -> Limit | None:
    """An index from which on (or before which) the condition is true for all keys."""
    if not isinstance(condition, Op):
        return None
    if condition.name in ("logical_not", "bitwise_not"):
        return _fails(condition.args[0], key, sides)
    if condition.name in ("logical_or", "bitwise_or"):
        found = (_holds(part, key, sides) for part in condition.args)
        return next((limit for limit in found if limit is not None), None)
    return _compared(condition, _NEGATED.get(condition.name, ""), False, key, sides)


def _compared(condition: Op, name: str, holds: bool, key: Var, sides: tuple[str, ...]) -> Limit | None:
    if name not in _SWAPPED:
        return None
    a, b = map(_index, condition.args)
    index = None if a is None or b is None else _bound(name, a - b, key, sides)
    return None if index is None else Limit(index, condition, holds)


def _bound(name: str, difference: Any, key: Var, sides: tuple[str, ...]) -> Any:
    """The key at which `difference name 0` starts or stops to hold."""
    slopes = _slopes(difference, key)
    if slopes == {(key,): -1}:
        name, difference = _SWAPPED[name], -difference
    elif slopes != {(key,): 1}:
        return None
    if name not in sides:
        return None
    return key.index() - difference + (1 if name in ("le", "gt") else 0)


def _slopes(number: Any, var: Var) -> dict[tuple[Atom, ...], int]:
    """The products of an index that depend on a variable."""
    return {monomial: factor for monomial, factor in terms(number) if mentions(monomial, var)}


def _index(value: Value) -> Any:
    """A value as an index; None if it is not one."""
    if isinstance(value, Number):
        return value.index
    if isinstance(value, Const) and not value.dtype.is_floating_point:
        return int(value.number)
    if (
        isinstance(value, Op) and value.name in ("add", "sub") and value.dtype == torch.int64
    ):  # narrower integers may overflow
        a, b = map(_index, value.args)
        return None if a is None or b is None else a + b if value.name == "add" else a - b
    return None
