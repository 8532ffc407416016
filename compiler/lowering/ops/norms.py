"""Normalization: layer, RMS, batch and group norm, forward and backward.

    mean, rstd = moments of each row               dx = rstd * (g - mean(g) - x^ * mean(g * x^))
    x^         = (x - mean) * rstd                 dw = sum of dy * x^,  db = sum of dy
    y          = x^ * weight + bias                where g = dy * weight

The kinds differ in what a row is: the trailing dims, a channel over the batch, a group of channels of one sample.
Statistics are made in float32 at least, whatever the input; as outputs they have the dtype that tracing promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.index import index as ix
from ...ir.value import HALVES, Value, compute_dtype
from ..arithmetic import minus, op, over, plus, size_value, square, times
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers
from ..spaces import Space, asked, fold, promised, stored, total
from .elementwise import rounded
from .reductions import average, moments

_FEW = 64  # channels of a group up to which each channel may add up those of its group for itself

Move = Callable[[Indices], Indices]
Element = Callable[[Indices], Value]
Outputs = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class NormalizedRows:
    """The elements of a tensor `x` that are normalized together.

    Args:
        space: rows, over x's index space or a finer one.
        columns: the elements that share a weight; the result's indices are the weight's.
        row: the statistics' indices, given x's.
        join: x's indices, given those of `space`.
    """

    space: Space
    columns: Space
    row: Move
    join: Move = lambda i: i


def _trailing(x: Tensor, shape: Any) -> NormalizedRows:
    """Rows of layer and RMS norm: the last dims."""
    rank, axis = len(x.sizes), len(x.sizes) - len(shape)
    space = Space(x.sizes, tuple(range(axis, rank)), keepdim=True)
    return NormalizedRows(space, Space(x.sizes, tuple(range(axis))), space.result)


def _channels(x: Tensor) -> NormalizedRows:
    """Rows of batch norm: all but dim 1."""
    space = Space(x.sizes, tuple(d for d in range(len(x.sizes)) if d != 1))
    return NormalizedRows(space, space, space.result)


def _groups(x: Tensor, groups: int) -> NormalizedRows:
    """Rows of group norm: [N, C, ...] is [N, G, C // G, ...], rows being all but the first two dims of that."""
    batch, channels, *rest = x.sizes
    share = ix.quotient(channels, groups)
    sizes = (batch, groups, share, *rest)
    return NormalizedRows(
        Space(sizes, tuple(range(2, len(sizes)))),
        _channels(x).columns,
        lambda i: (i[0], ix.quotient(i[1], share)),
        lambda i: (i[0], ix.add(ix.mul(i[1], share), i[2]), *i[3:]),
    )


# -- forward -----------------------------------------------------------------------------------------------------------


def _reciprocal_root(space: Space, eps: float) -> Callable[[Value], Value]:
    """``1 / sqrt(squares / count + eps)``."""
    return lambda squares: op("rsqrt", plus(over(squares, size_value(space.count, squares.dtype)), eps))


def _scaled(value: Value, at: Indices, weight: Tensor | None, bias: Tensor | None = None) -> Value:
    if weight is not None:
        value = times(value, cast(weight.at(at), value.dtype))
    return value if bias is None else plus(value, cast(bias.at(at), value.dtype))


def _centered(x: Tensor, rows: NormalizedRows, mean: Tensor | None, rstd: Element) -> Element:
    """The normalized element, before weight and bias."""

    def element(i: Indices) -> Value:
        value = x.at(i)
        centered = value if mean is None else minus(value, cast(mean.at(rows.row(i)), value.dtype))
        return times(centered, cast(rstd(rows.row(i)), value.dtype))

    return element


def _normalized(
    low: Lowering,
    x: Tensor,
    rows: NormalizedRows,
    mean: Tensor | None,
    rstd: Element,
    *affine: Tensor | None,
    round_to: torch.dtype = torch.float32,
) -> Tensor:
    element = _centered(x, rows, mean, rstd)
    compute = lambda i: rounded(_scaled(element(i), rows.columns.result(i), *affine), round_to)  # noqa: E731
    return low.pointwise(compute, x.sizes, promised(low, 0), output=0)


def _statistics(low: Lowering, x: Tensor, rows: NormalizedRows, eps: float) -> tuple[Tensor, ...]:
    """Mean and reciprocal standard deviation of each row."""
    root = _reciprocal_root(rows.space, eps)
    return moments(low, x.viewed(rows.space.sizes, rows.join), rows.space, lambda squares: (root(squares),))


def _layer(low: Lowering, x: Tensor, rows: NormalizedRows, eps: float, *affine: Tensor | None) -> tuple[Tensor, ...]:
    mean, rstd = _statistics(low, x, rows, eps)
    return _normalized(low, x, rows, mean, rstd.at, *affine), stored(low, mean, 1), stored(low, rstd, 2)


@lowers("aten.native_layer_norm")
def layer_norm(
    low: Lowering, x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Normalizes the last dims; gives mean and reciprocal deviation too."""
    return _layer(low, x, _trailing(x, shape), eps, weight, bias)


@lowers("aten.native_group_norm")
def group_norm(
    low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes_groups_eps: Any
) -> tuple[Tensor, ...]:
    """Normalizes groups of channels of each sample; gives mean and reciprocal deviation too."""
    *sizes, groups, eps = sizes_groups_eps
    _require_shape(x, sizes)
    rows = _groups(x, groups)
    if not _is_spread(x, rows.space):
        return _layer(low, x, rows, eps, weight, bias)
    mean, rstd = _statistics_by_channel(low, x, rows, eps)
    channels = NormalizedRows(_by_channel(x), rows.columns, lambda i: i[:2])
    made = _normalized(low, x, channels, mean, rstd.at, weight, bias)
    first = lambda of: low.pointwise(lambda i: of.at(rows.join((*i, 0))), rows.space.outer, of.dtype)  # noqa: E731
    return made, stored(low, first(mean), 1), stored(low, first(rstd), 2)


def _is_spread(x: Tensor, groups: Space) -> bool:
    """Whether groups of few channels are short pieces of memory, one for each position: channels last."""
    sizes, strides, count, share = x.buffer.sizes, x.buffer.strides, *groups.sizes[1:3]
    if not x.is_whole or not all(isinstance(n, int) for n in (*sizes, *strides)):
        return False
    return strides[1] == 1 and count > 1 and 1 < share <= _FEW and groups.count > share and 0 not in sizes


def _by_channel(x: Tensor) -> Space:
    return Space(x.sizes, tuple(range(2, len(x.sizes))))


def _statistics_by_channel(low: Lowering, x: Tensor, rows: NormalizedRows, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of a channel's group, for each channel: joined from the moments of each channel.

    Neighbours in memory are other channels, so that the moments are sums of vectors.
    """
    dtype, of, root = compute_dtype(x.dtype), _by_channel(x), _reciprocal_root(rows.space, eps)
    share = rows.space.sizes[2]
    group = Space((*x.sizes[:2], share), (2,))
    centers, squares = moments(low, x, of, lambda squares: (squares,))

    def joined(element: Callable[[Indices, Indices], Value], finish: Callable[[Value], Value]) -> Tensor:
        other = lambda i: rows.join((*rows.row(i), i[2]))  # noqa: E731
        return fold(low, group, "sum", lambda i: element(i[:2], other(i)), lambda _, s: (finish(s),), dtype)[0]

    mean = joined(lambda _, other: centers.at(other), lambda s: over(s, size_value(share, dtype)))

    def deviation(channel: Indices, other: Indices) -> Value:
        apart = square(minus(centers.at(other), mean.at(channel)))
        return plus(squares.at(other), times(apart, size_value(of.count, dtype)))

    return mean, joined(deviation, root)


def _require_shape(x: Tensor, sizes: Any) -> None:
    if len(x.sizes) < 2 or x.sizes[:2] != tuple(sizes[:2]):
        raise Unlowered("arguments", f"group norm of a tensor {x.sizes} whose batch and channels are {sizes[:2]}")


@lowers("aten._fused_rms_norm")
def rms_norm(low: Lowering, x: Tensor, shape: Any, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """Divides by the root of the mean square of the last dims; gives its reciprocal too."""
    rows, dtype = _trailing(x, shape), compute_dtype(x.dtype)
    root = _reciprocal_root(rows.space, torch.finfo(dtype).eps if eps is None else eps)
    rstd = fold(low, rows.space, "sum", lambda i: square(x.at(i)), lambda _, squares: root(squares), dtype)[0]
    return _normalized(low, x, rows, None, rstd.at, weight), stored(low, rstd, 1)


# -- batch norm --------------------------------------------------------------------------------------------------------


def _batch_training(
    low: Lowering,
    x: Tensor,
    affine: tuple[Tensor | None, ...],
    running: tuple[Tensor, ...],
    momentum: float,
    eps: float,
    updates: int = 3,
) -> tuple[Tensor, ...]:
    """Normalized by the batch's own statistics; running ones, where there are, come out updated, from `updates` on."""
    rows = _channels(x)
    root, count = _reciprocal_root(rows.space, eps), size_value(rows.space.count, compute_dtype(x.dtype))
    finish = lambda squares: (root(squares), over(squares, minus(count, 1.0)))  # noqa: E731
    wanted = finish if running else lambda squares: (root(squares),)
    mean, rstd, *unbiased = moments(low, x, rows.space, wanted, corrected=low.device.type == "cpu")
    of_batch = zip((updates, updates + 1), running, (mean, *unbiased), strict=False)
    updated = [_moved(low, old, new, momentum, output) for output, old, new in of_batch]
    return _normalized(low, x, rows, mean, rstd.at, *affine), stored(low, mean, 1), stored(low, rstd, 2), *updated


def _moved(low: Lowering, old: Tensor, new: Tensor, momentum: float, output: int) -> Tensor:
    """A running statistic, moved towards the batch's."""

    def blend(i: Indices) -> Value:
        return plus(times(new.at(i), momentum), times(cast(old.at(i), new.dtype), 1 - momentum))

    return low.pointwise(blend, old.sizes, promised(low, output), output=output)


def _batch_evaluation(
    low: Lowering, x: Tensor, affine: tuple[Tensor | None, ...], running: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, ...]:
    """Normalized by the running statistics; those of the batch come out empty on CPUs, as the running ones on GPUs.

    Each element is rounded as eager rounds it, in whatever is computed next: variances of 1 with their epsilon make
    factors a little below 1, and every tie of a residual sum after them would round down, layer by layer.
    """
    rstd = _running_rstd(running[1], eps, compute_dtype(x.dtype))
    if low.device.type == "cuda":  # a launch for so few numbers takes longer than computing them for each element
        made = _normalized(low, x, _channels(x), running[0], rstd, *affine, round_to=x.dtype)
        of_channels = ((1, running[0].at), (2, rstd))
        return made, *(low.pointwise(at, running[0].sizes, promised(low, k), output=k) for k, at in of_channels)
    kept = low.pointwise(rstd, running[1].sizes, compute_dtype(x.dtype))
    made = _normalized(low, x, _channels(x), running[0], kept.at, *affine, round_to=x.dtype)
    return made, *(low.pointwise(lambda i: const(0, kept.dtype), (0,), promised(low, k), output=k) for k in (1, 2))


def _running_rstd(var: Tensor, eps: float, dtype: torch.dtype) -> Element:
    return lambda i: op("rsqrt", plus(cast(var.at(i), dtype), eps))


@lowers("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any
) -> tuple[Tensor, ...]:
    """Batch norm whose updated running statistics are outputs."""
    mean, var, training, momentum, eps = more
    if training:
        return _batch_training(low, x, (weight, bias), (mean, var), momentum, eps)
    kept = (low.pointwise(old.at, old.sizes, promised(low, k), output=k) for k, old in ((3, mean), (4, var)))
    return *_batch_evaluation(low, x, (weight, bias), (mean, var), eps), *kept


@lowers("aten._batch_norm_with_update_functional")
def batch_norm_with_update(
    low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any
) -> tuple[Tensor, ...]:
    """The same in training, with a reserve between results and statistics, which CPUs leave empty."""
    mean, var, momentum, eps = more
    *made, new_mean, new_var = _batch_training(low, x, (weight, bias), (mean, var), momentum, eps, updates=4)
    reserve = low.pointwise(lambda i: const(0, torch.uint8), (0,), torch.uint8, output=3)
    return *made, reserve, new_mean, new_var


@lowers("aten._native_batch_norm_legit_no_training")
def batch_norm_evaluation(
    low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any
) -> tuple[Tensor, ...]:
    """Batch norm by running statistics."""
    mean, var, _, eps = more
    return _batch_evaluation(low, x, (weight, bias), (mean, var), eps)


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, _training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """Batch norm without running statistics, also that of instance norm."""
    return _batch_training(low, x, (weight, bias), (), momentum, eps)


@lowers("aten.native_batch_norm")
def batch_norm(low: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any) -> tuple[Tensor, ...]:
    """Batch norm as it is called outside of functional graphs; running statistics must not change."""
    mean, var, training, momentum, eps = more
    if not training:
        return _batch_evaluation(low, x, (weight, bias), (mean, var), eps)
    if mean is not None or var is not None:
        raise Unlowered("mutation", "updates the running statistics in place")
    return _batch_training(low, x, (weight, bias), (), momentum, eps)


# -- backward ----------------------------------------------------------------------------------------------------------


def _gradients(
    low: Lowering, rows: NormalizedRows, dy: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None
) -> tuple[Callable[[], Tensor], ...]:
    """Makers of dx, dw and db. Without `mean` (RMS norm) rows were not centered."""
    normal, dtype, param = _centered(x, rows, mean, rstd.at), compute_dtype(x.dtype), rows.columns.result
    g = lambda i: _scaled(cast(dy.at(i), dtype), param(i), weight)  # noqa: E731

    def dx() -> Tensor:
        along = lambda compute: average(low, rows.space, lambda i: compute(rows.join(i)), dtype)  # noqa: E731
        shift = None if mean is None else along(g)
        tilt = along(lambda i: times(g(i), normal(i)))

        def compute(i: Indices) -> Value:
            centered = g(i) if shift is None else minus(g(i), shift.at(rows.row(i)))
            rest = minus(centered, times(normal(i), tilt.at(rows.row(i))))
            return times(cast(rstd.at(rows.row(i)), dtype), rest)

        return low.pointwise(compute, x.sizes, promised(low, 0), output=0)

    return dx, *_parameter_gradients(low, rows, dy, normal, dtype)


def _parameter_gradients(
    low: Lowering, rows: NormalizedRows, dy: Tensor, normal: Element, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], ...]:
    def dw() -> Tensor:
        return total(low, rows.columns, lambda i: times(cast(dy.at(i), dtype), normal(i)), dtype, output=1)

    def db() -> Tensor:
        return total(low, rows.columns, lambda i: cast(dy.at(i), dtype), dtype, output=2)

    return lambda: stored(low, dw(), 1), lambda: stored(low, db(), 2)


def _chosen(low: Lowering, *makers: Callable[[], Tensor]) -> Outputs:
    """Only what the caller asked for is made."""
    return tuple(make() if asked(low, k) else None for k, make in enumerate(makers))


@lowers("aten.native_layer_norm_backward")
def layer_norm_backward(low: Lowering, dy: Tensor, x: Tensor, shape: Any, *more: Any) -> Outputs:
    """Gradients of input, weight and bias."""
    mean, rstd, weight, _, _ = more
    return _chosen(low, *_gradients(low, _trailing(x, shape), dy, x, mean, rstd, weight))


@lowers("aten._fused_rms_norm_backward")
def rms_norm_backward(
    low: Lowering, dy: Tensor, x: Tensor, shape: Any, rstd: Tensor, weight: Tensor | None, _mask: Any
) -> Outputs:
    """Gradients of input and weight."""
    return _chosen(low, *_gradients(low, _trailing(x, shape), dy, x, None, rstd, weight)[:2])


@lowers("aten.native_group_norm_backward")
def group_norm_backward(low: Lowering, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *more: Any) -> Outputs:
    """Gradients of input, weight and bias: all are made of two sums for each channel of each sample."""
    weight, *sizes, groups, _ = more
    _require_shape(x, sizes)
    rows, of, dtype = _groups(x, groups), _by_channel(x), compute_dtype(x.dtype)
    normal = _centered(x, rows, mean, rstd.at)
    plain = total(low, of, lambda i: cast(dy.at(i), dtype), dtype)
    tilted = total(low, of, lambda i: times(cast(dy.at(i), dtype), normal(i)), dtype)
    samples = Space(plain.sizes, (0,))

    def of_group(sums: Tensor) -> Tensor:
        group = Space(rows.space.sizes[:3], (2,))
        count = size_value(rows.space.count, dtype)
        channel = lambda i: rows.join(i)[:2]  # noqa: E731
        element = lambda i: _scaled(sums.at(channel(i)), channel(i)[1:], weight)  # noqa: E731
        return fold(low, group, "sum", element, lambda _, s: (over(s, count),), dtype)[0]

    def dx() -> Tensor:
        shift, tilt = of_group(plain), of_group(tilted)

        def compute(i: Indices) -> Value:
            row, g = rows.row(i), _scaled(cast(dy.at(i), dtype), rows.columns.result(i), weight)
            rest = minus(minus(g, shift.at(row)), times(normal(i), tilt.at(row)))
            return times(cast(rstd.at(row), dtype), rest)

        return low.pointwise(compute, x.sizes, promised(low, 0), output=0)

    dw = lambda: total(low, samples, tilted.at, dtype, output=1)  # noqa: E731
    db = lambda: total(low, samples, plain.at, dtype, output=2)  # noqa: E731
    return _chosen(low, dx, lambda: stored(low, dw(), 1), lambda: stored(low, db(), 2))


@lowers("aten.native_batch_norm_backward")
def batch_norm_backward(low: Lowering, dy: Tensor, x: Tensor, weight: Tensor | None, *more: Any) -> Outputs:
    """Gradients of input, weight and bias; running statistics are constants of the evaluation form."""
    running_mean, running_var, saved_mean, saved_rstd, train, eps, _ = more
    rows, dtype = _channels(x), compute_dtype(x.dtype)
    if train:
        saved = (saved_mean, saved_rstd)
        # Statistics that were promised in 16 bits are in float32 in eager where the weight is: they are made anew.
        mean, rstd = _statistics(low, x, rows, eps) if saved_mean.dtype in HALVES else saved
        return _chosen(low, *_batch_gradients(low, rows, dy, x, mean, rstd, weight))
    rstd = low.pointwise(_running_rstd(running_var, eps, dtype), running_var.sizes, dtype)

    def dx() -> Tensor:
        scaled = lambda i: times(_scaled(cast(dy.at(i), dtype), rows.row(i), weight), rstd.at(rows.row(i)))  # noqa: E731
        return low.pointwise(scaled, x.sizes, promised(low, 0), output=0)

    normal = _centered(x, rows, running_mean, rstd.at)
    return _chosen(low, dx, *_parameter_gradients(low, rows, dy, normal, dtype))


def _batch_gradients(
    low: Lowering, rows: NormalizedRows, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None
) -> tuple[Callable[[], Tensor], ...]:
    """Gradients of a batch norm: its rows are columns, so that the sums that dx needs are dw and db."""
    dtype, normal = compute_dtype(x.dtype), _centered(x, rows, mean, rstd.at)
    dw = total(low, rows.columns, lambda i: times(cast(dy.at(i), dtype), normal(i)), dtype, output=1)
    db = total(low, rows.columns, lambda i: cast(dy.at(i), dtype), dtype, output=2)
    count = rows.space.count
    share = const(1 / count, dtype) if isinstance(count, int) and count else None  # as eager: no element divides

    def compute(i: Indices) -> Value:
        row = rows.row(i)
        whole = plus(db.at(row), times(normal(i), dw.at(row)))
        drift = over(whole, size_value(count, dtype)) if share is None else times(whole, share)
        return times(minus(cast(dy.at(i), dtype), drift), _scaled(cast(rstd.at(row), dtype), row, weight))

    return (
        lambda: low.pointwise(compute, x.sizes, promised(low, 0), output=0),
        lambda: stored(low, dw, 1),
        lambda: stored(low, db, 2),
    )
