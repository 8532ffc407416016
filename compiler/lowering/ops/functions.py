"""Pointwise operators that are functions of several operations: logarithms of sums, angles, steps, sinc."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.value import Op, Value
from ..arithmetic import minus, negated, op, over, plus, times, where
from ..core import Lowering, Tensor, Unlowered, cast, const, lowers
from ..scalars import literal
from .copies import copied
from .elementwise import at_least, broadcast, element, elementwise, promoted, rounded

_FARTHEST = 400  # a power of two by which any float32 becomes 0 or infinite, and that float64 holds
_BIAS, _DIGITS = 1023, 52  # of the exponents of float64


@lowers("aten.frac")
def _frac(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: minus(a, op("trunc", a)), decides=True)


@lowers("aten.sinc", "aten.special_sinc")
def _sinc(low: Lowering, x: Tensor) -> Tensor:
    def compute(a: Value) -> Value:
        product = times(a, math.pi)
        return where(op("eq", a, 0), 1, over(op("sin", product), product))

    return elementwise(low, [x], compute, "int_to_float")


@lowers("aten.xlogy")
def _xlogy(low: Lowering, x: Any, y: Any) -> Tensor:
    return elementwise(low, [x, y], lambda a, b: _times_log(a, b, op("log", b)), "int_to_float")


@lowers("aten.special_xlog1py")
def _xlog1py(low: Lowering, x: Any, y: Any) -> Tensor:
    return elementwise(low, [x, y], lambda a, b: _times_log(a, b, op("log1p", b)), "int_to_float")


def _times_log(a: Value, b: Value, logarithm: Value) -> Value:
    return where(op("isnan", b), math.nan, where(op("eq", a, 0), 0, times(a, logarithm)))


@lowers("aten.logaddexp")
def _logaddexp(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    def compute(a: Value, b: Value) -> Value:
        larger = at_least(a, b)
        total = plus(larger, op("log1p", op("exp", negated(op("abs", minus(a, b))))))
        return where(op("logical_and", op("isinf", a), op("eq", a, b)), a, total)

    return elementwise(low, [x, y], compute, "int_to_float")


@lowers("aten.logaddexp2")
def _logaddexp2(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    def compute(a: Value, b: Value) -> Value:
        larger = at_least(a, b)
        more = op("log1p", op("exp2", negated(op("abs", minus(a, b)))))
        total = plus(larger, times(more, 1 / math.log(2)))
        return where(op("logical_and", op("isinf", a), op("eq", a, b)), a, total)

    return elementwise(low, [x, y], compute, "int_to_float")


@lowers("aten.heaviside")
def _heaviside(low: Lowering, x: Tensor, values: Tensor) -> Tensor:
    def compute(a: Value, at_zero: Value) -> Value:
        return where(op("eq", a, 0), at_zero, cast(op("gt", a, literal(0, a.dtype)), a.dtype))

    return elementwise(low, [x, values], compute, decides=True)


@lowers("aten.nan_to_num")
def _nan_to_num(
    low: Lowering, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not x.dtype.is_floating_point:
        return copied(low, x)
    info = torch.finfo(x.dtype)
    nan, posinf, neginf = (
        otherwise if given is None else given
        for given, otherwise in ((nan, 0.0), (posinf, info.max), (neginf, info.min))
    )

    def compute(a: Value) -> Value:
        kept = where(op("eq", a, math.inf), posinf, where(op("eq", a, -math.inf), neginf, a))
        return where(op("isnan", a), nan, kept)

    return elementwise(low, [x], compute, decides=True)  # what overflows 16 bits is infinite there


@lowers("aten.deg2rad")
def _deg2rad(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: times(a, math.pi / 180), "int_to_float")


@lowers("aten.rad2deg")
def _rad2deg(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: times(a, 180 / math.pi), "int_to_float")


@lowers("aten.angle")
def _angle(low: Lowering, x: Tensor) -> Tensor:
    def compute(a: Value) -> Value:
        return where(op("isnan", a), a, where(op("lt", a, 0), math.pi, const(0.0, a.dtype)))

    return elementwise(low, [x], compute, "int_to_float")


@lowers("aten.ldexp")
def _ldexp(low: Lowering, x: Any, exponent: Any) -> Tensor:
    """``x * 2 ** exponent``, the power rounded to the exponent's own floating dtype first, as eager.

    Of floats by integers torch makes no power, which may be infinite where the result is not.
    """
    dtype = promoted([exponent])
    if promoted([x]).is_floating_point and not (dtype.is_floating_point or dtype.is_complex):
        return _scaled(low, x, exponent)
    power = elementwise(low, [exponent], lambda e: rounded(op("pow", 2.0, e), dtype), "int_to_float")
    return elementwise(low, [x, power], times, opmath=True)


def _scaled(low: Lowering, x: Any, exponent: Any) -> Tensor:
    """``x`` with an integer added to its exponent, rounded once: the product in float64 is exact."""
    dtype = promoted([x])
    if dtype == torch.float64 or not isinstance(x, Tensor) or not isinstance(exponent, Tensor):
        raise Unlowered("arguments", "float64 times powers of two that float64 may not hold")

    def compute(indices: tuple[Any, ...]) -> Value:
        places = cast(element(exponent, indices), torch.int32)  # more bits wrap around, as in C
        places = op("minimum", op("maximum", places, -_FARTHEST), _FARTHEST)
        bits = op("lshift", cast(op("add", places, _BIAS), torch.int64), _DIGITS)
        wide = cast(cast(element(x, indices), torch.float32), torch.float64)
        return cast(op("mul", wide, Op("bitcast", (bits,), torch.float64)), torch.float32)

    return low.pointwise(compute, broadcast([x.sizes, exponent.sizes]), dtype)
