"""Pointwise operations as Triton expressions, and the library functions that they call."""

from __future__ import annotations

import torch

from ...ir.ops import OPS
from ...ir.value import Op
from .dtypes import type_name


def number_operands(value: Op) -> tuple[int, ...]:
    """The operands that may be bare numbers, if one that is left is not."""
    return OPS[value.name].triton.bare


def operation_text(value: Op, args: list[str]) -> str:
    """The operation on operands that are names or calls."""
    name, taken = value.name, value.args[-1].dtype
    if name in ("cast", "bitcast"):
        return conversion_text(args[0], taken, value.dtype, bits=name == "bitcast")
    if name == "where":
        return f"tl.where({', '.join(args)})"
    if name.startswith("logical_"):
        args, taken = [conversion_text(arg, taken, torch.bool) for arg in args], torch.bool
    form = _form(name, taken)
    if "{" in form:
        return form.format(*args, dtype=type_name(taken))
    return f"{form}({', '.join(args)})"


def conversion_text(text: str, source: torch.dtype, to: torch.dtype, bits: bool = False) -> str:
    """A value of one dtype as another."""
    if source == to:
        return text
    if bits:
        return f"{text}.to({type_name(to)}, bitcast=True)"
    if to == torch.bool:
        return f"({text} != 0)"
    if source.is_floating_point and to in (torch.uint8, torch.int8, torch.int16):
        # Through a wider integer, as in eager: numbers that do not fit wrap.
        text = f"{text}.to(tl.int64)" if to == torch.uint8 else f"{text}.to(tl.int32)"
    return f"{text}.to({type_name(to)})"


def _form(name: str, dtype: torch.dtype) -> str:
    """The function, or the expression, of an operation on operands of a dtype."""
    forms = OPS[name].triton
    if dtype.is_floating_point:
        return forms.floats or f"libdevice.{name}"
    form = forms.truths if dtype == torch.bool else (dtype == torch.uint8 and forms.unsigned) or forms.integers
    if not form:
        raise NotImplementedError(f"{name} of {dtype}")
    return form
