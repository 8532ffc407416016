"""Keys that a score function hides: causal masks, as far as the formula of the score says so.

    where(j <= i + 3, s, -inf)                  ->   i + 4: no key from there on counts
    where(logical_and(j <= i, mask), s, -inf)   ->   i + 1
    s + mask[i, j]                              ->   None

What masks hold is data, and not known.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.index import Atom, Var, terms
from ..ir.value import Const, Number, Op, Value
from .attention import mentions

_SWAPPED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}
_NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}


def horizon(score: Value, key: Var, row: Var) -> Any:
    """An index over lead variables and `row`, growing with it: the score is -inf for every `key` from there on.

    Returns:
        None where the formula does not say so.
    """
    found = _hidden(score, key)
    if found is None:
        return None
    slopes = _slopes(found, row)
    return found if all(monomial == (row,) and factor >= 0 for monomial, factor in slopes.items()) else None


def _hidden(score: Value, key: Var) -> Any:
    if not isinstance(score, Op) or score.name != "where":
        return None
    condition, chosen, other = score.args
    if _is_lowest(other):
        found = _holds_below(condition, key)
        return _hidden(chosen, key) if found is None else found
    if _is_lowest(chosen):
        found = _holds_below(Op("logical_not", (condition,), condition.dtype), key)
        return _hidden(other, key) if found is None else found
    return None


def _is_lowest(value: Value) -> bool:
    return isinstance(value, Const) and value.number == float("-inf")


def _holds_below(condition: Value, key: Var) -> Any:
    """An index such that the condition is false for every key from there on."""
    if not isinstance(condition, Op):
        return None
    if condition.name == "logical_not":
        negated = _negated(condition.args[0])
        return None if negated is None else _holds_below(negated, key)
    if condition.name in ("logical_and", "bitwise_and"):
        found = [_holds_below(part, key) for part in condition.args]
        return next((index for index in found if index is not None), None)
    if condition.name not in _SWAPPED:
        return None
    a, b = map(_index, condition.args)
    return None if a is None or b is None else _bound(condition.name, a - b, key)


def _negated(condition: Value) -> Value | None:
    if not isinstance(condition, Op):
        return None
    if condition.name in _NEGATED:
        return Op(_NEGATED[condition.name], condition.args, condition.dtype)
    if condition.name in ("logical_not", "bitwise_not"):
        return condition.args[0]
    return None


def _bound(name: str, difference: Any, key: Var) -> Any:
    """Of `difference name 0`: where it stops to hold as the key grows."""
    slopes = _slopes(difference, key)
    if slopes == {(key,): -1}:
        name, difference = _SWAPPED[name], -difference
    elif slopes != {(key,): 1}:
        return None
    if name not in ("le", "lt"):
        return None
    return key.index() - difference + (1 if name == "le" else 0)


def _slopes(number: Any, var: Var) -> dict[tuple[Atom, ...], int]:
    """The products of an index that depend on a variable."""
    return {monomial: factor for monomial, factor in terms(number) if mentions(monomial, var)}


def _index(value: Value) -> Any:
    """A value as an index, None where it is none."""
    if isinstance(value, Number):
        return value.index
    if isinstance(value, Const) and not value.dtype.is_floating_point:
        return int(value.number)
    if isinstance(value, Op) and value.name in ("add", "sub") and value.dtype == torch.int64:  # others may wrap
        a, b = map(_index, value.args)
        return None if a is None or b is None else a + b if value.name == "add" else a - b
    return None
