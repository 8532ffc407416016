"""Variances and standard deviations on CPUs, of rows that stay in cache: eager's range and precision without float64.

    d    = x[i] - x[0]                                    near 0 where the mean is large, and 0 where all are equal
    c    = sum(d / 2 ** k) / n                            with n <= 2 ** k, so that no sum overflows
    s    = 2 ** -(exponent of the largest magnitude)      nor any square, which do not underflow either
    t    = s * x[i] - s * x[0] - s * 2 ** k * c           whose mean is what rounding, of tiny numbers too, left of it
    std  = sqrt((sum(t ** 2) - sum(t) ** 2 / n) / (n - correction)) / s

Products by powers of two are exact. Eager computes in float64, which takes two to three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir.value import HALVES, Const, Op, Value
from ..arithmetic import element, minus, op, over, plus, size_value, square, times
from ..core import Indices, Lowering, Tensor
from ..spaces import Space, fold

_F32, _I32 = torch.float32, torch.int32
# Fewest elements of a row, of 16 bits and of 32. Shorter ones would take longer: two folds more are joined for each.
_LONG, _LONG_WIDE = 128, 256
_MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 number without its sign; of NaN they are the largest
_MANTISSA_BITS = 23
_EXPONENTS = 254  # the exponent field of a number and that of its reciprocal add up to this


def is_scaled(low: Lowering, x: Tensor, of: Space) -> bool:
    """Whether a variance or deviation is computed so: of rows of a known number of elements that fit in cache.

    Columns of float32 take less time in float64.
    """
    if low.device.type != "cpu" or not isinstance(of.count, int) or not of.cached:
        return False
    if x.dtype in HALVES:
        return of.count >= _LONG
    return x.dtype == _F32 and of.count >= _LONG_WIDE and _contiguous(x) in of.dims


def _contiguous(x: Tensor) -> int:
    """The dim along which neighbours lie, the last one where it is not known."""
    strides = list(x.buffer.strides) if x.is_whole else []
    return strides.index(1) if 1 in strides else len(x.sizes) - 1


def scaled_deviation(
    low: Lowering, x: Tensor, of: Space, correction: float | None, *, root: bool
) -> tuple[Tensor, Tensor]:
    """The mean, and the standard deviation or (not `root`) the variance, in float32."""
    count, small = size_value(of.count, _F32), 1.0 / (1 << (of.count - 1).bit_length())
    scale = fold(low, of, "max", lambda i: _magnitude(element(x, i, _F32)), lambda _, top: _reciprocal(top), _F32)[0]

    first = first_of(x, of, _F32)

    def times_of(i: Indices, factor: Any) -> Value:
        """The difference from the first element, times a power of two."""
        return minus(times(element(x, i, _F32), factor), times(first(of.result(i)), factor))

    center = fold(low, of, "sum", lambda i: times_of(i, small), lambda _, total: over(total, count), _F32)[0]

    def left(i: Indices) -> Value:
        row = of.result(i)
        return minus(times_of(i, scale.at(row)), times(times(center.at(row), 1.0 / small), scale.at(row)))

    rest = fold(low, of, "sum", left, lambda _, total: total, _F32)[0]

    def deviation(row: Indices, total: Value) -> Value:
        freedom = op("maximum", minus(count, 1.0 if correction is None else correction), 0.0)
        squares = op("maximum", minus(total, over(square(rest.at(row)), count)), 0.0)
        variance = over(squares, freedom)
        return over(op("sqrt", variance) if root else over(variance, scale.at(row)), scale.at(row))

    spread = fold(low, of, "sum", lambda i: square(left(i)), deviation, _F32)[0]
    mean = low.pointwise(lambda row: plus(first(row), times(center.at(row), 1.0 / small)), center.sizes, _F32)
    return mean, spread


def first_of(x: Tensor, of: Space, dtype: torch.dtype) -> Callable[[Indices], Value]:
    """The first element of a row, by the result's indices; rows have elements."""
    return lambda row: element(x, of.indices(_without_reduced(of, row), (0,) * len(of.dims)), dtype)


def _without_reduced(of: Space, row: Indices) -> Indices:
    """The indices of the dims kept, of those of a result."""
    return tuple(i for d, i in enumerate(row) if d not in of.dims) if of.keepdim else row


def _magnitude(value: Value) -> Value:
    return Op("bitwise_and", (Op("bitcast", (value,), _I32), Const(_MAGNITUDE, _I32)), _I32)


def _reciprocal(bits: Value) -> Value:
    """A power of two whose product with a number of these bits is below 4; of 0 and infinity any that is finite."""

    def whole(name: str, *args: Any) -> Value:
        return Op(name, tuple(Const(a, _I32) if isinstance(a, int) else a for a in args), _I32)

    exponent = whole("sub", _EXPONENTS, whole("rshift", bits, _MANTISSA_BITS))
    return Op("bitcast", (whole("lshift", whole("maximum", exponent, 1), _MANTISSA_BITS),), _F32)


__all__ = ["first_of", "is_scaled", "scaled_deviation"]
