"""The parts of memory that tensors reach over: from the first byte of a tensor to the one behind its last element.

Elements of one tensor may share places, too: `overlaps_itself`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch

from .symbolic import hint

Reach = tuple[int, int]
"""A first place, and the one behind the last."""

_ALL = 0, sys.maxsize


def reach(x: torch.Tensor) -> Reach:
    """The bytes of its memory that a tensor reaches over, if it had one element at least; all if that is not known."""
    first, end = reach_in_elements(x)
    return (first, end) if (first, end) == _ALL else (first * x.itemsize, end * x.itemsize)


def reach_in_elements(x: torch.Tensor) -> Reach:
    """The same in elements of its own: tensors of other dtypes count other elements."""
    numbers = [hint(n) for n in (x.storage_offset(), *x.shape, *x.stride())]
    if None in numbers:
        return _ALL
    first, sizes, strides = numbers[0], numbers[1 : x.dim() + 1], numbers[x.dim() + 1 :]
    return first, first + 1 + sum(max(n - 1, 0) * stride for n, stride in zip(sizes, strides, strict=True))


def meet(places: Iterable[Reach]) -> bool:
    """Whether two of these have a part in common."""
    return any(begin < end for (_, end), (begin, _) in pairwise(sorted(places)))


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a tensor share places: a dim steps into what dims of smaller strides reach over."""
    if 0 in sizes:
        return False
    last = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride <= last:
            return True
        last += stride * (size - 1)
    return False
