"""Dtypes in C++: the types of elements in memory, the types of values, and literals."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from ...ir.value import compute_dtype

_SCALARS = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float32: "f32",
    torch.float64: "f64",
}
_MEMORY = {**_SCALARS, torch.bfloat16: "Bf16", torch.float16: "F16"}


class UnsupportedDtype(TypeError):  # noqa: N818 (what is the case, not what went wrong)
    """Kernels do not support this dtype."""


def scalar_type(dtype: torch.dtype) -> str:
    """The C++ type of a value of a compute dtype."""
    return _find(_SCALARS, dtype)


def memory_type(dtype: torch.dtype) -> str:
    """The C++ type of an element in memory."""
    return _find(_MEMORY, dtype)


def lane_type(dtype: torch.dtype) -> str:
    """The C++ type of the lanes of a vector; truth values are masks of 32 bits."""
    return "i32" if dtype == torch.bool else scalar_type(dtype)


def lane_bytes(dtype: torch.dtype) -> int:
    """The bytes of a lane. Narrow integers count as 4: with more lanes, other values would take several vectors."""
    return max(4, compute_dtype(dtype).itemsize)


def literal(number: Any, dtype: torch.dtype) -> str:
    """A number as a C++ expression of the dtype's type."""
    if dtype == torch.bool:
        return "true" if number else "false"
    if dtype.is_floating_point:
        return _float(float(number), dtype)
    spelled = f"{int(number)}ll" if int(number) != -(2**63) else "(-9223372036854775807ll - 1)"
    return spelled if dtype == torch.int64 else f"(({scalar_type(dtype)}){spelled})"


def _float(number: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype == torch.float32 else ""
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if suffix:
        number = _as_float32(number)
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return f"{number.hex()}{suffix}"


def _as_float32(number: float) -> float:
    """The nearest number of float32; infinite where it holds none."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _find(names: dict[torch.dtype, str], dtype: torch.dtype) -> str:
    if dtype not in names:
        raise UnsupportedDtype(f"no kernel computes with {dtype}")
    return names[dtype]
