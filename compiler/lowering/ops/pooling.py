"""Pooling: outputs fold windows of the input; gradients fold the windows that see an element.

    avg_pool2d   ->   for c, i, j: reduce r < 3, s < 3 of x[c, 2*i + r, 2*j + s]: out[c, i, j] = sum / 9

Gradients are gathered, not scattered, wherever an element is seen by few windows. On CPUs,
wide windows are folded along one dim after the other (`dim_by_dim.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import torch

from ...ir.index.bounds import bounds
from ...ir.index.index import add, quotient
from ...ir.value import Number, Value, compute_dtype
from ..arithmetic import const, op, over, size_value, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, lowers
from ..dim_by_dim import are_separable, folded_dim_by_dim
from ..positions import filled, guarded, iterations, loaded, lowest, numel, raveled, scalar, unraveled
from ..windows import UNROLLED, Adaptive, Sliding, Window, places, require_floating, summed
from .views import promised_sizes

_EXACT = 1 << 24  # whole numbers that float32 holds


def _each(values: Sequence[int], rank: int, otherwise: Sequence[int] = ()) -> list[int]:
    """One number for each spatial dim; one alone stands for all."""
    values = list(values) or list(otherwise)
    return values * rank if len(values) == 1 else values


def _sliding(
    x: Tensor, outs: Indices, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any = (1,)
) -> list[Sliding]:
    rank = len(outs)
    kernel = _each(kernel, rank)
    each = zip(
        x.sizes[-rank:], outs, kernel, _each(stride, rank, kernel), _each(padding, rank), _each(dilation, rank),
        strict=True,
    )  # fmt: skip
    return [Sliding(*fields) for fields in each]


def _spatial(name: str) -> int:
    """2 for ``aten.avg_pool2d``."""
    return next(int(c) for c in name.rsplit("pool", 1)[1] if c.isdigit())


def _rank(low: Lowering) -> int:
    return _spatial(str(low.current.target))


# -- averages ----------------------------------------------------------------------------------------------------------


@lowers("aten.avg_pool2d", "aten.avg_pool3d")
def avg_pool(
    low: Lowering,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    _ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Means of windows. What `ceil_mode` adds shows in the promised sizes."""
    if divisor_override == 0:
        raise Unlowered("arguments", "eager refuses a divisor of 0")
    sizes, rank = promised_sizes(low), _rank(low)
    windows = _sliding(x, sizes[-rank:], kernel_size, stride, padding)
    return _average(low, x, windows, sizes, _sliding_count(windows, count_include_pad, divisor_override))


@lowers("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")
def adaptive_avg_pool(low: Lowering, x: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Means of windows that share each dim evenly."""
    sizes, rank = promised_sizes(low), len(output_size)
    windows = _adaptive(x, sizes, rank)
    return _average(low, x, windows, sizes, _adaptive_count(windows))


@lowers("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def avg_pool_backward(
    low: Lowering,
    grad_output: Tensor,
    x: Tensor,
    *geometry: Any,
) -> Tensor:
    """Each element gets its share of the gradients of the windows that see it."""
    kernel_size, stride, padding, _, count_include_pad, divisor_override = geometry
    rank = _rank(low)
    windows = _sliding(x, grad_output.sizes[-rank:], kernel_size, stride, padding)
    return _average_backward(low, grad_output, x, windows, _sliding_count(windows, count_include_pad, divisor_override))


@lowers("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(low: Lowering, grad_output: Tensor, x: Tensor) -> Tensor:
    """Each element gets its share of the gradients of the windows that see it."""
    windows = _adaptive(x, grad_output.sizes, _rank(low))
    return _average_backward(low, grad_output, x, windows, _adaptive_count(windows))


Count = Callable[[Indices, torch.dtype], Value]  # the elements of a window, given its indices, as a number


def _sliding_count(windows: Sequence[Sliding], with_padding: bool, override: int | None) -> Count:
    if override is not None:
        return lambda _, kind: size_value(override, kind)
    return lambda o, kind: _product([w.count(i, with_padding) for w, i in zip(windows, o, strict=True)], kind)


def _adaptive_count(windows: Sequence[Adaptive]) -> Count:
    return lambda o, kind: _product([w.count(i) for w, i in zip(windows, o, strict=True)], kind)


def _product(counts: Sequence[Any], kind: torch.dtype) -> Value:
    """The product of the counts of all dims.

    As one index, it would be a polynomial of all starts and ends. Few windows share their counts along one dim.
    """
    whole = numel(counts)
    high = bounds(whole)[1]
    if isinstance(whole, int) or high is None or high > _EXACT:
        return size_value(whole, kind)
    return times(*(const(n, kind) if isinstance(n, int) else cast(Number(n, torch.int32), kind) for n in counts))


def _adaptive(x: Tensor, outs: Indices, rank: int) -> list[Adaptive]:
    return [Adaptive(size, out) for size, out in zip(x.sizes[-rank:], outs[-rank:], strict=True)]


def _average(low: Lowering, x: Tensor, windows: Sequence[Window], sizes: Indices, count: Count) -> Tensor:
    require_floating(x)
    rank, kind = len(windows), compute_dtype(x.dtype)

    def mean(at: Indices, total: Value) -> Value:
        return over(total, count(at[-rank:], kind))

    zero = scalar(0, x.dtype)
    if numel([w.width for w in windows]) != UNROLLED and are_separable(low, windows):
        return folded_dim_by_dim(low, "sum", x, windows, sizes, zero, kind, mean)
    return summed(low, sizes, [w.width for w in windows], _seen(x, windows, zero), mean, x.dtype)


def _seen(x: Tensor, windows: Sequence[Window], other: Value) -> Callable[[Indices, Indices], Value]:
    """The element that window `at` sees at `r`, `other` where there is none."""
    rank = len(windows)

    def term(at: Indices, r: Indices) -> Value:
        place, conditions = places(w.element(o, k) for w, o, k in zip(windows, at[-rank:], r, strict=True))
        return guarded(conditions, x.at((*at[:-rank], *place)), other)

    return term


def _average_backward(low: Lowering, grad: Tensor, x: Tensor, windows: Sequence[Window], count: Count) -> Tensor:
    require_floating(grad)
    rank, kind = len(windows), compute_dtype(grad.dtype)

    def term(at: Indices, r: Indices) -> Value:
        place, conditions = places(w.window(i, k) for w, i, k in zip(windows, at[-rank:], r, strict=True))
        share = over(grad.at((*at[:-rank], *place)), count(place, kind))
        return guarded(conditions, share, scalar(0, grad.dtype))

    return summed(low, x.sizes, [w.covers for w in windows], term, lambda _, total: total, grad.dtype)


# -- maxima ------------------------------------------------------------------------------------------------------------


@lowers("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def max_pool_with_indices(
    low: Lowering,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Largest elements of windows, and where they are in the flattened spatial dims."""
    sizes, rank = promised_sizes(low, 0), _rank(low)
    return _maxima(low, x, _sliding(x, sizes[-rank:], kernel_size, stride, padding, dilation), sizes)


@lowers("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(low: Lowering, x: Tensor, output_size: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Largest elements of windows that share each dim evenly, and where they are."""
    sizes, rank = promised_sizes(low, 0), len(output_size)
    return _maxima(low, x, _adaptive(x, sizes, rank), sizes)


@lowers("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward")
def max_pool_backward(
    low: Lowering,
    grad_output: Tensor,
    x: Tensor,
    *geometry: Any,
) -> Tensor:
    """Each element gets the gradients of the windows whose largest element it is."""
    kernel_size, stride, padding, dilation, _, indices = geometry
    rank = _rank(low)
    windows = _sliding(x, grad_output.sizes[-rank:], kernel_size, stride, padding, dilation)
    zero = scalar(0, grad_output.dtype)

    def term(at: Indices, r: Indices) -> Value:
        # Whether the window reaches this far, its index of the maximum tells.
        place, conditions = places(w.near(i, k) for w, i, k in zip(windows, at[-rank:], r, strict=True))
        window = (*at[:-rank], *place)
        mine = op("eq", indices.at(window), size_value(raveled(at[-rank:], x.sizes[-rank:]), torch.int64))
        return guarded(conditions, where(mine, grad_output.at(window), zero), zero)

    return summed(low, x.sizes, [w.covers for w in windows], term, lambda _, total: total, grad_output.dtype)


@lowers("aten.adaptive_max_pool2d_backward", "aten.adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(low: Lowering, grad_output: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Each element gets the gradients of the windows whose largest element it is."""
    return _scattered(low, grad_output, x, indices, _rank(low))


@lowers("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(low: Lowering, x: Tensor, indices: Tensor, _output_size: Sequence[Any], *_geometry: Any) -> Tensor:
    """Zeros, and each element where its index says it was; the last of several stays."""
    sizes = promised_sizes(low)
    rank = int(str(low.current.target).rsplit("unpool", 1)[1][0])
    if x.sizes != indices.sizes:
        raise Unlowered("arguments", f"indices of sizes {indices.sizes} for elements of sizes {x.sizes}")
    out, space = filled(low, sizes, 0, x.dtype), sizes[-rank:]
    loops = low.loops(x.sizes)
    at = iterations(loops)
    place = unraveled(loaded(indices, at, numel(space)), space)
    low.store(out, loops, (*at[:-rank], *place), x.at(at))
    return out


def _maxima(low: Lowering, x: Tensor, windows: Sequence[Window], sizes: Indices) -> tuple[Tensor, Tensor]:
    """Maxima and positions apart: where the positions are not asked for, theirs is dead."""
    rank, extents = len(windows), [w.width for w in windows]
    element, space = _seen(x, windows, lowest(x.dtype)), x.sizes[-rank:]

    def placed(at: Indices, r: Indices) -> tuple[Value, Value, Value]:
        place, conditions = places(w.element(o, k) for w, o, k in zip(windows, at[-rank:], r, strict=True))
        # Padding comes after every element, so that it is never chosen where all are -inf.
        here, padding = (size_value(p, torch.int64) for p in (raveled(place, space), numel(space)))
        place_ = guarded(conditions, here, padding)
        return element(at, r), _last_nan(element(at, r), place_), place_

    if are_separable(low, windows):
        largest = folded_dim_by_dim(
            low, "max", x, windows, sizes, lowest(x.dtype), x.dtype, lambda _, found: found, output=0
        )
    else:
        largest = _largest(low, element, sizes, extents, x.dtype)
    if _is_unrolled(low, numel(extents)):
        steps, nowhere = list(product(*map(range, extents))), size_value(numel(space), torch.int64)

        def position(at: Indices) -> Value:
            best: Value = lowest(x.dtype)
            found: Value = nowhere
            for r in steps:
                best, found = _better(element(at, r), placed(at, r)[2], best, found, nowhere)
            return found

        return largest, low.pointwise(position, sizes, torch.int64, output=1)
    (where_,) = low.reduce(
        "argmax",
        lambda at, r: placed(at, r)[:2],
        sizes,
        extents,
        lambda _, parts: _decoded(parts[1], x.dtype),
        [torch.int64],
        output=1,
    )
    return largest, where_


def _largest(
    low: Lowering, element: Callable[[Indices, Indices], Value], sizes: Indices, extents: list[Any], dtype: torch.dtype
) -> Tensor:
    """Maxima of windows, as one expression or as a reduction."""
    if _is_unrolled(low, numel(extents)):
        steps = list(product(*map(range, extents)))
        return low.pointwise(lambda at: reduce(_maximum, (element(at, r) for r in steps)), sizes, dtype, output=0)
    return low.reduce("max", element, sizes, extents, lambda _, parts: parts[0], [dtype], output=0)[0]


def _better(value: Value, place: Value, best: Value, found: Value, nowhere: Value) -> tuple[Value, Value]:
    """The larger of two elements and its place: the first of equal ones, the last NaN, and never padding."""
    wins = op("logical_or", op("eq", found, nowhere), op("gt", value, best))
    if value.dtype.is_floating_point:
        wins = op("logical_or", wins, op("isnan", value))
    wins = op("logical_and", op("ne", place, nowhere), wins)
    return where(wins, value, best), where(wins, place, found)


def _is_unrolled(low: Lowering, count: Any) -> bool:
    """On a GPU few elements are one expression, whose threads read channels side by side."""
    return low.device.type == "cuda" and isinstance(count, int) and 0 < count <= UNROLLED


def _maximum(a: Value, b: Value) -> Value:
    return op("maximum", a, b)


def _last_nan(value: Value, position: Value) -> Value:
    """Positions of NaN count down from -1: of several, eager's pooling takes the last, reductions the lowest."""
    if not value.dtype.is_floating_point:
        return position
    return where(op("isnan", value), op("bitwise_not", position), position)


def _decoded(position: Value, dtype: torch.dtype) -> Value:
    if not dtype.is_floating_point:
        return position
    return where(op("lt", position, 0), op("bitwise_not", position), position)


def _scattered(low: Lowering, grad: Tensor, x: Tensor, indices: Tensor, rank: int) -> Tensor:
    """Zeros, and then ``out[indices[i]] += grad[i]``."""
    out, space = filled(low, x.sizes, 0, grad.dtype), x.sizes[-rank:]
    loops = low.loops(grad.sizes)
    at = iterations(loops)
    place = unraveled(loaded(indices, at, numel(space)), space)
    low.store(out, loops, (*at[:-rank], *place), grad.at(at), "add")
    return out


# -- columns -----------------------------------------------------------------------------------------------------------


@lowers("aten.im2col")
def im2col(low: Lowering, x: Tensor, *geometry: Sequence[int]) -> Tensor:
    """Windows as columns: ``out[(c, r, s), (i, j)] = x[c, i + r, j + s]``, 0 in the padding."""
    windows = _columns(x.sizes[-2:], *geometry)
    seen, rows, columns = _seen(x, windows, scalar(0, x.dtype)), [w.kernel for w in windows], [w.out for w in windows]

    def element(at: Indices) -> Value:
        *batch, row, column = at
        channel, *r = unraveled(row, (x.sizes[-3], *rows))
        return seen((*batch, channel, *unraveled(column, columns)), tuple(r))

    return low.pointwise(element, promised_sizes(low), x.dtype)


@lowers("aten.col2im")
def col2im(low: Lowering, x: Tensor, output_size: Sequence[Any], *geometry: Sequence[int]) -> Tensor:
    """Columns added up where `im2col` took them from."""
    windows = _columns(output_size, *geometry)
    rows, columns, sizes = [w.kernel for w in windows], [w.out for w in windows], promised_sizes(low)

    def term(at: Indices, r: Indices) -> Value:
        *batch, channel, i, j = at
        place, conditions = places(w.window(h, k) for w, h, k in zip(windows, (i, j), r, strict=True))
        parts = [w.part(h, o) for w, h, o in zip(windows, (i, j), place, strict=True)]
        row = raveled((channel, *parts), (sizes[-3], *rows))
        return guarded(conditions, x.at((*batch, row, raveled(place, columns))), scalar(0, x.dtype))

    return summed(low, sizes, [w.covers for w in windows], term, lambda _, total: total, x.dtype)


def _columns(
    sizes: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> list[Sliding]:
    each = zip(sizes, *(_each(values, 2) for values in (kernel_size, stride, padding, dilation)), strict=True)
    return [Sliding(size, _fitting(size, k, s, p, d), k, s, p, d) for size, k, s, p, d in each]


def _fitting(size: Any, kernel: int, stride: int, padding: int, dilation: int) -> Any:
    """How many windows fit into a padded dim."""
    return add(quotient(add(size, 2 * padding - dilation * (kernel - 1) - 1), stride), 1)
