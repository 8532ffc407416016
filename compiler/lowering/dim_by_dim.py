"""Windows of pooling that are folded along one dim after the other, the last first: 5 + 5 elements in place of 25.

t[i, l] = max over s < 5 of x[i, l + s]          out[k, l] = max over r < 5 of t[k + r, l]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.index.index import mul
from ..ir.value import Value
from .core import Indices, Lowering, Tensor, number
from .positions import guarded, numel, swapped
from .windows import UNROLLED, Sliding, Window


def are_separable(low: Lowering, windows: Sequence[Window]) -> bool:
    """Whether folding windows dim by dim reads no more elements than folding them as a whole, on a CPU."""
    sliding = [w for w in windows if isinstance(w, Sliding)]
    if low.device.type != "cpu" or len(sliding) != len(windows):
        return False
    whole = numel([w.width for w in sliding])
    read = sum(w.width * numel([above.stride for above in sliding[:d]]) for d, w in enumerate(sliding))
    return bool(whole >= UNROLLED and read <= whole)


def folded_dim_by_dim(  # noqa: PLR0913
    low: Lowering,
    reducer: str,
    x: Tensor,
    windows: Sequence[Window],
    sizes: Indices,
    other: Value,
    between: torch.dtype,
    finish: Callable[[Indices, Value], Value],
    output: int | None = None,
) -> Tensor:
    """A tensor of these sizes whose elements fold windows of `x`.

    Args:
        low: the lowering in progress.
        reducer: how elements are folded.
        x: the elements.
        windows: one for each of the last dims.
        sizes: those of the result.
        other: the element where a window sees none.
        between: the dtype of what is folded along some of the dims.
        finish: the stored value, given its indices and what was folded.
        output: the number of the result among the node's.
    """
    dtype, first = x.dtype, len(sizes) - len(windows)
    for d in range(len(sizes) - 1, first, -1):
        now = (*x.sizes[:d], *sizes[d:])
        row, strides = _seen(x, windows[d - first], d, other), _strides(low, now, output)
        width = [windows[d - first].width]
        (x,) = low.reduce(reducer, row, now, width, lambda _, parts: parts[0], [between], strides=strides)
    last = _seen(x, windows[0], first, other)
    return low.reduce(
        reducer, last, sizes, [windows[0].width], lambda at, parts: finish(at, parts[0]), [dtype], output=output
    )[0]


def _seen(x: Tensor, window: Window, dim: int, other: Value) -> Callable[[Indices, Indices], Value]:
    """A function that gives the elements that a window along one dim sees."""

    def element(at: Indices, r: Indices) -> Value:
        place, conditions = window.element(at[dim], r[0])
        return guarded(conditions, x.at(swapped(at, dim, place)), other)

    return element


def _strides(low: Lowering, sizes: Indices, output: int | None) -> Indices:
    """Strides of dense memory with the same innermost dim as the node's result: the last one, or channels."""
    result = low.current.meta["val"] if output is None else low.current.meta["val"][output]
    found = [number(step) for step in result.stride()]
    innermost = found.index(1) if 1 in found else len(sizes) - 1
    others = [d for d in range(len(sizes)) if d != innermost]
    strides: list[Any] = [1] * len(sizes)
    step = sizes[innermost]
    for d in reversed(others):
        strides[d], step = step, mul(step, sizes[d])
    return tuple(strides)


__all__ = ["are_separable", "folded_dim_by_dim"]
