"""The derivative of a score function by the product of a row of q and a row of k.

s * 0.125 + bias[i, j]           ->   0.125
where(j <= i, s * 0.125, -inf)   ->   0.125                   hidden keys have weight 0
tanh(s / 50) * 50                ->   1 - tanh(s / 50)^2
"""

from __future__ import annotations

import math

import torch

from ...ir.dependence import Dependence
from ...ir.ops import OPS
from ...ir.value import Const, Load, Op, Value
from .description import SCORE
from .score import is_lowest

_F32 = torch.float32
ONE, ZERO = Const(1.0, _F32), Const(0.0, _F32)


class NoDerivativeError(Exception):
    """A score function has an operation whose derivative is not known."""


def derivative(score: Value) -> Value:
    """The derivative by the raw product, for scores that are not -inf.

    Args:
        score: the score function; the product is a load from `SCORE.buffer`.

    Raises:
        NoDerivativeError: an operation on the product has no known derivative.
    """
    return _Derivative().of(score)


class _Derivative:
    def __init__(self) -> None:
        self._dependence = Dependence()
        self._memo: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        if value not in self._memo:
            self._memo[value] = self._made(value)
        return self._memo[value]

    def _made(self, value: Value) -> Value:
        if ("buffer", SCORE.buffer) not in self._dependence.of(value):
            return ZERO
        if isinstance(value, Load) and value.buffer == SCORE.buffer:
            return ONE
        if not isinstance(value, Op) or value.dtype != _F32:
            raise NoDerivativeError(f"the derivative of {type(value).__name__} of {value.dtype} by the score")
        if value.name == "where":
            return self._chosen(*value.args)
        outer = OPS[value.name].derivative
        if outer is not None:
            return times(outer(_Algebra, value, value.args[0]), self.of(value.args[0]))
        if value.name in ("add", "sub", "mul", "div"):
            return self._combined(value.name, value, *value.args)
        raise NoDerivativeError(f"the derivative of {value.name} by the score")

    def _chosen(self, condition: Value, a: Value, b: Value) -> Value:
        if is_lowest(b):
            return self.of(a)
        if is_lowest(a):
            return self.of(b)
        chosen, other = self.of(a), self.of(b)
        return chosen if chosen is other else Op("where", (condition, chosen, other), _F32)

    def _combined(self, name: str, value: Value, a: Value, b: Value) -> Value:
        da, db = self.of(a), self.of(b)
        if name == "add":
            return plus(da, db)
        if name == "sub":
            return plus(da, times(db, Const(-1.0, _F32)))
        if name == "mul":
            return plus(times(da, b), times(a, db))
        over = plus(da, times(times(value, db), Const(-1.0, _F32)))
        return ZERO if over is ZERO else Op("div", (over, b), _F32)


def apart(slope: Value) -> tuple[Value, float]:
    """A derivative as a value and a constant factor: 0.125 is 1 and 0.125."""
    if isinstance(slope, Const):
        return ONE, float(slope.number)
    if isinstance(slope, Op) and slope.name == "mul":
        for value, factor in (slope.args, slope.args[::-1]):
            if isinstance(factor, Const):
                return value, float(factor.number)
    return slope, 1.0


def is_finite(value: Value) -> bool:
    """Whether a value is finite for all products that are not NaN: nothing in it can overflow."""
    if isinstance(value, Const):
        return math.isfinite(value.number)
    if not isinstance(value, Op):
        return False
    if OPS[value.name].bounded:
        return True
    if value.name in ("add", "sub", "mul", "neg"):
        return all(map(is_finite, value.args))
    return value.name == "where" and all(map(is_finite, value.args[1:]))


def plus(a: Value, b: Value) -> Value:
    """A sum."""
    if a is ZERO or b is ZERO:
        return b if a is ZERO else a
    return Op("add", (a, b), _F32)


def times(a: Value, b: Value) -> Value:
    """A product."""
    if a is ZERO or b is ZERO:
        return ZERO
    if a is ONE or b is ONE:
        return b if a is ONE else a
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.number * b.number, _F32)
    return Op("mul", (a, b), _F32)


class _Algebra:
    """The functions by which the table of operations writes derivatives."""

    one, minus_one = ONE, Const(-1.0, _F32)
    times = staticmethod(times)

    @staticmethod
    def op(name: str, *args: Value) -> Value:
        """An operation on floats."""
        return Op(name, args, _F32)
