"""Score functions as the online softmax likes them.

where(j <= i, s * 0.125, -inf)   ->   where(j <= i, s * (0.125 / ln 2), -inf)      powers of two are what GPUs compute
s * 0.125 + bias[i, j]           ->   unchanged: biases may be as low as floats are, and lower ones are infinite
"""

from __future__ import annotations

import math

import torch

from ..ir.value import Const, Op, Value

LOG2_E = math.log2(math.e)
_LOWEST = float("-inf")


def in_powers_of_two(score: Value) -> Value | None:
    """The score over ln 2, where that costs nothing and can overflow nowhere; None elsewhere.

    exp(score - maximum) is 2 to the power of what is given less its maximum.
    """
    if isinstance(score, Const):
        return score if score.number == _LOWEST else None
    if not isinstance(score, Op):
        return None
    if score.name == "where":
        chosen, other = map(in_powers_of_two, score.args[1:])
        return None if chosen is None or other is None else Op("where", (score.args[0], chosen, other), score.dtype)
    if score.name == "mul":
        for factor, rest in (score.args, score.args[::-1]):
            if isinstance(factor, Const) and abs(factor.number * LOG2_E) <= 1.0:
                return Op("mul", (rest, Const(factor.number * LOG2_E, torch.float32)), score.dtype)
    return None
