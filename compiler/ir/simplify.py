"""Simplifies values by exact identities only: the result has the same bits, NaN and signed zeros included.

    cast(cast(b, int64), float32)           ->  cast(b, float32)     b bool: nothing was lost in between
    x * 1.0,  x - 0.0,  x + -0.0            ->  x                    but not x + 0.0, which turns -0.0 into 0.0
    x / 8.0                                 ->  x * 0.125            the same number, rounded once
    pow(2.0, float32(n))                    ->  bits_as(n + 127 << 23)    n whole and known to be from -126 to 127
    x % 8.0                                 ->  x - floor(x * 0.125) * 8.0, with the signs of its zeros
    where(True, x, y)                       ->  x
    (i < 8) where i is below 8              ->  True                 decided by ranges, also of x % 8 and clamp(x, 0, 7)
    position(i) + 3                         ->  position(i + 3)      integers of indices become indices
    int8(int64(word) >> 4)                  ->  int8(word >> 4)      no other bits count (`narrower`)
    x[index(position(i))]                   ->  x[i]                 in range for sure: nothing to check
    round_bfloat16(round_bfloat16(x))       ->  round_bfloat16(x)

Each shared part is looked at once. What is computed on constants is computed by `ops`, that is, by eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from .index import index as ix
from .index.bounds import bounds, known_le, known_lt, known_nonnegative
from .index.index import Index, Loaded
from .index.ranges import value_bounds
from .narrower import narrower
from .op_info import Neutral
from .ops import OPS, ORDERS
from .value import Const, Guarded, Load, Number, Op, Rewriter, Value

ROUNDINGS = {"round_bfloat16": torch.bfloat16, "round_float16": torch.float16}
_BIAS, _DIGITS = 127, 23  # of the exponents of float32
_EXPONENTS = 120  # of powers of two whose reciprocals are normal numbers of all dtypes that are computed with


def simplify(value: Value, halves: Mapping[str, torch.dtype] | None = None) -> Value:
    """`value`, simplified.

    Args:
        value: what to simplify.
        halves: dtypes of 16-bit buffers, by name: what is loaded from them is rounded already.
    """
    return Simplifier(halves)(value)


class Simplifier(Rewriter):
    """`simplify` for several values that share parts: what was simplified once is remembered.

    Args:
        halves: dtypes of 16-bit buffers, by name.
    """

    def __init__(self, halves: Mapping[str, torch.dtype] | None = None) -> None:
        super().__init__(self._simplified, self._index)
        self._halves = halves or {}
        self._rounded: dict[Value, frozenset[torch.dtype]] = {}

    def _simplified(self, value: Value) -> Value:
        made = self._once(value)
        self._rounded[made] = self._roundings(made)
        return made

    def _once(self, value: Value) -> Value:
        if isinstance(value, Number) and not isinstance(value.index, Index):
            return _const(value.index, value.dtype)
        if isinstance(value, Guarded):
            return _chosen(value.condition, value.value, value.other) or value
        if not isinstance(value, Op):
            return value
        rounding = ROUNDINGS.get(value.name)
        if rounding is not None and rounding in self._rounded.get(value.args[0], ()):
            return value.args[0]
        return _operation(value)

    def _roundings(self, value: Value) -> frozenset[torch.dtype]:
        """The 16-bit dtypes that hold the value exactly."""
        if isinstance(value, Load):
            return frozenset({self._halves[value.buffer]} if value.buffer in self._halves else ())
        if isinstance(value, Const):
            return _const_roundings(value)
        if isinstance(value, Guarded):
            return self._rounded.get(value.value, frozenset()) & self._rounded.get(value.other, frozenset())
        if not isinstance(value, Op):
            return frozenset()
        if value.name in ROUNDINGS:
            return frozenset({ROUNDINGS[value.name]})
        if value.name == "cast" and value.dtype == torch.float32 and value.args[0].dtype == torch.bool:
            return frozenset(ROUNDINGS.values())
        if OPS[value.name].laws.keeps_rounded and value.dtype == torch.float32:
            args = value.args[1:] if value.name == "where" else value.args
            return frozenset.intersection(*(self._rounded.get(arg, frozenset()) for arg in args))
        return frozenset()

    def _index(self, atom: ix.Atom) -> Any:
        """Indices that are known rather than loaded, where they are in range for sure."""
        if not isinstance(atom, Loaded):
            return None
        value, size = self(atom.value), self.index(atom.size)
        known = _as_index(value)
        if known is not None:
            if known_nonnegative(known) and known_lt(known, size):
                return known
            if atom.wrap and known_lt(known, 0) and known_nonnegative(ix.add(known, size)):
                return ix.add(known, size)
        return Loaded(value, size, atom.wrap).index()


def _operation(value: Op) -> Value:
    if all(isinstance(arg, Const) and not isinstance(arg.number, Index) for arg in value.args):
        return _folded(value)
    if value.name == "cast":
        return narrower(value) or _cast(value)
    if value.name == "where":
        return _chosen(*value.args) or value
    if value.dtype == torch.int64 or value.name in _DECIDED:
        known = _of_indices(value) or _of_ranges(value) or narrower(value)
        if known is not None:
            return known
    if value.name == "pow":
        return _power_of_two(value) or _binary(value)
    if len(value.args) == 2:
        return _binary(value)
    inner = value.args[0]
    if OPS[value.name].laws.involutive and isinstance(inner, Op) and inner.name == value.name:
        return inner.args[0] if inner.args[0].dtype == value.dtype else value
    return value


@lru_cache(1 << 12)
def _folded(value: Op) -> Value:
    """An operation on constants, done by eager's function."""
    info = OPS[value.name]
    args = [torch.tensor(arg.number, dtype=arg.dtype) for arg in value.args if isinstance(arg, Const)]
    try:
        made = info.reference(*args, value.dtype) if info.result == "given" else info.reference(*args)
    except RuntimeError:  # a division by zero, which must fail when run, if it is
        return value
    return Const(made.item(), value.dtype)


def _const(number: Any, dtype: torch.dtype) -> Value:
    return Const(torch.tensor(number, dtype=torch.int64).to(dtype).item(), dtype)


def _chosen(condition: Value, yes: Value, no: Value) -> Value | None:
    """The branch that is taken for sure, or None."""
    if yes is no:
        return yes
    if isinstance(condition, Const):
        return yes if condition.number else no
    return None


# -- casts ------------------------------------------------------------------------------------------------------------


def _cast(value: Op) -> Value:
    (inner,) = value.args
    if inner.dtype == value.dtype:
        return inner
    if isinstance(inner, Number) and inner.dtype == torch.int64 and value.dtype != torch.bool:
        return Number(inner.index, value.dtype)
    if isinstance(inner, Op) and inner.name == "cast" and _holds(inner.dtype, inner.args[0].dtype):
        return _cast(Op("cast", inner.args, value.dtype))
    return value


@lru_cache(None)
def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of a dtype is one of another."""
    if narrow == torch.bool or wide == narrow:
        return True
    if wide == torch.bool:
        return False
    if narrow.is_floating_point:
        return wide.is_floating_point and torch.finfo(wide).eps <= torch.finfo(narrow).eps and _reaches(wide, narrow)
    least, most = torch.iinfo(narrow).min, torch.iinfo(narrow).max
    if wide.is_floating_point:
        return max(-least, most) <= 2 / torch.finfo(wide).eps
    return torch.iinfo(wide).min <= least and most <= torch.iinfo(wide).max


def _reaches(wide: torch.dtype, narrow: torch.dtype) -> bool:
    return torch.finfo(wide).max >= torch.finfo(narrow).max and torch.finfo(wide).tiny <= torch.finfo(narrow).tiny


@lru_cache(1 << 12)
def _const_roundings(value: Const) -> frozenset[torch.dtype]:
    if value.dtype != torch.float32:
        return frozenset()
    exact = torch.tensor(value.number, dtype=torch.float32)
    return frozenset(d for d in ROUNDINGS.values() if torch.equal(exact.to(d).to(torch.float32), exact))


# -- identities of two operands ---------------------------------------------------------------------------------------


def _binary(value: Op) -> Value:
    (left, right), laws = value.args, OPS[value.name].laws
    if left is right and laws.idempotent:
        return left
    if _is(right, laws.neutral) and left.dtype == value.dtype:
        return left
    if laws.commutes and _is(left, laws.neutral) and right.dtype == value.dtype:
        return right
    for constant in (left, right):
        if _is(constant, laws.absorbing) and constant.dtype == value.dtype:
            return constant
    if value.name in _RESTS and _leaves_nothing(right, value.dtype):
        return Const(0, value.dtype)
    if value.name in ("div", *_RESTS) and _is_power_of_two(right) and value.dtype.is_floating_point:
        return _scaled(value) if value.name == "div" else _rest(value)
    return value


def _leaves_nothing(divisor: Value, dtype: torch.dtype) -> bool:
    """Whether every integer is a multiple of a divisor: ``i % 1``, the index along a dim of one element."""
    return isinstance(divisor, Const) and not dtype.is_floating_point and divisor.number in (1, -1)


def _is_power_of_two(value: Value) -> bool:
    """Whether a value is a power of two, or the negative of one, that quotients are products by the reciprocal of."""
    if not isinstance(value, Const) or type(value.number) is not float:
        return False
    mantissa, exponent = math.frexp(value.number)
    return abs(mantissa) == 0.5 and abs(exponent) <= _EXPONENTS


def _scaled(value: Op) -> Value:
    """A quotient by a power of two as a product, which is the same number rounded once."""
    left, right = value.args
    assert isinstance(right, Const)
    return _operation(Op("mul", (left, Const(1 / right.number, right.dtype)), value.dtype))


_RESTS = {"remainder": "floor", "fmod": "trunc"}  # how the quotient is rounded that leaves a rest


def _rest(value: Op) -> Value:
    """The rest of a division by a power of two from 1 on, rounded once, as `fmod` and a sum would round it.

    A quotient below the smallest number may be 0: a rest is then the dividend, which is moved if it is negative.
    """
    left, right = value.args
    if left.dtype != value.dtype or right.dtype != value.dtype or right.number < 1:  # type: ignore[attr-defined]
        return value
    zero, reciprocal = Const(0.0, value.dtype), Const(1 / right.number, value.dtype)  # type: ignore[attr-defined]

    def made(name: str, *args: Value, dtype: torch.dtype = value.dtype) -> Value:
        return Op(name, args, dtype)

    whole = made(_RESTS[value.name], made("mul", left, reciprocal))
    rest = made("sub", left, made("mul", whole, right))
    if value.name == "remainder":
        rest = made("where", made("lt", rest, zero, dtype=torch.bool), made("add", rest, right), rest)
    return made("where", made("eq", rest, zero, dtype=torch.bool), made("mul", left, zero), rest)


def _power_of_two(value: Op) -> Value | None:
    """A power of two by an integer, as a float32 of these bits; None where it may be another number."""
    base, exponent = value.args
    if value.dtype != torch.float32 or not isinstance(base, Const) or base.number != 2.0:
        return None
    whole = exponent.args[0] if isinstance(exponent, Op) and exponent.name == "cast" else None
    if whole is None or whole.dtype.is_floating_point:
        return None
    low, high = value_bounds(whole)
    if not isinstance(low, int) or not isinstance(high, int) or low <= -_BIAS or high > _BIAS:
        return None
    places = whole if whole.dtype == torch.int32 else Op("cast", (whole,), torch.int32)
    biased = Op("add", (places, Const(_BIAS, torch.int32)), torch.int32)
    return Op("bitcast", (Op("lshift", (biased, Const(_DIGITS, torch.int32)), torch.int32),), torch.float32)


def _is(value: Value, wanted: Neutral | None) -> bool:
    if wanted is None or not isinstance(value, Const) or isinstance(value.number, Index):
        return False
    dtype = value.dtype
    number = wanted[0] if dtype.is_floating_point else wanted[2] if dtype == torch.bool else wanted[1]
    if number == -1 and not dtype.is_signed:
        number = torch.iinfo(dtype).max
    return number is not None and repr(number) == repr(value.number)


# -- integers that are indices ----------------------------------------------------------------------------------------


def _as_index(value: Value) -> Any:
    """An int64 value as an index, None where it is computed from data."""
    if value.dtype != torch.int64:
        return None
    if isinstance(value, Const):
        return value.number
    return value.index if isinstance(value, Number) else None


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": ix.add, "sub": ix.sub, "mul": ix.mul, "minimum": ix.least, "maximum": ix.most,
}  # fmt: skip
_DIVISION: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": ix.quotient, "remainder": ix.remainder, "truncdiv": ix.quotient, "fmod": ix.remainder,
}  # fmt: skip
_TRUNCATING = {"truncdiv", "fmod"}
# Whether a comparison is true, whether it is false.
_DECIDED: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]] = {
    "lt": (known_lt, lambda a, b: known_le(b, a)),
    "le": (known_le, lambda a, b: known_lt(b, a)),
    "gt": (lambda a, b: known_lt(b, a), known_le),
    "ge": (lambda a, b: known_le(b, a), known_lt),
    "eq": (lambda a, b: a == b, lambda a, b: known_lt(a, b) or known_lt(b, a)),
    "ne": (lambda a, b: known_lt(a, b) or known_lt(b, a), lambda a, b: a == b),
}
_INT64 = 1 << 63


def _of_indices(value: Op) -> Value | None:
    """An operation on indices as an index, or as a constant; None where it is neither."""
    numbers = [_as_index(arg) for arg in value.args]
    if any(number is None for number in numbers):
        return None
    if value.name in _DECIDED:
        true, false = (decide(*numbers) for decide in _DECIDED[value.name])
        return Const(true, torch.bool) if true or false else None
    made = _computed(value.name, numbers)
    if made is None or not _fits(made):
        return None
    return Number(made, torch.int64) if isinstance(made, Index) else Const(made, torch.int64)


_BELOW = ORDERS[:2]


def _of_ranges(value: Op) -> Value | None:
    """A comparison of integers that what they can be decides; None where it does not."""
    if value.name not in ORDERS or any(arg.dtype.is_floating_point for arg in value.args):
        return None
    (low, high), (least, most) = map(value_bounds, value.args)
    nearest, farthest = ((high, least), (low, most)) if value.name in _BELOW else ((low, most), (high, least))
    true, false = _DECIDED[value.name]
    for decide, (x, y), answer in ((true, nearest, True), (false, farthest, False)):
        if x is not None and y is not None and decide(x, y):
            return Const(answer, torch.bool)
    return None


def _computed(name: str, numbers: list[Any]) -> Any:
    if name in _ARITHMETIC:
        return _ARITHMETIC[name](*numbers)
    if name == "neg":
        return ix.mul(numbers[0], -1)
    # Divisors that are no constants may be zero, and are then an error, when run.
    if name not in _DIVISION or isinstance(numbers[1], Index) or numbers[1] < 1:
        return None
    down = name not in _TRUNCATING or known_nonnegative(numbers[0])
    return _DIVISION[name](*numbers) if down else None


def _fits(number: Any) -> bool:
    """Whether int64 holds it: else it would wrap around, and an index does not."""
    low, high = bounds(number)
    return (low is None or low >= -_INT64) and (high is None or high < _INT64)
