"""Dtypes in Triton's words."""

from __future__ import annotations

import math
from typing import Any

import torch

# Names of dtypes in memory: Triton's types, and the types in signatures of kernels.
_NAMES = {
    torch.bool: ("int1", "i1"),
    torch.uint8: ("uint8", "u8"),
    torch.int8: ("int8", "i8"),
    torch.int16: ("int16", "i16"),
    torch.int32: ("int32", "i32"),
    torch.int64: ("int64", "i64"),
    torch.float16: ("float16", "fp16"),
    torch.bfloat16: ("bfloat16", "bf16"),
    torch.float32: ("float32", "fp32"),
    torch.float64: ("float64", "fp64"),
}


class UnsupportedDtypeError(Exception):
    """A kernel computes with a dtype that Triton has no type for."""


def type_name(dtype: torch.dtype) -> str:
    """The type of a value: ``tl.float32``.

    Raises:
        UnsupportedDtypeError: Triton has none.
    """
    if dtype not in _NAMES:
        raise UnsupportedDtypeError(f"Triton computes with no {dtype}; it has {', '.join(map(str, _NAMES))}")
    return f"tl.{_NAMES[dtype][0]}"


def signature_name(dtype: torch.dtype) -> str:
    """The type in a kernel's signature: ``fp32``; a pointer to it is ``*fp32``."""
    type_name(dtype)
    return _NAMES[dtype][1]


def literal(number: Any, dtype: torch.dtype) -> str:
    """A number of a dtype, as a block of one element: Triton's bare literals have no dtype of their own."""
    if _is_minus_zero(number, dtype):
        return f"minus_zero({type_name(dtype)})"
    return f"tl.full([1, 1], {spelled(number, dtype)}, {type_name(dtype)})"


def bare_literal(number: Any, dtype: torch.dtype) -> str | None:
    """A number as it is, for an operation with a block of its dtype, which it takes on; None where that is not sure."""
    if dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return None
    return None if _is_minus_zero(number, dtype) else spelled(number, dtype)


def _is_minus_zero(number: Any, dtype: torch.dtype) -> bool:
    """Whether a number is -0.0, of which Triton keeps no sign: all that equals 0 becomes the null value."""
    return dtype.is_floating_point and number == 0 and math.copysign(1, number) < 0


def spelled(number: Any, dtype: torch.dtype) -> str:
    """A number as Python, where another operand decides the dtype."""
    if dtype == torch.bool:
        return repr(bool(number))
    if not dtype.is_floating_point:
        return repr(int(number))
    number = float(number)
    return repr(number) if math.isfinite(number) else f'float("{number}")'
