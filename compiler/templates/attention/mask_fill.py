"""Turns masks that add the lowest number into selections of -inf, so that `mask_bounds` can skip hidden keys.

    s * 0.125 + where(j <= i, 0, -3.4e38)     ->   where(j <= i, s * 0.125, -inf)
    where(j <= i, tanh(s), -3.4e38)           ->   where(j <= i, tanh(s), -inf)
    s + where(keep[j], 0, -3.4e38)            ->   unchanged: in a row without kept keys, all have the same weight
    s + bias[j] + where(j <= i, 0, -3.4e38)   ->   unchanged: the bias may hide the other keys

This is exact if every row keeps a key whose score is far above the lowest number, since hidden keys then have weight 0.
It is proven from positions. Products of rows of q and k are assumed to have moderate magnitudes, as in all code that
skips hidden keys: see `masked`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ....rewrites import compat
from ...ir.evaluator import Evaluator
from ...ir.index.index import Var
from ...ir.ops import OPS
from ...ir.value import Const, Load, Op, Value, variables, walk
from .description import SCORE

LOWEST = -1e38  # constants up to this value hide a key
_EVERYDAY = 1e20  # largest magnitude assumed for a product of rows, or for an integer
_MODERATE = 1e30  # magnitudes up to this are negligible next to the lowest numbers
_MOST_POINTS = 1 << 20
_MOST_PARTS = 200
_F32 = torch.float32


def surely_hidden(score: Value, row: Var, key: Var) -> Value:
    """The score with minus infinity for keys that the lowest number hides, or as it is, where that may differ.

    Args:
        score: float32, without roundings.
        row: the loop over queries.
        key: the loop over keys.
    """
    if sum(1 for _ in walk([score])) > _MOST_PARTS:
        return score
    conditions, rest = _peeled(score)
    if not conditions or not _keep_a_key(conditions, row, key) or not _Sizes().of(rest) <= _MODERATE:
        return score
    kept = conditions[0]
    for condition in conditions[1:]:
        kept = Op("logical_and", (kept, condition), torch.bool)
    return Op("where", (kept, rest, Const(float("-inf"), _F32)), _F32)


def may_hide_rows(score: Value, row: Var, key: Var) -> bool:
    """Whether selections of -inf may hide all keys of a row: true unless each row is proven to keep one.

    Args:
        score: the score function.
        row: the loop over queries.
        key: the loop over keys.
    """
    conditions = []
    for part in walk([score]):
        if isinstance(part, Op) and part.name == "where":
            condition, chosen, other = part.args
            conditions += [condition] if _is_infinite(other) else []
            conditions += [Op("logical_not", (condition,), torch.bool)] if _is_infinite(chosen) else []
    return bool(conditions) and not _keep_a_key(conditions, row, key)


def _is_infinite(value: Value) -> bool:
    return isinstance(value, Const) and value.number == -math.inf


def _peeled(value: Value) -> tuple[list[Value], Value]:
    """The condition under which a key is kept, and the score of kept keys."""
    if not isinstance(value, Op) or value.dtype != _F32:
        return [], value
    if value.name == "where":
        condition, chosen, other = value.args
        if _is_lowest(other):
            conditions, rest = _peeled(chosen)
            return [condition, *conditions], rest
        if _is_lowest(chosen):
            conditions, rest = _peeled(other)
            return [Op("logical_not", (condition,), torch.bool), *conditions], rest
    if value.name == "add":
        (first, a), (second, b) = map(_peeled, value.args)
        if first or second:
            return [*first, *second], b if _is_zero(a) else a if _is_zero(b) else Op("add", (a, b), _F32)
    return [], value


def _is_lowest(value: Value) -> bool:
    return isinstance(value, Const) and -math.inf < value.number <= LOWEST


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.number == 0


def _keep_a_key(conditions: Sequence[Value], row: Var, key: Var) -> bool:
    """Whether the conditions depend on positions alone, and every row keeps its own position or key 0."""
    if not variables(conditions) <= {row, key} or any(isinstance(part, Load) for part in walk(conditions)):
        return False
    rows, keys = int(row.extent), int(key.extent)
    with compat.plain_eager():
        i = torch.arange(rows)
        kept = torch.zeros(rows, dtype=torch.bool)
        for j in (i, i + keys - rows, torch.zeros_like(i)):
            points = Evaluator({}, {row: i, key: j.clamp(0, keys - 1)}, {}, {})
            alike = torch.ones(rows, dtype=torch.bool)
            for condition in conditions:
                alike &= points.value(condition).to(torch.bool)
            kept |= alike
        return bool(kept.all())


class _Sizes:
    """Upper bounds of the magnitudes of values; infinite or NaN if there is none."""

    def __init__(self) -> None:
        self._known: dict[Value, float] = {}

    def of(self, value: Value) -> float:
        if value not in self._known:
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: Value) -> float:
        if isinstance(value, Load):
            return _EVERYDAY if value.buffer == SCORE.buffer or not value.dtype.is_floating_point else math.inf
        if not any(isinstance(part, Load) for part in walk([value])):
            return _size_by_positions(value)
        return self._made(value) if isinstance(value, Op) else math.inf

    def _made(self, value: Op) -> float:
        if OPS[value.name].bounded:
            return 1.0
        if value.name == "div":
            divisor = value.args[1].number if isinstance(value.args[1], Const) else 0
            return self.of(value.args[0]) / abs(float(divisor)) if divisor else math.inf
        sizes = [self.of(arg) for arg in value.args if arg.dtype != torch.bool]
        if value.name in ("add", "sub"):
            return sum(sizes)
        if value.name == "mul":
            return math.prod(sizes)
        return max(sizes, default=1.0) if OPS[value.name].no_larger else math.inf


def _size_by_positions(value: Value) -> float:
    """The magnitude of a value that depends on positions alone, by evaluating it everywhere."""
    loops = sorted(variables([value]), key=lambda var: var.name)
    sizes = [int(var.extent) for var in loops]
    if math.prod(sizes) > _MOST_POINTS:
        return math.inf
    with compat.plain_eager():
        places = {
            var: torch.arange(size).view([-1 if d == number else 1 for d in range(len(sizes))])
            for number, (var, size) in enumerate(zip(loops, sizes, strict=True))
        }
        found = Evaluator({}, places, {}, {}).value(value).to(torch.float64).abs().max().item()
        return math.inf if math.isnan(found) else float(found)
