"""Tensors out of nothing: fills, ranges, identities, triangles. They are arithmetic of the loop indices.

arange(3, 30, 2)[i]  =  2*i + 3          tril(x)[i, j]  =  x[i, j] if j <= i else 0
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.index.index import Index, add, mul
from ...ir.value import Value, compute_dtype
from ..arithmetic import minus, op, plus, times, where
from ..core import Lowering, Tensor, Unlowered, cast, lowers
from ..scalars import exact, is_floating, literal
from .views import promised_sizes


def filled(low: Lowering, value: Any) -> Tensor:
    """The current node's result, the same number everywhere."""
    dtype = low.current.meta["val"].dtype
    return low.pointwise(lambda i: literal(value, compute_dtype(dtype)), promised_sizes(low), dtype)


def _filling(value: Any) -> Any:
    """Sizes and dtype are in the metadata, however they were spelled."""
    return lambda low, *args, **kwargs: filled(low, value)


@lowers("aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_permuted")
@lowers("aten.empty_strided", "aten.new_empty_strided")
def _empty(low: Lowering, *_args: Any, **_more: Any) -> Tensor:
    """Memory that eager leaves as it is gets zeros: any value would do.

    With deterministic algorithms on, eager fills it.
    """
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not torch.are_deterministic_algorithms_enabled() or not fills:
        return filled(low, 0)
    dtype = low.current.meta["val"].dtype
    if dtype.is_floating_point or dtype.is_complex:
        return filled(low, math.nan)
    return filled(low, True if dtype == torch.bool else torch.iinfo(dtype).max)


lowers("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten._efficientzerotensor")(_filling(0))
lowers("aten.ones", "aten.ones_like", "aten.new_ones")(_filling(1))


@lowers("aten.full", "aten.full_like")
def _full(low: Lowering, _: Any, value: Any, **_more: Any) -> Tensor:
    return filled(low, value)


@lowers("aten.new_full")
def _new_full(low: Lowering, _x: Tensor, _sizes: Any, value: Any, **_more: Any) -> Tensor:
    return filled(low, value)


@lowers("aten.scalar_tensor")
def _scalar_tensor(low: Lowering, value: Any, **_more: Any) -> Tensor:
    return filled(low, value)


# -- ranges ---------------------------------------------------------------------------------------------------------


@lowers("aten.arange")
def _arange(low: Lowering, *bounds: Any, **_more: Any) -> Tensor:
    start, step = (0 if len(bounds) == 1 else bounds[0]), (bounds[2] if len(bounds) > 2 else 1)
    dtype = low.current.meta["val"].dtype
    if not dtype.is_floating_point and any(map(is_floating, bounds)):
        raise Unlowered("arguments", "a range of integers between floats")
    return _progression(low, start, step)


def _progression(low: Lowering, start: Any, step: Any) -> Tensor:
    """``start + i * step``, as eager: of integers exactly, of floats in the widest dtype that eager computes in."""
    dtype = low.current.meta["val"].dtype
    start, step = exact(start), exact(step)
    computed = torch.float64 if is_floating(start) or is_floating(step) else torch.int64

    def value(i: tuple[Any, ...]) -> Value:
        if isinstance(start, (int, Index)) and isinstance(step, (int, Index)):
            return cast(literal(add(mul(i[0], step), start), torch.int64), compute_dtype(dtype))
        place, first, each = (literal(n, computed) for n in (i[0], start, step))
        return cast(plus(times(place, each), first), compute_dtype(dtype))

    return low.pointwise(value, promised_sizes(low), dtype)


@lowers("prims.iota")
def _iota(low: Lowering, _length: Any, *, start: Any, step: Any, **_more: Any) -> Tensor:
    return _progression(low, start, step)


@lowers("aten.linspace.default")
def _linspace(low: Lowering, start: Any, end: Any, steps: Any, **_more: Any) -> Tensor:
    """From the nearer end, so that both are exact."""
    dtype = low.current.meta["val"].dtype
    if not isinstance(steps, int) or not dtype.is_floating_point:
        raise Unlowered("arguments", "linspace of integers, or of a size that is known when run")
    computed = compute_dtype(dtype)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0

    def value(i: tuple[Any, ...]) -> Value:
        forth, back = (literal(p, computed) for p in (i[0], add(steps - 1, mul(i[0], -1))))
        in_first = op("lt", literal(i[0], torch.int64), literal(steps // 2, torch.int64))
        if steps == 1:
            return literal(start, computed)
        return where(in_first, plus(start, times(step, forth)), minus(end, times(step, back)))

    return low.pointwise(value, promised_sizes(low), dtype)


# -- matrices -------------------------------------------------------------------------------------------------------


@lowers("aten.eye")
def _eye(low: Lowering, *_sizes: Any, **_more: Any) -> Tensor:
    dtype = low.current.meta["val"].dtype
    return low.pointwise(lambda i: cast(_compare("eq", i[0], i[1]), compute_dtype(dtype)), promised_sizes(low), dtype)


def _compare(name: str, a: Any, b: Any) -> Value:
    return op(name, literal(a, torch.int64), literal(b, torch.int64))


@lowers("aten.tril")
def _tril(low: Lowering, x: Tensor, diagonal: Any = 0) -> Tensor:
    return _triangle(low, x, "le", diagonal)


@lowers("aten.triu")
def _triu(low: Lowering, x: Tensor, diagonal: Any = 0) -> Tensor:
    return _triangle(low, x, "ge", diagonal)


def _triangle(low: Lowering, x: Tensor, side: str, diagonal: Any) -> Tensor:
    def value(i: tuple[Any, ...]) -> Value:
        return where(_compare(side, i[-1], add(i[-2], diagonal)), x.at(i), 0)

    return low.pointwise(value, x.sizes, x.dtype)
