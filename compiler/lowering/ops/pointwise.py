"""Pointwise operators: arithmetic, comparisons, logic, bits, functions of one number, choice.

Functions of several operations are in `functions`, conversions in `copies`, activations in `activations`, optimizers'
lists of tensors in `foreach`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...ir.index.bounds import known_nonnegative
from ...ir.value import HALVES, Value, compute_dtype
from ..arithmetic import minus, multiplies, op, over, plus, power, times, where
from ..core import Lowering, Tensor, cast, const, lowers
from ..scalars import Scalar, exact, literal
from ..sizes import Unlowered
from .copies import copied
from .elementwise import Kind, at_least, at_most, broadcast, element, elementwise, is_scalar, promoted, rounded, widened

# -- tables: operators that are one operation -----------------------------------------------------------------------

UNARY_SAME = ("abs", "neg", "sign", "bitwise_not")
UNARY_FLOAT = (
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
    "digamma", "sigmoid",
)  # fmt: skip
BINARY = {
    "maximum": "maximum", "minimum": "minimum", "fmod": "fmod", "remainder": "remainder",
    "hypot": "hypot", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift", "__lshift__": "lshift", "__rshift__": "rshift",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor",
}  # fmt: skip
BINARY_FLOAT = ("atan2", "copysign")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")


def _declare(names: Iterable[str], make: Callable[[str], Callable[..., Any]]) -> None:
    for name in names:
        lowers(f"aten.{name}")(make(name))


_DECIDING = ("sign", "fmod", "remainder")


def _unary(kind: Kind) -> Callable[[str], Callable[..., Any]]:
    return lambda name: (
        lambda low, x: elementwise(low, [x], lambda a: op(name, a), kind, decides=name in _DECIDING or None)
    )


def _binary(kind: Kind) -> Callable[[str], Callable[..., Any]]:
    return lambda name: (
        lambda low, x, y: elementwise(
            low, [x, y], lambda a, b: op(BINARY.get(name, name), a, b), kind, decides=name in _DECIDING or None
        )
    )


_declare(UNARY_SAME, _unary("default"))
_declare(UNARY_FLOAT, _unary("int_to_float"))
_declare(["logical_not"], _unary("always_bool"))
_declare(BINARY, _binary("default"))
_declare(BINARY_FLOAT, _binary("int_to_float"))
_declare(COMPARISONS, _binary("always_bool"))


def _rounding(name: str) -> Callable[..., Any]:
    def lowering(low: Lowering, x: Tensor) -> Tensor:
        if not x.dtype.is_floating_point:
            return copied(low, x)
        return elementwise(low, [x], lambda a: op(name, a), decides=True)

    return lowering


_declare(("floor", "ceil", "trunc", "round.default"), lambda name: _rounding(name.split(".")[0]))


@lowers("aten.round.decimals")
def _round_decimals(low: Lowering, x: Tensor, *, decimals: int) -> Tensor:
    if not x.dtype.is_floating_point:
        return copied(low, x)
    ten = 10.0 ** abs(decimals) if abs(decimals) <= sys.float_info.max_10_exp else math.inf

    def compute(a: Value) -> Value:
        if decimals == 0:
            return op("round", a)
        scaled = op("round", times(a, ten) if decimals > 0 else over(a, ten))
        return over(scaled, ten) if decimals > 0 else times(scaled, ten)

    return elementwise(low, [x], compute, decides=True)


# -- arithmetic -----------------------------------------------------------------------------------------------------


def _times(value: Value, alpha: Any) -> Value:
    return value if isinstance(alpha, (int, float)) and alpha == 1 else times(value, alpha)


def _summed(low: Lowering, x: Any, y: Any, alpha: Any, compute: Callable[[Value, Value], Value]) -> Tensor:
    """A sum of `x` and alpha * `y`. On CPUs eager rounds numbers to 16 bits where tensors have these, on GPUs not."""
    common, kept = promoted([x, y]), low.device.type != "cpu"
    if isinstance(alpha, float) and not kept and common in HALVES:
        alpha = float(torch.tensor(alpha, dtype=common))
    return elementwise(low, [x, y], lambda a, b: compute(a, _times(b, alpha)), opmath=kept)


@lowers("aten.add")
def _add(low: Lowering, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return _summed(low, x, y, alpha, plus)


@lowers("aten.sub")
def _sub(low: Lowering, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return _summed(low, x, y, alpha, minus)


@lowers("aten.rsub")
def _rsub(low: Lowering, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return _summed(low, y, x, alpha, minus)


@lowers("aten.mul")
def _mul(low: Lowering, x: Any, y: Any) -> Tensor:
    return elementwise(low, [x, y], times, opmath=True)


@lowers("aten.div", "aten.true_divide")
def _div(low: Lowering, x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    inverted = low.device.type != "cpu" and type(y) in (int, float)  # as eager does it with numbers on GPUs
    if rounding_mode is None and inverted:
        return elementwise(low, [x], lambda a: times(a, _inverse(y, torch.float64)), "int_to_float")
    if rounding_mode is None:
        return elementwise(low, [x, y], over, "int_to_float", opmath=True)
    common = promoted([x, y])
    if rounding_mode == "trunc" and inverted and common.is_floating_point:
        inverse = _inverse(y, compute_dtype(common))
        return elementwise(low, [x], lambda a: op("trunc", times(a, inverse)), "int_to_float", decides=True)
    if rounding_mode == "floor":
        return _floor_divide(low, x, y)
    if common in HALVES and not is_scalar(1, y):
        return elementwise(low, [x, y], lambda a, b: op("trunc", rounded(over(a, b), common)), decides=True)
    return elementwise(low, [x, y], lambda a, b: op("truncdiv", a, b), opmath=True, decides=True)


def _inverse(number: float, precision: torch.dtype) -> float:
    """The inverse of a number, computed in some precision."""
    return torch.tensor(float(number), dtype=precision).reciprocal().item()


@lowers("aten.floor_divide")
def _floor_divide(low: Lowering, x: Any, y: Any) -> Tensor:
    common = promoted([x, y])
    if common in HALVES and not is_scalar(1, y):
        return elementwise(low, [x, y], lambda a, b: _floored(a, b, common), decides=True)
    of_tensor = isinstance(x, Tensor)  # a number that is divided is rounded as tensors are, one that divides is not
    return elementwise(low, [x, y], lambda a, b: op("floordiv", a, b), opmath=of_tensor, decides=True)


def _floored(a: Value, b: Value, dtype: torch.dtype) -> Value:
    """A quotient of 16 bits, rounded down: eager rounds each step to 16 bits, and may end a unit beside the floor."""
    rest = op("fmod", a, b)
    quotient = rounded(over(rounded(minus(a, rest), dtype), b), dtype)
    apart = op("logical_and", op("ne", rest, 0), op("ne", op("lt", b, 0), op("lt", rest, 0)))
    quotient = where(apart, rounded(minus(quotient, 1), dtype), quotient)
    floor = op("floor", quotient)
    floor = where(op("gt", rounded(minus(quotient, floor), dtype), 0.5), rounded(plus(floor, 1), dtype), floor)
    floor = where(op("eq", quotient, 0), op("copysign", const(0.0, a.dtype), over(a, b)), floor)
    return where(op("eq", b, 0), over(a, b), floor)


@lowers("aten.square")
def _square(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: times(a, a), "bool_to_long")


@lowers("prims.fma")
def _fma(low: Lowering, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a * b + c``, rounded as eager's `addcmul` on a CPU rounds, from which tracing makes it."""
    return _addcmul(low, c, a, b)


@lowers("aten.addcmul")
def _addcmul(low: Lowering, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return elementwise(low, [x, a, b], lambda x, a, b: plus(x, _scaled(low, times, a, b, value)))


@lowers("aten.addcdiv")
def _addcdiv(low: Lowering, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return elementwise(low, [x, a, b], lambda x, a, b: plus(x, _scaled(low, over, a, b, value)))


def _scaled(low: Lowering, combine: Callable[[Value, Value], Value], a: Value, b: Value, value: Any) -> Value:
    """`value` times the product or quotient of two: first times `a` on CPUs, last on GPUs, as eager."""
    if low.device.type == "cpu":
        return combine(_times(a, value), b)
    return _times(combine(a, b), value)


@lowers("aten.lerp")
def _lerp(low: Lowering, x: Tensor, y: Tensor, weight: Any) -> Tensor:
    """From the nearer end, as eager: exact at both."""

    def compute(a: Value, b: Value, w: Value) -> Value:
        span = minus(b, a)
        near = op("lt", op("abs", w), 0.5)
        return where(near, plus(a, times(w, span)), minus(b, times(span, minus(1, w))))

    return elementwise(low, [x, y, weight], compute, opmath=True)


# -- powers ---------------------------------------------------------------------------------------------------------


@lowers("aten.pow")
def _pow(low: Lowering, x: Any, y: Any) -> Tensor:
    dtype = promoted([x, y])
    if isinstance(x, (bool, int, float)) and x == 1:  # whatever `y` is: of a signalling NaN C's function gives NaN
        return low.pointwise(lambda i: const(1, compute_dtype(dtype)), y.sizes, dtype)
    if isinstance(y, Scalar) and not dtype.is_floating_point and not known_nonnegative(exact(y)):
        raise Unlowered("symbolic", "a power of integers that eager refuses where it is negative")
    whole = isinstance(y, (int, float)) and (y == 0 or multiplies(y, dtype))
    if not whole or (abs(y) == 0.5 and _is_cpu_half(low, dtype)):
        return elementwise(low, [x, y], lambda a, b: op("pow", a, b))
    return elementwise(low, [x], lambda a: power(cast(a, compute_dtype(dtype)), y), dtype=dtype)


def _is_cpu_half(low: Lowering, dtype: torch.dtype) -> bool:
    """Whether eager calls `pow` for roots too, for which -0.0 has the root 0.0 and -inf the root inf."""
    return dtype == torch.float16 and low.device.type == "cpu"


@lowers("aten.float_power")
def _float_power(low: Lowering, x: Any, y: Any) -> Tensor:
    def double(value: Value) -> Value:
        return cast(value, torch.float64)

    if isinstance(y, (int, float)):
        return elementwise(low, [x], lambda a: power(double(a), y), dtype=torch.float64)
    return elementwise(low, [x, y], lambda a, b: op("pow", double(a), double(b)), dtype=torch.float64)


# -- least and greatest ---------------------------------------------------------------------------------------------


@lowers("aten.fmax")
def _fmax(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    return _ignoring_nan(low, "maximum", x, y)


@lowers("aten.fmin")
def _fmin(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    return _ignoring_nan(low, "minimum", x, y)


def _ignoring_nan(low: Lowering, name: str, x: Tensor, y: Tensor) -> Tensor:
    """The larger or smaller number, without NaN: of two zeros the first, in bfloat16 on CPUs the second, as eager."""
    second = low.device.type == "cpu" and promoted([x, y]) == torch.bfloat16
    return elementwise(low, [x, y], lambda a, b: _chosen_number(name, a, b, (a, b) if second else (b, a)))


def _chosen_number(name: str, a: Value, b: Value, order: tuple[Value, Value]) -> Value:
    chosen = op(name, *order)
    if not a.dtype.is_floating_point:
        return chosen
    return where(op("isnan", a), b, where(op("isnan", b), a, chosen))


@lowers("aten.clamp")
def _clamp(low: Lowering, x: Tensor, least: Any = None, most: Any = None) -> Tensor:
    """At least `least`, then at most `most`; NaN stays NaN."""
    limits = [limit for limit in (least, most) if limit is not None]
    if len(limits) == 1 and _limits_nothing(low, limits[0]):
        return copied(low, x)

    def compute(a: Value, *rest: Value) -> Value:
        given = list(rest)
        a = a if least is None else at_least(a, given.pop(0))
        return a if most is None else at_most(a, given.pop(0))

    return elementwise(low, [x, *limits], compute)


@lowers("aten.clamp_min")
def _clamp_min(low: Lowering, x: Tensor, limit: Any) -> Tensor:
    return copied(low, x) if _limits_nothing(low, limit) else elementwise(low, [x, limit], at_least)


@lowers("aten.clamp_max")
def _clamp_max(low: Lowering, x: Tensor, limit: Any) -> Tensor:
    return copied(low, x) if _limits_nothing(low, limit) else elementwise(low, [x, limit], at_most)


def _limits_nothing(low: Lowering, limit: Any) -> bool:
    """Whether eager takes no notice of a limit: of a number that is NaN, on GPUs, where there is no other."""
    return low.device.type != "cpu" and isinstance(limit, float) and math.isnan(limit)


# -- questions ------------------------------------------------------------------------------------------------------


@lowers("aten.isnan")
def _isnan(low: Lowering, x: Tensor) -> Tensor:
    return _question(low, x, lambda a: op("isnan", a), integers=False)


@lowers("aten.isinf")
def _isinf(low: Lowering, x: Tensor) -> Tensor:
    return _question(low, x, lambda a: op("isinf", a), integers=False)


@lowers("aten.isfinite")
def _isfinite(low: Lowering, x: Tensor) -> Tensor:
    return _question(low, x, lambda a: op("lt", op("abs", a), math.inf), integers=True)


@lowers("aten.isposinf")
def _isposinf(low: Lowering, x: Tensor) -> Tensor:
    return _question(low, x, lambda a: op("eq", a, math.inf), integers=False)


@lowers("aten.isneginf")
def _isneginf(low: Lowering, x: Tensor) -> Tensor:
    return _question(low, x, lambda a: op("eq", a, -math.inf), integers=False)


def _question(low: Lowering, x: Tensor, compute: Callable[[Value], Value], *, integers: bool) -> Tensor:
    """A test of floating numbers; `integers` is the answer for all integers."""
    if not x.dtype.is_floating_point:
        return low.pointwise(lambda i: const(integers, torch.bool), x.sizes, torch.bool)
    return elementwise(low, [x], compute, "always_bool")


@lowers("aten.signbit")
def _signbit(low: Lowering, x: Tensor) -> Tensor:
    if x.dtype == torch.bool:
        return low.pointwise(lambda i: const(False, torch.bool), x.sizes, torch.bool)
    return elementwise(
        low, [x], lambda a: op("signbit", a), "always_bool", decides=False
    )  # rounding keeps no NaN's sign


@lowers("aten.sgn")
def _sgn(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: op("sign", a), decides=True)


@lowers("aten.positive")
def _positive(_: Lowering, x: Tensor) -> Tensor:
    return x


@lowers("aten.nextafter")
def _nextafter(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    if promoted([x, y]) in HALVES:
        raise Unlowered("dtype", "the next 16-bit number is not the next 32-bit one")
    return elementwise(low, [x, y], lambda a, b: op("nextafter", a, b))


# -- choice ---------------------------------------------------------------------------------------------------------


@lowers("aten.where")
def _where(low: Lowering, condition: Tensor, x: Any, y: Any) -> Tensor:
    dtype = promoted([x, y])

    def compute(*chosen: Value) -> Value:
        return where(*chosen)

    return _chosen(low, condition, [x, y], dtype, compute)


def _chosen(
    low: Lowering, condition: Tensor, operands: list[Any], dtype: torch.dtype, compute: Callable[..., Value]
) -> Tensor:
    """``compute(condition, *operands)``, operands converted to `dtype`, the condition to bool."""
    computed = compute_dtype(dtype)
    dtypes = [o.dtype if isinstance(o, Tensor) else dtype for o in operands]

    def converted(*values: Value) -> Value:
        flag, *rest = values
        taken = (cast(widened(v, own, dtype), computed) for v, own in zip(rest, dtypes, strict=True))
        return compute(cast(flag, torch.bool), *(rounded(v, dtype) for v in taken))

    return raw(low, [condition, *operands], converted, dtype)


def raw(low: Lowering, operands: list[Any], compute: Callable[..., Value], dtype: torch.dtype) -> Tensor:
    """One pointwise definition of operands that are broadcast, each in its own compute dtype."""
    sizes = broadcast(o.sizes for o in operands if isinstance(o, Tensor))
    computed = compute_dtype(dtype)

    def value(i: tuple[Any, ...]) -> Value:
        return compute(*(element(o, i) if isinstance(o, Tensor) else literal(o, computed) for o in operands))

    return low.pointwise(value, sizes, dtype)


@lowers("aten.masked_fill")
def _masked_fill(low: Lowering, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _chosen(low, mask, [value, x], x.dtype, where)
