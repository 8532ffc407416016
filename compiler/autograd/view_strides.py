"""The strides that eager's views give dims of size 1, where torch's own metadata says otherwise.

    x.transpose(1, 2).view(1, 16, 8, 8), x contiguous, of sizes [1, 64, 16]     fake: (1024, 1, 128, 16)
                                                                                eager:  (16, 1, 128, 16)

No element lies elsewhere for that. But what follows asks such strides whether an image is channels last: a batch of one
image would come out of `interpolate` or a convolution in another layout, on which users call `.view`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...rewrites.compat import OpOverload, packet_name

Numbers = Sequence[int]

_VIEWS = frozenset({"view", "_unsafe_view", "_reshape_alias"})


def as_eager_views(target: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of a call on fake tensors, dims of size 1 with eager's strides; of known sizes only.

    Args:
        target: the operator.
        args: its arguments.
        result: what torch gave.
    """
    if not isinstance(target, OpOverload) or packet_name(target) not in _VIEWS or not isinstance(result, torch.Tensor):
        return result
    sizes, (x, *_) = tuple(result.shape), args
    if x.layout != torch.strided or any(type(n) is not int for n in (*sizes, *result.stride(), *x.shape, *x.stride())):
        return result
    if 1 not in sizes or 0 in sizes:
        return result
    strides = viewed(tuple(x.shape), tuple(x.stride()), sizes)
    if strides is None or strides == tuple(result.stride()):
        return result
    return result.as_strided(sizes, strides, result.storage_offset())


def viewed(sizes: Numbers, strides: Numbers, into: Numbers) -> tuple[int, ...] | None:
    """The strides of a view of other sizes; None if there is no such view.

    Dims are taken from the last one on, in runs that lie without a gap. A dim of size 1 goes on with the run before it,
    as far as it comes next.

    Args:
        sizes: of a tensor without a size of 0.
        strides: its own.
        into: sizes of the view, with as many elements.
    """
    if not sizes:
        return (1,) * len(into)
    made = [0] * len(into)
    at, step, elements = len(into) - 1, strides[-1], 1
    for d in reversed(range(len(sizes))):
        elements *= sizes[d]
        if d and (sizes[d - 1] == 1 or strides[d - 1] == elements * step):
            continue
        taken = 1
        while at >= 0 and (taken < elements or into[at] == 1):
            made[at] = taken * step
            taken *= into[at]
            at -= 1
        if taken != elements:
            return None
        step, elements = strides[d - 1], 1
    return tuple(made) if at < 0 else None
