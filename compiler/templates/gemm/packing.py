"""Weights in the layout that the product's kernel computes in: vectors of columns, each with all of the depth.

    b of (depth, columns)            ->   (columns / W, depth, W), zeros after the last column
    b of (depth, columns), bytes     ->   (columns / W, depth / 4, W, 4)

Packed once where the weight is known while compiling: by calls in the graph, which freezing evaluates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from ....patterns.packing import PACKED
from ....rewrites.compat.tensors import writes_seen
from .cpp_bytes import TOGETHER

aten = torch.ops.aten

Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def packed_sizes(columns: int, depth: int, lanes: int, dtype: torch.dtype = torch.float32) -> tuple[int, ...]:
    """Sizes of a packed weight."""
    vectors = -(-columns // lanes)
    return (vectors, depth, lanes) if dtype != torch.int8 else (vectors, depth // TOGETHER, lanes, TOGETHER)


def packed(weight: torch.Tensor, lanes: int, transposed: bool) -> torch.Tensor:
    """A weight packed.

    Args:
        weight: (columns, depth) where `transposed`, else (depth, columns).
        lanes: floats a vector.
        transposed: see `weight`.
    """
    for operator, args, settings in _steps(weight, lanes, transposed):
        weight = operator(weight, *args, **settings)
    return weight


def packed_node(weight: fx.Node, lanes: int, transposed: bool) -> fx.Node:
    """The calls that pack a weight, where the graph inserts right now; the last of them."""
    for operator, args, settings in _steps(weight.meta["val"], lanes, transposed):
        made = weight.graph.call_function(operator, (weight, *args), settings)
        made.meta = {**weight.meta, "val": operator(weight.meta["val"], *args, **settings)}
        weight = made
    weight.meta[PACKED] = True
    return weight


def _steps(weight: torch.Tensor, lanes: int, transposed: bool) -> Iterator[Step]:
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    vectors = -(-columns // lanes)
    dense = {"memory_format": torch.contiguous_format}
    if not transposed:
        yield aten.permute.default, ([1, 0],), {}
    yield aten.constant_pad_nd.default, ([0, 0, 0, vectors * lanes - columns],), {}
    yield aten.clone.default, (), dense
    _, outer, _, *inner = packed_sizes(columns, depth, lanes, weight.dtype)
    yield aten.view.default, ([vectors, lanes, outer, *inner],), {}
    yield aten.permute.default, ([0, 2, 1, 3][: 3 + len(inner)],), {}
    yield aten.clone.default, (), dense


class LastPacked:
    """A program on packed weights as one on plain weights: the last one stays packed while it is measured.

    Args:
        kernel: takes the packed weight as its second tensor.
        lanes, transposed: see `packed`.
    """

    def __init__(self, kernel: Callable[..., torch.Tensor], lanes: int, transposed: bool) -> None:
        self._kernel, self._lanes, self._transposed = kernel, lanes, transposed
        self._weight: Callable[[], torch.Tensor | None] = lambda: None
        self._writes, self._packed = -1, torch.empty(0)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The product of `x` and the plain `weight`."""
        if self._weight() is not weight or self._writes != writes_seen(weight):
            self._weight, self._writes = weakref.ref(weight), writes_seen(weight)
            self._packed = packed(weight, self._lanes, self._transposed)
        return self._kernel(x, self._packed, *others)
