"""The first few of a row in order: a fold for each, over what those before it have left.

topk(x, 2):    for i < 4: reduce j < 8 of (x[i, j], j):                                    v0[i], p0[i] = argmax
               for i < 4: reduce j < 8 of (x[i, j], j), (lowest, j + 8) where j is p0[i]:  v1[i], p1[i] = argmax

Routers of experts and sampling ask for a few of few. As folds they share a kernel with the softmax before and what
comes after; a library sorts in kernels of its own.

More of them are the beginning of all in order (see `sorting`).

Of equal elements the first is taken. Which of them a library takes depends on how it sorts: its results are kept on
CPUs, and on GPUs where equal elements are common, of integers and 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch

from ...ir.value import Const, Number, Value, compute_dtype
from ..arithmetic import minus, op, plus, where
from ..core import Indices, Lowering, Tensor, Unlowered, lowers, whole
from ..positions import highest, iterations, lowest, swapped
from ..spaces import Space, fold, space
from .elementwise import rounded
from .sorting import in_order, ranks, require_few

MOST, LONGEST = 8, 1024  # of a row that are asked for one by one, and that there are: beyond, sorting takes less time
_SELDOM_EQUAL = frozenset({torch.float32, torch.float64})


def is_librarys(device: str, dtype: torch.dtype) -> bool:
    """Whether ties are not ours to decide: on CPUs, and where equal elements are common."""
    return device == "cpu" or dtype not in _SELDOM_EQUAL


@lowers("aten.topk.default")
def topk(
    low: Lowering,
    x: Tensor,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """The `k` largest or smallest along a dim, and where they stand; NaN is larger than anything.

    They come in order whether `sorted` or not.
    """
    if is_librarys(low.device.type, x.dtype):
        raise Unlowered("algorithm", "which of equal elements the library takes depends on how it sorts")
    if not x.sizes:
        raise Unlowered("arguments", "a number alone")
    if x.dtype == torch.bool:
        raise Unlowered("refused", "eager has no topk of bool")
    of = space(x, dim, True)
    if not (isinstance(k, int) and isinstance(of.count, int) and 1 <= k <= of.count <= LONGEST):
        raise Unlowered("algorithm", f"none, some of more than {LONGEST}, or unknown numbers of them")
    (d,) = of.dims
    if k > MOST:
        return _beginning(low, x, d, k, largest)
    sizes = swapped(x.sizes, d, k)
    values = whole(low.buffer(sizes, x.dtype, output=0))
    places = whole(low.buffer(sizes, torch.int64, output=1))
    found: list[Tensor] = []
    for rank in range(k):
        value, place = _next(low, x, of, found, largest)
        found.append(place)
        for part, into in ((value, values), (place, places)):
            loops = low.loops(part.sizes)
            at = iterations(loops)
            low.store(into, loops, swapped(at, d, rank), part.at(at))
    return values, places


def _beginning(low: Lowering, x: Tensor, d: int, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first `k` of all in order."""
    require_few(x, d)
    found = in_order(low, x, d, ranks(low, x, d, largest))
    sizes = swapped(x.sizes, d, k)
    made = whole(low.buffer(sizes, x.dtype, output=0)), whole(low.buffer(sizes, torch.int64, output=1))
    for part, into in zip(found, made, strict=True):
        loops = low.loops(sizes)
        low.store(into, loops, iterations(loops), rounded(part.at(iterations(loops)), part.dtype))
    return made


def _next(low: Lowering, x: Tensor, of: Space, found: list[Tensor], largest: bool) -> tuple[Tensor, ...]:
    """The next element and where it stands, given where those before it do.

    Positions beyond the row order what would be equal otherwise: NaN after all numbers where the least come first,
    and what has been taken after everything.
    """
    (d,) = of.dims
    ordered = compute_dtype(x.dtype)
    last = lowest(ordered) if largest else highest(ordered)
    nan_last = ordered.is_floating_point and not largest

    def compute(at: Indices) -> tuple[Value, Value]:
        value, place = rounded(x.at(at), x.dtype), Number(at[d], torch.int64)
        made: Value = place
        if nan_last:
            lost = op("isnan", value)
            value, made = where(lost, last, value), where(lost, plus(place, of.count), place)
        for earlier in found:
            taken = op("eq", place, earlier.at(of.result(at)))
            value, made = where(taken, last, value), where(taken, plus(place, 2 * of.count), made)
        return value, made

    def finish(_: Indices, value: Value, place: Value) -> tuple[Value, ...]:
        if not nan_last:
            return value, place
        lost = op("ge", place, of.count)
        nan = Const(float("nan"), ordered)
        return where(lost, nan, value), where(lost, minus(place, of.count), place)

    return fold(low, of, "argmax" if largest else "argmin", compute, finish, x.dtype, torch.int64)
