"""Scatters: elements stored at indices that are read from memory.

    out = scatter_add(x, 0, index, src)   ->   for i, j: out[i, j] = x[i, j]
                                               for i, j: out[loaded index[i, j], j] += src[i, j]

The copy is a definition of its own, which the scheduler drops where `x` is dead. Loops that store at loaded indices
run in order, so that the last of several writes to one place stays, as in eager on a CPU. Into a constant, few elements
for each row are chosen by comparison, which fuses with what reads the result:

    out = scatter_add(zeros, 1, index, src)   ->   for i, j: out[i, j] = src[i, 0] if index[i, 0] == j else 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ir.program import Definition, StoreMode
from ...ir.value import Const, Value, compute_dtype
from ..arithmetic import op, size_value, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers
from ..positions import (
    compared,
    filled,
    highest,
    is_empty,
    iterations,
    loaded,
    lowest,
    numel,
    require_rank,
    scalar,
    swapped,
    unraveled,
)
from ..scalars import Scalar
from .copies import copied
from .elementwise import element as broadcast_at
from .elementwise import rounded
from .indexing import Advanced
from .views import wrapped

# How each reduction of `scatter_reduce` combines, for numbers and for bool.
MODES: dict[str, tuple[StoreMode, StoreMode]] = {
    "sum": ("add", "or"), "add": ("add", "or"), "prod": ("mul", "and"), "multiply": ("mul", "and"),
    "mean": ("add", "or"), "amax": ("max", "or"), "amin": ("min", "and"),
}  # fmt: skip

# The operation by which each mode of a store combines what was there with what comes.
_COMBINED: dict[StoreMode, str] = {
    "add": "add", "mul": "mul", "max": "maximum", "min": "minimum", "or": "logical_or", "and": "logical_and",
}  # fmt: skip
_MOST_COMPARED = 16  # comparisons for a row that elements are scattered into; more take longer than to fill it

Place = Callable[[Indices], Indices]
Source = Callable[[Indices], Value]


def mode_of(reduce: str, dtype: torch.dtype) -> StoreMode:
    """The store mode of a reduction's name."""
    return MODES[reduce][dtype == torch.bool]


@lowers("aten.scatter.src", "aten.scatter.value")
def scatter(low: Lowering, x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    """``out[index[i, j], j] = src[i, j]`` for dim 0."""
    return _scattered(low, x, dim, index, _source(src, x.dtype), None)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduce_legacy(low: Lowering, x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Tensor:
    """`scatter` that adds or multiplies."""
    return _scattered(low, x, dim, index, _source(src, x.dtype), mode_of(reduce, x.dtype))


@lowers("aten.scatter_add")
def scatter_add(low: Lowering, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``out[index[i, j], j] += src[i, j]`` for dim 0."""
    return scatter_reduce_legacy(low, x, dim, index, src, reduce="add")


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    low: Lowering, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter` with a reduction; `include_self` counts what was there before."""

    def write(into: Tensor, source: Source, mode: StoreMode | None) -> None:
        _scatter(low, into, dim, index, source, mode)

    return _reduced_into(low, x, write, _source(src, x.dtype), reduce, include_self)


@lowers("aten.index_reduce")
def index_reduce(
    low: Lowering, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``out[index[i]] op= source[i]`` for dim 0."""

    def write(into: Tensor, elements: Source, mode: StoreMode | None) -> None:
        _scatter_slices(low, into, dim, index, elements, mode)

    return _reduced_into(low, x, write, _source(source, x.dtype), reduce, include_self)


@lowers("aten.index_add")
def index_add(low: Lowering, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """``out[index[i]] += alpha * source[i]`` for dim 0; of no elements, eager does not look at indices."""
    out, elements = copied(low, x), _source(source, x.dtype)
    if 0 in x.sizes:
        return out
    if isinstance(alpha, Scalar) or alpha != 1:
        name = "logical_and" if x.dtype == torch.bool else "mul"
        factor = _factor(low, alpha, x.dtype)
        _scatter_slices(low, out, dim, index, lambda at: op(name, elements(at), factor), mode_of("sum", x.dtype))
    else:
        _scatter_slices(low, out, dim, index, elements, mode_of("sum", x.dtype))
    return out


def _factor(low: Lowering, alpha: Any, dtype: torch.dtype) -> Value:
    """A number that multiplies elements: on CPUs of their dtype in eager, on GPUs in the dtype that is computed in."""
    factor = scalar(alpha, dtype)
    return rounded(factor, dtype) if low.device.type == "cpu" else factor


@lowers("aten.index_copy")
def index_copy(low: Lowering, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``out[index[i]] = source[i]`` for dim 0."""
    out = copied(low, x)
    _scatter_slices(low, out, dim, index, _source(source, x.dtype), None)
    return out


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(low: Lowering, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """``out[index[i]] = value`` for dim 0; negative indices count from the end."""
    out, element = copied(low, x), scalar(value, x.dtype)
    _scatter_slices(low, out, dim, index, lambda _: element, None, wrap=True)
    return out


@lowers("aten.index_put", "aten._unsafe_index_put")
def index_put(
    low: Lowering, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """``out[:, rows, cols] = values`` (or ``+=``); with one mask for an index, a choice without any index."""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype == torch.bool:
        return _masked_put(low, x, indices, given[0], values, accumulate)
    plan = Advanced(x.sizes, indices)
    out = _widened(low, x) if accumulate else copied(low, x)
    loops = low.loops(plan.sizes)
    at = iterations(loops)
    mode = mode_of("sum", x.dtype) if accumulate else None
    low.store(out, loops, plan.source(at), broadcast_at(values, at), mode)
    return _narrowed(low, out, x.dtype)


@lowers("aten.put")
def put(low: Lowering, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Stores to the flattened `x`; negative indices count from the end."""
    require_rank(x)
    out, total = copied(low, x), numel(x.sizes)
    loops = low.loops(index.sizes)
    at = iterations(loops)
    place = unraveled(loaded(index, at, total, wrap=True), x.sizes)
    if source.sizes != index.sizes:
        raise Unlowered("arguments", f"sizes of the source {source.sizes}, of the index {index.sizes}")
    low.store(out, loops, place, source.at(at), mode_of("sum", x.dtype) if accumulate else None)
    return out


@lowers("aten.embedding_dense_backward")
def embedding_dense_backward(
    low: Lowering,
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The rows of the gradient, added up by index; the row `padding_idx` stays 0."""
    if scale_grad_by_freq:
        raise Unlowered("arguments", "scale_grad_by_freq: gradients scaled by how often an index occurs")
    rank, dtype = len(indices.sizes), grad_output.dtype
    out = filled(low, (num_weights, grad_output.sizes[-1]), 0, compute_dtype(dtype))
    loops = low.loops(grad_output.sizes)
    at = iterations(loops)
    row = loaded(indices, at[:rank], num_weights)
    padding = op("eq", cast(indices.at(at[:rank]), torch.int64), size_value(padding_idx, torch.int64))
    value = grad_output.at(at)
    kept = value if _is_negative(padding_idx) else where(padding, scalar(0, dtype), value)
    low.store(out, loops, (row, at[rank]), kept, "add")
    return _narrowed(low, out, dtype)


def _widened(low: Lowering, x: Tensor) -> Tensor:
    """A copy to add to: floats of 16 bits as 32, as eager adds them up on GPUs, or small terms would be lost."""
    return copied(low, x, compute_dtype(x.dtype))


def _narrowed(low: Lowering, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` itself where it has this dtype."""
    return x if x.dtype == dtype else copied(low, x, dtype)


def _is_negative(number: Any) -> bool:
    return isinstance(number, int) and number < 0


def _source(src: Any, dtype: torch.dtype) -> Source:
    """The element to store in an iteration: of a tensor, or a scalar everywhere."""
    if isinstance(src, Tensor) and src.sizes:
        return lambda at: cast(src.at(at), compute_dtype(dtype))
    value = scalar(src, dtype)
    return lambda _: value


def _require_broadcast(values: Tensor, sizes: Indices) -> None:
    """Refuse values that are not known to broadcast to the places that they go to: eager raises where they do not.

    Raises:
        Unlowered: they are not.
    """
    wide = zip(reversed(values.sizes), reversed(sizes), strict=False)
    if len(values.sizes) > len(sizes) or any(size not in (1, place) for size, place in wide):
        raise Unlowered("arguments", f"values of sizes {values.sizes} for places of sizes {sizes}")


def _scattered(low: Lowering, x: Tensor, dim: int, index: Tensor, source: Source, mode: StoreMode | None) -> Tensor:
    """A copy of `x` with elements scattered into it."""
    start = _constant(low, x)
    if start is not None and _are_few(x, dim, index):
        return _chosen(low, x, wrapped(dim, len(x.sizes)), index, start, source, mode)
    out = copied(low, x)
    _scatter(low, out, dim, index, source, mode)
    return out


def _constant(low: Lowering, x: Tensor) -> Const | None:
    """The number that all elements of `x` are known to be."""
    stores = [s for item in low.items if isinstance(item, Definition) for s in item.stores if s.buffer == x.buffer.name]
    value = stores[0].value if len(stores) == 1 and stores[0].mode is None else None
    return value if isinstance(value, Const) else None


def _are_few(x: Tensor, dim: int, index: Tensor) -> bool:
    """Whether an index has so few elements for each row of `x` that each place can be compared with all of them."""
    if not x.sizes or len(index.sizes) != len(x.sizes) or is_empty(x.sizes):
        return False
    d = wrapped(dim, len(x.sizes))
    count, size = index.sizes[d], x.sizes[d]
    if index.sizes != swapped(x.sizes, d, count):
        return False
    known = isinstance(count, int) and isinstance(size, int)
    return known and count <= size and count * size <= _MOST_COMPARED


def _chosen(
    low: Lowering, x: Tensor, dim: int, index: Tensor, start: Const, source: Source, mode: StoreMode | None
) -> Tensor:
    """``out[i, j] = source[i, k] if index[i, k] == j else start``, for the few `k` in order."""

    def element(at: Indices) -> Value:
        value: Value = start
        for k in range(index.sizes[dim]):
            of = swapped(at, dim, k)
            hit = compared("eq", loaded(index, of, x.sizes[dim]), at[dim])
            value = where(hit, op(_COMBINED[mode], value, source(of)) if mode else source(of), value)
        return value

    return low.pointwise(element, x.sizes, x.dtype)


def _scatter(low: Lowering, into: Tensor, dim: int, index: Tensor, source: Source, mode: StoreMode | None) -> None:
    """``into[index[i, j], j] op= source[i, j]`` for every element of `index`."""
    if is_empty(index.sizes):
        return
    require_rank(into)
    require_rank(index, len(into.sizes))
    d, loops = wrapped(dim, len(into.sizes)), low.loops(index.sizes)
    at = iterations(loops)
    low.store(into, loops, swapped(at, d, loaded(index, at, into.sizes[d])), source(at), mode)


def _scatter_slices(
    low: Lowering,
    into: Tensor,
    dim: int,
    index: Tensor,
    source: Source,
    mode: StoreMode | None,
    *,
    wrap: bool = False,
) -> None:
    """``into[index[i], j] op= source[i, j]`` for dim 0 and an index of rank 1 or 0."""
    require_rank(into)
    d = wrapped(dim, len(into.sizes))
    loops = low.loops(swapped(into.sizes, d, numel(index.sizes)))
    at = iterations(loops)
    place = loaded(index, at[d : d + len(index.sizes)], into.sizes[d], wrap=wrap)
    low.store(into, loops, swapped(at, d, place), source(at), mode)


def _reduced_into(
    low: Lowering,
    x: Tensor,
    write: Callable[[Tensor, Source, StoreMode | None], None],
    source: Source,
    reduce: str,
    include_self: bool,
) -> Tensor:
    """A copy of `x` with what `write` scatters folded in; a mean divides by how much came to each place."""
    out = copied(low, x)
    if not include_self:
        start = _identity(reduce, x.dtype)
        write(out, lambda _: start, None)
    write(out, source, mode_of(reduce, x.dtype))
    return _divided_by_counts(low, out, write, include_self) if reduce == "mean" else out


def _identity(reduce: str, dtype: torch.dtype) -> Value:
    if reduce in ("amax", "amin"):
        return lowest(dtype) if reduce == "amax" else highest(dtype)
    return const(reduce == "prod", compute_dtype(dtype))


def _divided_by_counts(
    low: Lowering,
    total: Tensor,
    write: Callable[[Tensor, Source, StoreMode | None], None],
    include_self: bool,
) -> Tensor:
    if total.dtype == torch.bool:
        raise Unlowered("dtype", "a mean of bool")
    kind = compute_dtype(total.dtype)
    count = filled(low, total.sizes, int(include_self), kind)
    one = const(1, kind)
    write(count, lambda _: one, "add")
    name = "div" if kind.is_floating_point else "floordiv"
    return low.pointwise(lambda at: op(name, total.at(at), op("maximum", count.at(at), 1)), total.sizes, total.dtype)


def _masked_put(
    low: Lowering, x: Tensor, indices: Sequence[Tensor | None], mask: Tensor, values: Tensor, accumulate: bool
) -> Tensor:
    """``x[:, mask] = values``, where every place that the mask lets through gets the same values.

    x[mask] = 0   ->   for i: out[i] = where(mask[i], 0, x[i])
    """
    start = next(d for d, i in enumerate(indices) if i is not None)
    stop = start + len(mask.sizes)
    rank = start + 1 + len(x.sizes) - stop  # of what the values are broadcast to: the places in one dim
    below = len(x.sizes) - stop
    if len(values.sizes) > below and values.sizes[-below - 1] != 1:
        raise Unlowered("data-dependent", "a value for each place that a mask lets through")
    _require_broadcast(values, (*x.sizes[:start], 1, *x.sizes[stop:]))
    mode = "logical_or" if x.dtype == torch.bool else "add"

    def element(at: Indices) -> Value:
        value = broadcast_at(values, (*at[:start], 0, *at[stop:])[:rank])
        value = op(mode, x.at(at), value) if accumulate else value
        return where(mask.at(at[start:stop]), value, x.at(at))

    return low.pointwise(element, x.sizes, x.dtype)
