"""The description of a convolution: a product whose left operand is windows of images, which nobody writes down.

    for g < groups, i < pixels of the result, j < a group's channels of it:
        out[g, i, j] = f(g, i, j, sum over places r of the window, k < a group's channels of the image
                                  of image[window i at r, g, k] * weight[g, j, k, r])

Pixels are counted over images, lines and columns. Where a window looks outside of an image there are zeros, which are
multiplied like pixels: beside an infinite weight, a border is NaN (so it is in eager's float64, and by libraries for
GPUs if channels are last).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ...lowering.windows import Sliding
from ..gemm.description import Product


@dataclass(frozen=True)
class Side:
    """One dim of the images.

    Args:
        window: how windows lie along it.
        image, weight: strides in elements.
    """

    window: Sliding
    image: int
    weight: int

    @property
    def looks_before(self) -> bool:
        """Whether some window begins before the image."""
        return self.window.padding > 0

    @property
    def looks_beyond(self) -> bool:
        """Whether some window ends beyond the image."""
        w = self.window
        return (w.out - 1) * w.stride - w.padding + (w.kernel - 1) * w.dilation >= w.size


@dataclass(frozen=True, kw_only=True)
class Convolution(Product):
    """A convolution with its epilogue; `batch` are groups, `depth` the places of a window times channels.

    Strides of `a` are those of groups, none, and of channels; of `b` those of groups, input and output channels.

    Args:
        images: the stride between images.
        sides: dims of the images, outermost first.
        channels: of a group, of the image.
        merged: whether a line of the window and its channels, side by side in memory, are taken as one: where channels
            are so few that a step would be mostly empty.
    """

    images: int
    sides: tuple[Side, ...]
    channels: int
    merged: bool = False

    @property
    def run(self) -> int:
        """The extent of the sum for each place of the window."""
        return self.channels * self.sides[-1].window.kernel if self.merged else self.channels

    @property
    def kernel(self) -> tuple[int, ...]:
        """The places of the window that are visited one after the other."""
        return tuple(side.window.kernel for side in (self.sides[:-1] if self.merged else self.sides))

    @property
    def extents(self) -> tuple[int, ...]:
        """Images, and the result's dims."""
        outs = [side.window.out for side in self.sides]
        return (self.row.extent // prod(outs), *outs)

    def row_tiles(self, rows: int, descriptors: bool) -> int:
        """How many tiles of so many pixels there are: in any order, or in boxes."""
        if not descriptors:
            return super().row_tiles(rows, descriptors)
        return prod(boxes(self.extents, box(self.extents, rows)))

    def steps(self, depth: int) -> int:
        """How many steps of a depth there are."""
        return prod(self.kernel) * -(-self.run // depth)


def in_each_dim(numbers: Sequence[int], dims: int) -> tuple[int, ...]:
    """A number for each dim of the images: operators take one for all."""
    return tuple(numbers) * dims if len(numbers) == 1 else tuple(numbers)


def sides_of(x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor, values: Mapping[str, Any]) -> tuple[Side, ...]:
    """The dims of images `x` in a call with the arguments `values`, whose result or its gradient is `out`."""
    steps = (in_each_dim(values[name], x.dim() - 2) for name in ("stride", "padding", "dilation"))
    strides = x.stride()[2:], weight.stride()[2:]
    each = zip(x.shape[2:], out.shape[2:], weight.shape[2:], *steps, *strides, strict=True)
    return tuple(Side(Sliding(*facts[:6]), *facts[6:]) for facts in each)


def boxes(extents: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """How many boxes lie along each dim."""
    return tuple(-(-extent // size) for extent, size in zip(extents, sizes, strict=True))


@functools.lru_cache(maxsize=1024)
def box(extents: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The box of `rows` pixels (images, lines, columns: powers of 2) that leaves the least of itself unused.

    64 images of 56x56, 128 rows  ->  (1, 16, 8) would be 3.5 high;  (2, 8, 8) fits
    """
    return min(splits(rows, len(extents)), key=lambda sizes: (prod(boxes(extents, sizes)), sizes))


def splits(rows: int, dims: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a power of 2 as a product."""
    if dims == 1:
        yield (rows,)
        return
    size = 1
    while size <= rows:
        for rest in splits(rows // size, dims - 1):
            yield (size, *rest)
        size *= 2
