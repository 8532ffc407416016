"""Arithmetic on values, so that a lowering reads like its formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from ..ir.ops import OPS
from ..ir.value import HALVES, Number, Op, Value, compute_dtype
from .core import Tensor, cast, const
from .scalars import Scalar, literal
from .sizes import Unlowered

Operand = Value | Scalar | bool | int | float


def op(name: str, *args: Operand) -> Value:
    """A pointwise operation of `OPS`; numbers and scalars take the dtype of the last operand that is a value.

    Raises:
        Unlowered: it is for floating operands, and these are not. Metadata may have told so; the call alone is kept.
    """
    dtype = next(a.dtype for a in reversed(args) if isinstance(a, Value))
    operands = tuple(a if isinstance(a, Value) else literal(a, dtype) for a in args)
    if OPS[name].floating and not dtype.is_floating_point:
        raise Unlowered("arguments", f"{name} of {dtype}")
    return Op(name, operands, torch.bool if OPS[name].result == "bool" else dtype)


def plus(*args: Operand) -> Value:
    """``a + b + ...``, from the left."""
    return reduce(lambda a, b: op("add", a, b), args)  # type: ignore[return-value]


def minus(*args: Operand) -> Value:
    """``a - b - ...``, from the left."""
    return reduce(lambda a, b: op("sub", a, b), args)  # type: ignore[return-value]


def times(*args: Operand) -> Value:
    """``a * b * ...``, from the left."""
    return reduce(lambda a, b: op("mul", a, b), args)  # type: ignore[return-value]


def over(a: Operand, b: Operand) -> Value:
    """``a / b``, of floats."""
    return op("div", a, b)


def negated(a: Value) -> Value:
    """``-a``."""
    return op("neg", a)


def square(a: Value) -> Value:
    """``a * a``."""
    return op("mul", a, a)


# Exponents of floating-point numbers that eager computes without `pow`.
_ROOTS: dict[float, Callable[[Value], Value]] = {
    0.5: lambda a: op("sqrt", a),
    -0.5: lambda a: op("rsqrt", a),
    -1: lambda a: op("reciprocal", a),
}
# Each product rounds and each square doubles the error: 16 stays within 8 units in the last place.
_MOST_FACTORS = 16


def multiplies(exponent: float, dtype: torch.dtype) -> bool:
    """Whether `power` takes no call of `pow`: small whole exponents, positive for integers, and roots."""
    if dtype.is_floating_point and exponent in _ROOTS:
        return True
    least = -_MOST_FACTORS if dtype.is_floating_point else 1
    return least <= exponent <= _MOST_FACTORS and exponent == int(exponent) != 0


def power(a: Value, exponent: float) -> Value:
    """``a ** exponent``: a call of ``pow`` costs as much as ten products.

    a ** 5    before: pow(a, 5)    after: ((a a) (a a)) a
    """
    if exponent == 0:  # of a signalling NaN, too, for which C's function gives NaN
        return const(1, a.dtype)
    if not multiplies(exponent, a.dtype):
        return op("pow", a, exponent)
    root = _ROOTS.get(exponent)
    if root is not None and a.dtype.is_floating_point:
        return root(a)
    factor, made = a, None
    for bit in reversed(f"{abs(int(exponent)):b}"):
        if bit == "1":
            made = factor if made is None else times(factor, made)
        factor = square(factor)
    assert made is not None
    return op("reciprocal", made) if exponent < 0 else made


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """`a` where `condition` holds, else `b`; both are evaluated."""
    dtype = a.dtype if isinstance(a, Value) else b.dtype  # type: ignore[union-attr]
    a, b = (v if isinstance(v, Value) else literal(v, dtype) for v in (a, b))
    return Op("where", (condition, a, b), dtype)


def size_value(size: Any, dtype: torch.dtype) -> Value:
    """A size as a value of a compute dtype."""
    return const(size, dtype) if isinstance(size, int) else cast(Number(size, torch.int64), dtype)


def as_dtype(value: Value, of: torch.dtype, dtype: torch.dtype) -> Value:
    """An element of a tensor of dtype `of`, converted as ``.to(dtype)`` does: rounded where that is a 16-bit float."""
    made = cast(value, compute_dtype(dtype))
    return op(f"round_{str(dtype).removeprefix('torch.')}", made) if dtype in HALVES and of != dtype else made


def element(x: Tensor, indices: Any, dtype: torch.dtype) -> Value:
    """``x.to(dtype)[indices]``."""
    return as_dtype(x.at(indices), x.dtype, dtype)
