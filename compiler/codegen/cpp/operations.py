"""Pointwise operations as C++ expressions; their operands are all scalars or all vectors."""

from __future__ import annotations

import math

import torch

from ...ir.ops import OPS
from ...ir.value import Const, Op, Value
from .dtypes import lane_type, scalar_type

_INT32 = torch.iinfo(torch.int32)


def operation_text(value: Op, args: list[str], lanes: int | None) -> str:
    """The operation on `args`, which are vectors of `lanes` lanes, or scalars if `lanes` is None."""
    name, taken, form = value.name, value.args[-1].dtype, OPS[value.name].cpp
    if name == "cast" and lanes is not None and value.dtype == torch.uint8 and _fits_i32(value.args[0]):
        return f"convert<V<u8, {lanes}>>(convert<V<i32, {lanes}>>({args[0]}))"
    if name in ("cast", "bitcast"):
        return conversion_text(args[0], taken, value.dtype, lanes, bits=name == "bitcast")
    if name == "where":
        return f"sel({', '.join(args)})"
    if name.startswith("logical_"):
        return _of_truth(name, [conversion_text(a, taken, torch.bool, lanes) for a in args], lanes)
    if taken == torch.bool:
        return _of_truth(name, args, lanes)
    if lanes is not None and (bits := _power_of_two(value)) is not None:
        return f"({args[0]} >> {bits})" if name == "floordiv" else f"({args[0]} & {(1 << bits) - 1})"
    if form.numbers:
        return _exact(form.numbers.format(*args), value.dtype, lanes)
    return f"op_{name}({', '.join(args)})"


def _power_of_two(value: Op) -> int | None:
    """The bits that a floor division by a power of two drops, or that its remainder keeps; None for others."""
    by = value.args[-1]
    if value.name not in ("floordiv", "remainder") or not isinstance(by, Const) or not isinstance(by.number, int):
        return None
    return by.number.bit_length() - 1 if by.number > 0 and by.number & (by.number - 1) == 0 else None


def _fits_i32(value: Value) -> bool:
    """Whether a floating number is limited to those of i32, or NaN."""
    low, high = _ends(value)
    return value.dtype.is_floating_point and _INT32.min <= low and high < _INT32.max


def _ends(value: Value, depth: int = 4) -> tuple[float, float]:
    """The least and the greatest that a number can be, as far as constants in its last operations limit it."""
    if isinstance(value, Const) and isinstance(value.number, (int, float)) and value.number == value.number:
        return value.number, value.number
    if depth and isinstance(value, Op) and value.name in ("round", "floor", "ceil", "trunc"):
        return _ends(value.args[0], depth - 1)
    if depth and isinstance(value, Op) and value.name in ("minimum", "maximum"):
        pick = min if value.name == "minimum" else max
        (a, b), (c, d) = (_ends(arg, depth - 1) for arg in value.args)
        return pick(a, c), pick(b, d)
    return -math.inf, math.inf


def conversion_text(text: str, source: torch.dtype, to: torch.dtype, lanes: int | None, bits: bool = False) -> str:
    """A value of one dtype as another."""
    if source == to:
        return text
    if bits:
        kind = scalar_type(to) if lanes is None else f"V<{lane_type(to)}, {lanes}>"
        return f"bitcast<{kind}>({text})"
    if to == torch.bool:
        return f"({text} != 0)" if lanes is None else f"mask({text} != 0)"
    if lanes is None:
        return f"op_cast<{scalar_type(to)}>({text})"
    if source == torch.bool:
        return f"convert<V<{scalar_type(to)}, {lanes}>>(-{text})"
    if source.is_floating_point and to == torch.uint8:
        return f"to_bytes({text})"
    if source.is_floating_point and to in (torch.int8, torch.int16):  # through a wider integer, like scalars
        text = f"convert<V<i32, {lanes}>>({text})"
    return f"convert<V<{scalar_type(to)}, {lanes}>>({text})"


def _exact(text: str, dtype: torch.dtype, lanes: int | None) -> str:
    """Convert back to a narrow integer: C++ promotes its operands, and the conversion wraps."""
    return f"({scalar_type(dtype)})({text})" if lanes is None else f"({text})"


def _of_truth(name: str, args: list[str], lanes: int | None) -> str:
    """An operation on truth values: scalars, or masks."""
    form = OPS[name].cpp
    if form.truths:
        text = form.truths.format(*args)
        return text if len(args) == 1 else f"({'(bool)' if lanes is None else ''}({text}))"
    if lanes is not None and form.masks:
        return form.masks.format(*args)
    return f"op_{name}({', '.join(args)})"
