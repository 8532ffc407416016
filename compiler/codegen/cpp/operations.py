"""Pointwise operations as C++ expressions; their operands are all scalars or all vectors."""

from __future__ import annotations

import torch

from ...ir.value import Op
from .dtypes import lane_type, scalar_type

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
# The meaning of arithmetic operations on truth values.
_TRUTH = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&", "ne": "^", "div": "&"}
_ORDER = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def operation_text(value: Op, args: list[str], lanes: int | None) -> str:
    """The operation on `args`, which are vectors of `lanes` lanes, or scalars if `lanes` is None."""
    name, taken = value.name, value.args[-1].dtype
    if name in ("cast", "bitcast"):
        return conversion_text(args[0], taken, value.dtype, lanes, bits=name == "bitcast")
    if name == "where":
        return f"sel({', '.join(args)})"
    if name in _LOGIC or name == "logical_not":
        return _logic(name, [_truth(a, taken, lanes) for a in args], lanes)
    if taken == torch.bool:
        return _of_truth(name, args, lanes)
    if name in _INFIX or name in _BITS:
        return _exact(f"{args[0]} {(_INFIX | _BITS)[name]} {args[1]}", value.dtype, lanes)
    if name == "bitwise_not":
        return _exact(f"~{args[0]}", value.dtype, lanes)
    return f"op_{name}({', '.join(args)})"


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


def _truth(text: str, dtype: torch.dtype, lanes: int | None) -> str:
    return conversion_text(text, dtype, torch.bool, lanes)


def _logic(name: str, args: list[str], lanes: int | None) -> str:
    if name == "logical_not":
        return f"flip({args[0]})"
    return f"({'(bool)' if lanes is None else ''}({args[0]} {_LOGIC[name]} {args[1]}))"


def _of_truth(name: str, args: list[str], lanes: int | None) -> str:
    """Operations on truth values. In masks, true (-1) is less than false (0), so comparisons are swapped."""
    sign = _TRUTH.get(name) or _BITS.get(name)
    if sign is not None:
        return f"({'(bool)' if lanes is None else ''}({args[0]} {sign} {args[1]}))"
    if name == "bitwise_not":
        return f"flip({args[0]})"
    if name in ("abs", "sign"):
        return args[0]
    if lanes is not None:
        return f"op_{_ORDER.get(name, name)}({', '.join(args)})"
    return f"op_{name}({', '.join(args)})"
