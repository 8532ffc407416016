"""Gathers: every element of the result is read at an index that is read from memory.

    embedding(weight, ids)   ->   for i < 4, j < 768: out[i, j] = weight[loaded ids[i], j]

An index out of range raises eager's IndexError. Only `index`, `take` and what is made of them count negative indices
from the end, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ir.value import Value
from ..core import Indices, Lowering, Tensor, Unlowered, lowers
from ..positions import guarded, is_empty, loaded, numel, picked, require_rank, scalar, swapped, unraveled
from .elementwise import broadcast
from .elementwise import element as broadcast_at
from .views import wrapped


@lowers("aten.gather")
def gather(low: Lowering, x: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    """``out[i, j] = x[index[i, j], j]`` for dim 0."""
    if is_empty(index.sizes):
        return low.pointwise(lambda _: scalar(0, x.dtype), index.sizes, x.dtype)
    require_rank(x)
    require_rank(index, len(x.sizes))
    d = wrapped(dim, len(x.sizes))

    def element(at: Indices) -> Value:
        return picked(x, swapped(at, d, loaded(index, at, x.sizes[d])))

    return low.pointwise(element, index.sizes, x.dtype)


@lowers("aten.index_select")
def index_select(low: Lowering, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """``out[i, j] = x[index[i], j]`` for dim 0; an index of rank 0 is one index."""
    require_rank(x)
    d = wrapped(dim, len(x.sizes))
    sizes = swapped(x.sizes, d, numel(index.sizes))

    def element(at: Indices) -> Value:
        return picked(x, swapped(at, d, loaded(index, at[d : d + len(index.sizes)], x.sizes[d])))

    return low.pointwise(element, sizes, x.dtype)


@lowers("aten.embedding")
def embedding(
    low: Lowering,
    weight: Tensor,
    indices: Tensor,
    *_: Any,
) -> Tensor:
    """Rows of `weight`; the other arguments are about gradients."""
    rank = len(indices.sizes)

    def element(at: Indices) -> Value:
        return picked(weight, (loaded(indices, at[:rank], weight.sizes[0]), at[rank]))

    return low.pointwise(element, (*indices.sizes, weight.sizes[1]), weight.dtype)


@lowers("aten.take")
def take(low: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened `x`; negative indices count from the end."""
    require_rank(x)
    total = numel(x.sizes)

    def element(at: Indices) -> Value:
        return picked(x, unraveled(loaded(index, at, total, wrap=True), x.sizes))

    return low.pointwise(element, index.sizes, x.dtype)


@lowers("aten.index", "aten._unsafe_index")
def index(low: Lowering, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Advanced indexing, ``x[:, rows, cols]``; None takes a dimension whole."""
    plan = Advanced(x.sizes, indices)
    return low.pointwise(lambda at: picked(x, plan.source(at)), plan.sizes, x.dtype)


@lowers("aten._unsafe_masked_index")
def masked_index(low: Lowering, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Any) -> Tensor:
    """`index` where `mask` holds, `fill` elsewhere, where indices need not be in range."""
    plan = Advanced(x.sizes, indices)

    def element(at: Indices) -> Value:
        return guarded([broadcast_at(mask, at)], x.at(plan.source(at)), scalar(fill, x.dtype))

    return low.pointwise(element, plan.sizes, x.dtype)


class Advanced:
    """The plan of an advanced indexing: `x[:, rows, cols]` with rows and cols broadcast to one shape.

    Attributes:
        sizes: of the result. The broadcast shape stands where the indexed dims were if those are adjacent, else first.

    Raises:
        Unlowered: an index is a mask: the size of the result depends on data; or there are more indices than dims.
    """

    def __init__(self, sizes: Sequence[Any], indices: Sequence[Tensor | None]) -> None:
        if len(indices) > len(sizes):
            raise Unlowered("arguments", f"{len(indices)} indices into {len(sizes)} dims")
        self._from = tuple(sizes)
        self._indices = (*indices, *[None] * (len(sizes) - len(indices)))
        given = [d for d, i in enumerate(self._indices) if i is not None]
        if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            raise Unlowered("data-dependent", "an index is a mask: the size of the result depends on data")
        if not given:
            raise Unlowered("arguments", "indexing without an index")
        self._shape = broadcast(i.sizes for i in indices if i is not None)
        adjacent = given[-1] - given[0] == len(given) - 1
        self._start = given[0] if adjacent else 0
        rest = [size for size, i in zip(self._from, self._indices, strict=True) if i is None]
        self.sizes: Indices = (*rest[: self._start], *self._shape, *rest[self._start :])

    def source(self, at: Indices) -> Indices:
        """The indices of `x` that the result's element at `at` is read from (or, in a scatter, written to)."""
        stop = self._start + len(self._shape)
        shared, rest = at[self._start : stop], iter((*at[: self._start], *at[stop:]))
        return tuple(
            next(rest) if index is None else loaded(index, shared, size, wrap=True)
            for size, index in zip(self._from, self._indices, strict=True)
        )
