"""The keys that a mask gives any weight, as a condition that a kernel evaluates when it runs.

    where(j <= position[0], s, -inf)            ->   j <= position[0]
    s + where(keep[b, j], 0, -3.4e38)           ->   keep[b, j]
    s + mask[b, j]                              ->   not mask[b, j] <= -1e30
    where(keep[b, j], s, -inf) + slope * j      ->   keep[b, j]

If it holds for any key, all others weigh nothing, and need not be read: of a cache, what is not filled yet. If it
holds for none, lowest numbers hide all keys alike, and all count. Products of rows of q and k, and biases beside a mask
of lowest numbers, are taken to be numbers of everyday size, as by `mask_fill`.
"""

from __future__ import annotations

import torch

from ...ir.index.index import Var
from ...ir.value import Const, Load, Op, Value, variables, walk
from .description import SCORE
from .mask_fill import LOWEST

_HIDING = -1e30  # what is added and no larger hides
_MOST_PARTS = 200


def seen_keys(score: Value, row: Var, key: Var) -> Value | None:
    """The condition, bool, over the lead loops and `key`; None where the formula says nothing that all rows share.

    Args:
        score: float32, without roundings.
        row: the loop over queries.
        key: the loop over keys.
    """
    if sum(1 for _ in walk([score])) > _MOST_PARTS:
        return None
    found = [part for part in _conditions(score) if key in variables([part]) and row not in variables([part])]
    if not found:
        return None
    seen = found[0]
    for part in found[1:]:
        seen = Op("logical_and", (seen, part), torch.bool)
    return seen


def _conditions(value: Value) -> list[Value]:
    """Conditions of which each hides a key where it does not hold."""
    if isinstance(value, Load):
        wide = value is not SCORE and value.dtype == torch.float32
        return [_not(Op("le", (value, Const(_HIDING, torch.float32)), torch.bool))] if wide else []
    if not isinstance(value, Op) or value.dtype != torch.float32:
        return []
    if value.name == "where":
        condition, chosen, other = value.args
        if _hides(other):
            return [condition, *_conditions(chosen)]
        if _hides(chosen):
            return [_not(condition), *_conditions(other)]
        return []
    if value.name == "add":
        return [part for arg in value.args for part in _conditions(arg)]
    return []


def _hides(value: Value) -> bool:
    return isinstance(value, Const) and value.number <= LOWEST


def _not(value: Value) -> Value:
    return Op("logical_not", (value,), torch.bool)
