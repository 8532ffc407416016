"""Rows of a product that are windows over images: what a copy would write out, read where it lies.

%windows = permute(unfold(unfold(%pixels, 1, 3, 1), 2, 3, 1), ...)     images, lines, columns, window, channels
%rows = reshape(%windows, [-1, 576]); %y = _int_mm(%rows, %weight)     ->   row i begins at a sum of steps; runs of 192
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch import fx

from ....rewrites.moves import RESHAPES
from ..common.formula import packet

_VIEWS = {"aten.permute", "aten.unfold", "aten.slice", "aten.unsqueeze", "aten.squeeze"}
_MOST_LINES = 1 << 9  # of a window, whose places are a table of the kernel


@dataclass(frozen=True)
class Windows:
    """Where rows of a matrix lie.

    Args:
        rows: sizes and strides that count rows, outermost first.
        lines: where the runs of a row begin, from its first element on.
        run: the elements of each of them, one after the other.
    """

    rows: tuple[tuple[int, int], ...]
    lines: tuple[int, ...]
    run: int


def windows_of(matrix: fx.Node, together: int) -> tuple[fx.Node, Windows] | None:
    """The images of which a matrix is a copy of windows; None for a matrix that can be read with a stride.

    Args:
        matrix: of rows by depth.
        together: elements of a run are a multiple of this.
    """
    view = matrix
    while packet(view) in RESHAPES or packet(view) == "aten.clone":
        view = view.args[0]  # type: ignore[assignment]
    images = view
    while packet(images) in _VIEWS:
        images = images.args[0]  # type: ignore[assignment]
    if images is view or view is matrix:
        return None
    of_view, of_images = view.meta["val"], images.meta["val"]
    if not all(isinstance(n, int) for n in (*of_view.shape, *of_view.stride())) or not of_images.is_contiguous():
        return None
    if of_view.storage_offset() != of_images.storage_offset():
        return None
    found = _windows(of_view.shape, of_view.stride(), *matrix.meta["val"].shape)
    if found is None or found.run % together or (len(found.rows) < 2 and len(found.lines) < 2):
        return None
    return images, found


def _windows(sizes: Sequence[int], strides: Sequence[int], rows: int, depth: int) -> Windows | None:
    split = next((n for n in range(len(sizes) + 1) if prod(sizes[:n]) == rows and prod(sizes[n:]) == depth), None)
    if split is None:
        return None
    outer = _merged(sizes[:split], strides[:split])
    *lines, (run, step) = _merged(sizes[split:], strides[split:]) or [(1, 1)]
    if step != 1 or prod(size for size, _ in lines) > _MOST_LINES:
        return None
    starts = (sum(at * step for at, (_, step) in zip(places, lines, strict=True))
              for places in product(*(range(size) for size, _ in lines)))  # fmt: skip
    return Windows(tuple(outer), tuple(starts), run)


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Dims, those that lie one after the other as one."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    return dims
