"""Cumulative scans: each element holds the fold of those up to it along a dim.

    cumsum:  for i < 8: scan j < 4 of x[i, j]:      cumsum[i, j] = total so far

As in eager, float32 is accumulated in float64 on CPUs, and in float32 on GPUs, where sums are of parts of a row. There,
logarithms of sums are scanned as maxima with sums of powers, which need one power for two of them, and no logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...ir.program import Reduction, Store
from ...ir.reducers import REDUCERS
from ...ir.value import Number, Result, Value, compute_dtype
from ..arithmetic import element, op, plus, where
from ..core import Indices, Lowering, Tensor, cast, lowers, whole
from ..spaces import space
from .elementwise import rounded

_WIDE = frozenset({"cpu"})  # devices on which eager accumulates float32 in float64


def _scan(
    low: Lowering,
    x: Tensor,
    dim: int,
    reducer: str,
    operands: Callable[[Indices, Any], tuple[Value, ...]],
    finish: Callable[..., tuple[Value, ...]],
    *dtypes: torch.dtype,
) -> tuple[Tensor, ...]:
    """New tensors of `x`'s sizes.

    Args:
        low: the lowering in progress.
        x: what is scanned.
        dim: along which dim.
        reducer: one of `REDUCERS`.
        operands: the reducer's operands, given indices and the position along the dim.
        finish: the stored values, given the components so far.
        dtypes: of the tensors made.
    """
    of = space(x, dim)
    loops, scanned = low.loops(of.outer), low.loops(of.inner, "r")
    position = scanned[0].index()
    at = of.indices(tuple(v.index() for v in loops), (position,))
    values = operands(at, position)
    fold = Reduction(low.name("fold", "fold"), reducer, values)
    so_far = (
        Result(fold.name, k, torch.int64 if kind == "int64" else values[0].dtype)
        for k, kind in enumerate(REDUCERS[reducer].components)
    )
    made = [low.buffer(x.sizes, d, output=k if len(dtypes) > 1 else None) for k, d in enumerate(dtypes)]
    stores = [Store(buffer.name, at, value) for buffer, value in zip(made, finish(*so_far), strict=True)]
    low.define(loops, stores, scanned, (fold,), scan=True)
    return tuple(map(whole, made))


def _cumulative(low: Lowering, x: Tensor, dim: int, reducer: str, dtype: torch.dtype | None) -> Tensor:
    made = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    wide = low.device.type in _WIDE and made.is_floating_point

    def operands(at: Indices, _: Any) -> tuple[Value]:
        value = element(x, at, made)
        return (cast(value, torch.float64) if wide else value,)

    return _scan(low, x, dim, reducer, operands, lambda so_far: (so_far,), made)[0]


@lowers("aten.cumsum")
def cumsum(low: Lowering, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Sums so far; integers and bool in int64."""
    return _cumulative(low, x, dim, "sum", dtype)


@lowers("aten.cumprod")
def cumprod(low: Lowering, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Products so far; integers and bool in int64."""
    return _cumulative(low, x, dim, "prod", dtype)


@lowers("aten.logcumsumexp")
def logcumsumexp(low: Lowering, x: Tensor, dim: int) -> Tensor:
    """Logarithms of the sums of exponentials so far."""
    if low.device.type in _WIDE:
        return _cumulative(low, x, dim, "logaddexp", x.dtype)
    finish = lambda top, total: (where(op("eq", top, math.inf), top, plus(top, op("log", total))),)  # noqa: E731
    return _scan(low, x, dim, "softmax", lambda at, _: (element(x, at, x.dtype),), finish, x.dtype)[0]


def _extreme(low: Lowering, x: Tensor, dim: int, reducer: str) -> tuple[Tensor, ...]:
    """Eager keeps the latest of equal elements, the reducer the lowest position: positions count down."""
    ordered = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    operands = lambda at, position: (cast(rounded(x.at(at), x.dtype), ordered), Number(-position, torch.int64))  # noqa: E731
    finish = lambda value, position: (value, op("neg", position))  # noqa: E731
    return _scan(low, x, dim, reducer, operands, finish, x.dtype, torch.int64)


@lowers("aten.cummax")
def cummax(low: Lowering, x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Maxima so far and where they stand; NaN wins."""
    return _extreme(low, x, dim, "argmax")


@lowers("aten.cummin")
def cummin(low: Lowering, x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Minima so far and where they stand; NaN wins."""
    return _extreme(low, x, dim, "argmin")
