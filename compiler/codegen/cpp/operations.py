"""Pointwise operations as C++ expressions; their operands are all scalars or all vectors."""

from __future__ import annotations

import torch

from ...ir.ops import OPS
from ...ir.value import Op
from .dtypes import lane_type, scalar_type


def operation_text(value: Op, args: list[str], lanes: int | None) -> str:
    """The operation on `args`, which are vectors of `lanes` lanes, or scalars if `lanes` is None."""
    name, taken, form = value.name, value.args[-1].dtype, OPS[value.name].cpp
    if name in ("cast", "bitcast"):
        return conversion_text(args[0], taken, value.dtype, lanes, bits=name == "bitcast")
    if name == "where":
        return f"sel({', '.join(args)})"
    if name.startswith("logical_"):
        return _of_truth(name, [conversion_text(a, taken, torch.bool, lanes) for a in args], lanes)
    if taken == torch.bool:
        return _of_truth(name, args, lanes)
    if form.numbers:
        return _exact(form.numbers.format(*args), value.dtype, lanes)
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


def _of_truth(name: str, args: list[str], lanes: int | None) -> str:
    """An operation on truth values: scalars, or masks."""
    form = OPS[name].cpp
    if form.truths:
        text = form.truths.format(*args)
        return text if len(args) == 1 else f"({'(bool)' if lanes is None else ''}({text}))"
    if lanes is not None and form.masks:
        return form.masks.format(*args)
    return f"op_{name}({', '.join(args)})"
