"""Copies, conversions and fills: results that hold given values in another place or dtype."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.value import Value, compute_dtype
from ..core import Lowering, Tensor, cast, const, lowers
from ..scalars import literal
from ..sizes import Unlowered
from .elementwise import element, rounded


def copied(low: Lowering, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy in memory of its own, converted; a conversion to 16 bits rounds even where it is then computed with."""
    dtype = x.dtype if dtype is None else dtype
    computed = compute_dtype(dtype)

    def value(i: tuple[Any, ...]) -> Value:
        given = x.at(i) if dtype.is_floating_point else rounded(x.at(i), x.dtype)  # whole numbers are decided on
        converted = cast(given, computed)
        return converted if dtype == x.dtype else rounded(converted, dtype)

    return low.pointwise(value, x.sizes, dtype)


@lowers("aten._to_copy")
def _to_copy(
    low: Lowering, x: Tensor, *, dtype: torch.dtype | None = None, pin_memory: bool | None = None, **_more: Any
) -> Tensor:
    """The result's strides and device are in the metadata."""
    if pin_memory:
        raise Unlowered("arguments", "pinned memory")
    return copied(low, x, dtype)


@lowers("prims.convert_element_type")
def _convert(low: Lowering, x: Tensor, dtype: torch.dtype) -> Tensor:
    return copied(low, x, dtype)


@lowers("aten.clone", "aten.lift_fresh_copy", "aten.contiguous")
def _clone(low: Lowering, x: Tensor, **_more: Any) -> Tensor:
    return copied(low, x)


@lowers("aten.copy")
def _copy(low: Lowering, x: Tensor, source: Tensor, _: bool = False) -> Tensor:
    """`source`, in the sizes and the dtype of `x`."""
    computed = compute_dtype(x.dtype)

    def value(i: tuple[Any, ...]) -> Value:
        return rounded(cast(element(source, i), computed), x.dtype)

    return low.pointwise(value, x.sizes, x.dtype)


@lowers("aten.fill")
def _fill(low: Lowering, x: Tensor, value: Any) -> Tensor:
    computed = compute_dtype(x.dtype)
    return low.pointwise(
        lambda i: cast(element(value, i), computed) if isinstance(value, Tensor) else literal(value, computed),
        x.sizes,
        x.dtype,
    )


@lowers("aten.zero")
def _zero(low: Lowering, x: Tensor) -> Tensor:
    return low.pointwise(lambda i: const(0, compute_dtype(x.dtype)), x.sizes, x.dtype)
