"""Integers of 64 bits that are computed with 32, where no other bits count: twice as many lanes, or fewer instructions.

    int8(int64(word) >> shift)        ->  int8(word >> int32(shift))         0 <= shift < 32
    (int64(word) >> shift) & 15       ->  int64((word >> int32(shift)) & 15)
    int64(a) - int64(b)               ->  int64(a - b)                       where the difference is known to fit

Shifts by positions (`torch.arange(0, 32, 4)`) make 64 bits of words of 32.
"""

from __future__ import annotations

import torch

from .index.bounds import bounds
from .index.ranges import value_bounds
from .value import Const, Number, Op, Value

_SHORT, _LONG = torch.int32, torch.int64
_MOST = torch.iinfo(_SHORT).max
_SUMS = ("add", "sub")


def narrower(value: Op) -> Value | None:
    """The same value by integers of 32 bits; None where that is not known to be the same."""
    if value.name == "cast":
        bits = not value.dtype.is_floating_point and value.dtype not in (torch.bool, _LONG)
        shifted = _shifted(value.args[0]) if bits else None
        return None if shifted is None else Op("cast", (shifted,), value.dtype) if value.dtype != _SHORT else shifted
    if value.dtype != _LONG:
        return None
    if value.name == "bitwise_and":
        return _masked(value)
    return _summed(value) if value.name in _SUMS else None


def _masked(value: Op) -> Value | None:
    mask = value.args[1]
    if not isinstance(mask, Const) or not isinstance(mask.number, int) or not 0 <= mask.number <= _MOST:
        return None
    shifted = _shifted(value.args[0])
    return None if shifted is None else _long(Op("bitwise_and", (shifted, Const(mask.number, _SHORT)), _SHORT))


def _shifted(value: Value) -> Value | None:
    """A word of 32 bits that is shifted with 64, as the lower half of the result."""
    if not isinstance(value, Op) or value.name != "rshift" or value.dtype != _LONG:
        return None
    word, (low, high) = _word(value.args[0]), _ends(value.args[1])
    if word is None or low is None or high is None or low < 0 or high > torch.iinfo(_SHORT).bits - 1:
        return None
    return Op("rshift", (word, _as_short(value.args[1])), _SHORT)


def _summed(value: Op) -> Value | None:
    """A sum or difference of bits that fits."""
    if not any(isinstance(arg, Op) and arg.name == "cast" and _is_masked(arg.args[0]) for arg in value.args):
        return None
    parts, ends = [_word(arg) for arg in value.args], [_ends(arg) for arg in value.args]
    if any(part is None for part in parts) or any(end is None for pair in ends for end in pair):
        return None
    (a, b), (c, d) = ends
    low, high = (a + c, b + d) if value.name == "add" else (a - d, b - c)  # type: ignore[operator]
    if not all(-_MOST <= end <= _MOST for end in (low, high, a, b, c, d)):  # type: ignore[operator]
        return None
    return _long(Op(value.name, tuple(part for part in parts if part is not None), _SHORT))


def _word(value: Value) -> Value | None:
    """What is widened to 64 bits, in 32; a constant."""
    if isinstance(value, Op) and value.name == "cast" and value.dtype == _LONG:
        source = value.args[0]
        whole = not source.dtype.is_floating_point and source.dtype not in (torch.bool, _LONG)
        return _as_short(source) if whole else None
    return _as_short(value) if isinstance(value, Const) and value.dtype == _LONG else None


def _is_masked(value: Value) -> bool:
    return isinstance(value, Op) and value.name == "bitwise_and"


def _as_short(value: Value) -> Value:
    if value.dtype == _SHORT:
        return value
    if isinstance(value, Const):
        return Const(value.number, _SHORT)
    if isinstance(value, Number):
        return Number(value.index, _SHORT)
    if isinstance(value, Op) and value.name == "cast" and value.args[0].dtype == _SHORT:
        return value.args[0]
    return Op("cast", (value,), _SHORT)


def _long(value: Value) -> Value:
    return Op("cast", (value,), _LONG)


def _ends(value: Value) -> tuple[int | None, int | None]:
    """The least and the greatest that a value can be, if they are known numbers."""
    if isinstance(value, Number):
        low, high = bounds(value.index)
    else:
        low, high = value_bounds(value)
    return (low if isinstance(low, int) else None), (high if isinstance(high, int) else None)
