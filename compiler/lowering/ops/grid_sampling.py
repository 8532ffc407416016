"""Sampling at computed places: outputs are weighted sums of the few elements around where a grid says that they lie.

    grid_sampler_2d     ->   u = ((g[n, i, j, 0] + 1) * w - 1) / 2;   a = floor(u)           v and b alike, of heights
                             out[n, c, i, j] = x[n, c, b, a] * (a + 1 - u) * (b + 1 - v) + ... of four elements

Elements outside of the image are 0; or places are clipped, or reflected at its borders before. Places that are no
numbers, or that no integer holds, lie outside. Steps are those of eager's kernels on GPUs, which compute in single
precision. Its kernels for CPUs go through an image in vectors, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from ...ir.index.index import Loaded, add
from ...ir.value import Value, compute_dtype
from ..arithmetic import minus, op, over, plus, size_value, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers
from ..positions import guarded
from .resampling import inner_cubic, outer_cubic

_LIBRARY = frozenset({"cpu"})  # types of devices whose library is faster
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_OUTSIDE = -100.0  # a place outside of every image
_LARGEST = float((1 << 31) - 2)  # the last place that eager takes for one

_Tap = tuple[Value, Value | None]  # the position of an element along one dim, and its weight (None: 1)


@lowers("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(low: Lowering, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """``out[n, c, *o]`` is `x` at ``grid[n, *o]``, whose last dim gives x, y (and z) from -1 to 1."""
    dtype = compute_dtype(x.dtype)
    if low.device.type in _LIBRARY:
        raise Unlowered("library", "eager's kernels for CPUs go through an image in vectors")
    if x.dtype != grid.dtype or not dtype.is_floating_point:
        raise Unlowered("arguments", f"a grid of {grid.dtype}, an image of {x.dtype}")
    image = x.sizes[2:]
    axes = [_Axis(size, padding, align_corners, dtype) for size in image]
    taps = {_BILINEAR: _linear, _NEAREST: _nearest, _BICUBIC: _cubic}[mode]

    def element(at: Indices) -> Value:
        places = [grid.at((at[0], *at[2:], len(image) - 1 - d)) for d in range(len(image))]
        along = [taps(axis, place) for axis, place in zip(axes, places, strict=True)]
        return plus(*(_tap(x, at[:2], axes, corner) for corner in product(*along)))

    return low.pointwise(element, (*x.sizes[:2], *grid.sizes[1:-1]), x.dtype)


@lowers("aten.cudnn_grid_sampler")
def cudnn_grid_sampler(low: Lowering, x: Tensor, grid: Tensor) -> Tensor:
    """The same, bilinear, with zeros outside and corners aligned."""
    return grid_sampler(low, x, grid, _BILINEAR, _ZEROS, True)


@dataclass(frozen=True)
class _Axis:
    """One dim of an image of `size` elements along it."""

    size: Any
    padding: int
    align_corners: bool
    dtype: torch.dtype

    def place(self, coordinate: Value) -> Value:
        """The place of a coordinate from -1 to 1 among the elements, which are at whole numbers."""
        if self.align_corners:
            return times(over(plus(coordinate, 1), 2), size_value(add(self.size, -1), self.dtype))
        return over(minus(times(plus(coordinate, 1), size_value(self.size, self.dtype)), 1), 2)

    def padded(self, place: Value) -> Value:
        """A place after what is done at borders; outside of the image if no integer holds it."""
        if self.padding == _REFLECTION:
            place = self._reflected(place)
        if self.padding != _ZEROS:  # what is no number is clipped to 0
            place = where(op("isnan", place), 0.0, place)
            place = op("minimum", op("maximum", place, 0), size_value(add(self.size, -1), self.dtype))
        return where(op("le", op("abs", place), const(_LARGEST, self.dtype)), place, const(_OUTSIDE, self.dtype))

    def _reflected(self, place: Value) -> Value:
        """A place reflected at the first and the last element, or half an element beyond them."""
        first = const(0.0 if self.align_corners else -0.5, self.dtype)
        span = size_value(add(self.size, -1) if self.align_corners else self.size, self.dtype)
        apart = op("abs", minus(place, first))
        rest, flips = op("fmod", apart, span), op("floor", over(apart, span))
        even = op("eq", op("fmod", flips, const(2.0, self.dtype)), const(0.0, self.dtype))
        found = where(even, plus(rest, first), plus(minus(span, rest), first))
        return where(op("eq", span, const(0.0, self.dtype)), const(0.0, self.dtype), found)

    def inside(self, position: Value) -> list[Value]:
        """The conditions under which a whole place is an element's."""
        if self.padding == _ZEROS:
            return [op("ge", position, const(0.0, self.dtype)), op("lt", position, size_value(self.size, self.dtype))]
        return [op("lt", position, size_value(self.size, self.dtype))]

    def index(self, position: Value) -> Any:
        """The index of the element at a whole place, of the nearest one if it lies outside."""
        last = size_value(add(self.size, -1), torch.int64)
        return Loaded(op("maximum", op("minimum", cast(position, torch.int64), last), 0), self.size, False).index()


def _linear(axis: _Axis, coordinate: Value) -> list[_Tap]:
    """The two elements around a place, weighted by distance."""
    place = axis.padded(axis.place(coordinate))
    first = op("floor", place)
    second = plus(first, 1)
    return [(first, minus(second, place)), (second, minus(place, first))]


def _nearest(axis: _Axis, coordinate: Value) -> list[_Tap]:
    """The element nearest to a place; of two, the even one."""
    return [(op("round", axis.padded(axis.place(coordinate))), None)]


def _cubic(axis: _Axis, coordinate: Value) -> list[_Tap]:
    """The four elements around a place by cubic convolution; what is done at borders is done to each of them."""
    place = axis.place(coordinate)
    first = op("floor", place)
    t = minus(place, first)
    rest = minus(const(1, axis.dtype), t)
    weights = [outer_cubic(plus(t, 1)), inner_cubic(t), inner_cubic(rest), outer_cubic(plus(rest, 1))]
    return [(op("trunc", axis.padded(plus(first, k - 1))), weight) for k, weight in enumerate(weights)]


def _tap(x: Tensor, batch: Indices, axes: Sequence[_Axis], taps: Sequence[_Tap]) -> Value:
    """One element of an image times its weight; 0 outside."""
    conditions = [c for axis, (position, _) in zip(axes, taps, strict=True) for c in axis.inside(position)]
    indices = [axis.index(position) for axis, (position, _) in zip(axes, taps, strict=True)]
    found = x.at((*batch, *indices))
    found = guarded(conditions, found, const(0, found.dtype))
    weights = [weight for _, weight in reversed(taps) if weight is not None]
    return times(found, times(*weights)) if weights else found
