"""Rewrites score functions for the online softmax.

where(j <= i, s * 0.125, -inf)   ->   where(j <= i, s * (0.125 / ln 2), -inf)      GPUs compute powers of two
s * 0.125 + mask[j]              ->   s * (0.125 / ln 2) + (mask[j] / ln 2, kept finite)    once for all queries
s * 0.125 + bias[i, j]           ->   unchanged: the lowest biases would become infinite
tanh(s * 0.125 / 50) * 50        ->   fast_tanh(s * 0.0025) * 50                   where operands have 16 bits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

import torch

from ...codegen.flatten import flatten_value
from ...ir.index.bounds import bounds
from ...ir.ops import OPS
from ...ir.program import Buffer
from ...ir.value import Const, Load, Number, Op, Rewriter, Value
from .description import SCORE, Attention

LOG2_E = math.log2(math.e)
_LOWEST = float("-inf")
_LARGEST = torch.finfo(torch.float32).max
_MIN, _MAX = 1e-30, 1e30  # range of factors that may be combined
_LEVEL = 1e3  # largest factors and constants next to which the logarithm of a sum stays precise
_EXACT = 1 << 22  # floats represent integers below this, and sums of a few of them, exactly


def lean(score: Value) -> Value:
    """The score with cheaper arithmetic, which differs by a few units in the last place of float32."""
    return Rewriter(_lean)(score)


def _lean(value: Value) -> Value | None:
    if not isinstance(value, Op) or value.dtype != torch.float32:
        return None
    if value.name == "cast":
        return _of_positions(value.args[0])
    if value.name == "tanh":
        return Op("fast_tanh", value.args, value.dtype)
    if value.name == "div" and _is_number(value.args[1]) and value.args[1].number:
        inverse = 1 / float(value.args[1].number)
        if _MIN < abs(inverse) < _MAX:
            value = Op("mul", (value.args[0], Const(inverse, torch.float32)), value.dtype)
    return _multiplied_once(value)


def _of_positions(value: Value) -> Value | None:
    """A position, or a sum or difference of two, computed in floats, which represent it exactly.

    float(j - i)   ->   float(j) - float(i)      one conversion per row and column, none per score
    """
    if isinstance(value, Op) and value.name in ("add", "sub") and value.dtype == torch.int64:
        parts = [_of_positions(arg) for arg in value.args]
        return None if None in parts else Op(value.name, (parts[0], parts[1]), torch.float32)  # type: ignore[arg-type]
    number = value.index if isinstance(value, Number) else value.number if isinstance(value, Const) else None
    if isinstance(number, (bool, float)) or number is None:
        return None
    low, high = bounds(number)
    if low is None or high is None or max(-low, high) > _EXACT:
        return None
    return Number(number, torch.float32) if isinstance(value, Number) else Const(float(number), torch.float32)


def _multiplied_once(value: Op) -> Op:
    """Constant factors combined: ``x * 0.5 * 0.25 -> x * 0.125``."""
    if value.name != "mul":
        return value
    a, b = value.args if _is_number(value.args[1]) else value.args[::-1]
    if _is_number(b) and isinstance(a, Op) and a.name == "mul" and _is_number(a.args[1]):
        factor = a.args[1].number * b.number
        if _MIN < abs(factor) < _MAX:
            return Op("mul", (a.args[0], Const(factor, torch.float32)), value.dtype)
    return Op("mul", (a, b), value.dtype)


def _is_number(value: Value) -> TypeGuard[Const]:
    return isinstance(value, Const) and isinstance(value.number, (int, float))


def masked(score: Value, mask: Value) -> Value:
    """A sum of score and mask as a selection, which shows `mask_bounds` the hidden keys.

    s + where(j <= i & keep[j], 0, -inf)   ->   where(j <= i & keep[j], s, -inf)

    A hidden key stays hidden even if its score is not finite.
    """
    if isinstance(mask, Const) and mask.number in (0.0, _LOWEST):
        return mask if mask.number else score
    if isinstance(mask, Op) and mask.name == "where" and _hides(mask):
        keep, chosen, other = mask.args
        return Op("where", (keep, masked(score, chosen), masked(score, other)), score.dtype)
    return Op("add", (score, mask), score.dtype)


def _hides(mask: Op) -> bool:
    """Whether a selection has -inf on either side."""
    return any(isinstance(side, Const) and side.number == _LOWEST for side in mask.args[1:])


def unscaled(score: Value) -> tuple[Value, float] | None:
    """A score that is a multiple of another score or -inf, as that score and the factor, above 0; else None.

    where(j <= i, s * 0.18, -inf)   ->   where(j <= i, s, -inf), 0.18
    """
    factors: set[float] = set()
    found = _unscaled(score, factors)
    return (found, factors.pop()) if found is not None and len(factors) == 1 else None


def _unscaled(score: Value, factors: set[float]) -> Value | None:
    if isinstance(score, Const):
        return score if score.number == _LOWEST else None
    if not isinstance(score, Op):
        return None
    if score.name == "where":
        chosen, other = (_unscaled(part, factors) for part in score.args[1:])
        return None if chosen is None or other is None else Op("where", (score.args[0], chosen, other), score.dtype)
    if score.name == "mul" and _is_number(score.args[1]) and score.args[1].number > 0:
        factors.add(float(score.args[1].number))
        return score.args[0]
    return None


def in_powers_of_two(score: Value, is_shared: Callable[[Value], bool] = lambda _: False) -> Value | None:
    """The score divided by ln 2, if that costs nothing and cannot overflow; else None.

    exp(score - maximum) is then 2 to the power of the returned score less its maximum.

    Args:
        score: without roundings.
        is_shared: whether a value is the same for all queries, so that more work on it is acceptable.
    """
    if isinstance(score, Const):
        return score if score.number == _LOWEST else None
    if not isinstance(score, Op):
        return None
    if score.name == "where":
        chosen, other = (in_powers_of_two(part, is_shared) for part in score.args[1:])
        return None if chosen is None or other is None else Op("where", (score.args[0], chosen, other), score.dtype)
    if score.name == "add":
        for rest, bias in (score.args, score.args[::-1]):
            part = in_powers_of_two(rest, is_shared) if is_shared(bias) else None
            if part is not None:
                return Op("add", (part, _over_ln2(bias)), score.dtype)
    if score.name == "mul":
        for factor, rest in (score.args, score.args[::-1]):
            if isinstance(factor, Const) and (abs(factor.number * LOG2_E) <= 1.0 or _is_bounded(rest)):
                return Op("mul", (rest, Const(factor.number * LOG2_E, torch.float32)), score.dtype)
    return None


def is_level(score: Value) -> bool:
    """Whether the score is a multiple of the product, bounded, or -inf.

    Then exp(score - logsumexp) is as precise as the score. Next to a bias of -1e9, a float cannot represent the
    logarithm of a sum.
    """
    if isinstance(score, Const):
        return score.number == _LOWEST or abs(score.number) <= _LEVEL
    if isinstance(score, Load):
        return score.buffer == SCORE.buffer
    if not isinstance(score, Op):
        return False
    if score.name == "where":
        return all(map(is_level, score.args[1:]))
    if score.name == "mul" and _is_number(score.args[1]):
        return abs(score.args[1].number) <= _LEVEL and is_level(score.args[0])
    return is_level(score.args[0]) if score.name == "neg" else _is_bounded(score)


def _over_ln2(bias: Value) -> Value:
    """A bias divided by ln 2, kept finite where it is finite: the lowest numbers would overflow."""
    within = Op("mul", (bias, Const(LOG2_E, torch.float32)), torch.float32)
    for name, most in (("maximum", -_LARGEST), ("minimum", _LARGEST)):
        within = Op(name, (within, Const(most, torch.float32)), torch.float32)
    size = Op("abs", (bias,), torch.float32)
    return Op("where", (Op("eq", (size, Const(-_LOWEST, torch.float32)), torch.bool), bias, within), torch.float32)


def _is_bounded(value: Value) -> bool:
    return isinstance(value, Op) and OPS[value.name].bounded


def flat(attention: Attention, value: Value) -> Value:
    """A formula of an attention whose buffers are read by offsets; the raw score is a buffer of one element."""
    raw = Buffer(SCORE.buffer, SCORE.dtype, (1,), (1,), attention.out.buffer.device)
    return flatten_value(value, [*attention.buffers, raw])


def is_lowest(value: Value) -> bool:
    """Whether a value is minus infinity."""
    return isinstance(value, Const) and value.number == float("-inf")
