"""Memory layouts that tensors come in: equal values, other strides.

channels_last   dims from the batch on, channels innermost       reversed   the first dim innermost
expanded        the first dim broadcast                           mixed      every second tensor channels last
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

LAYOUTS = ("channels_last", "reversed", "expanded", "mixed", "mixed expanded")


def in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor, dense in memory with its dims in `order`, the outermost first."""
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*back)


def laid_out(tensor: torch.Tensor, layout: str, position: int = 0) -> torch.Tensor:
    """The tensor in one of the layouts; `position` is its place among a call's tensors."""
    tensor = tensor.detach()
    rank = tensor.dim()
    if layout.startswith("mixed"):
        layout = {"mixed": ("channels_last", ""), "mixed expanded": ("", "expanded")}[layout][position % 2]
    if rank == 0 or tensor.layout != torch.strided or not layout:
        return tensor
    if layout == "expanded":
        return tensor[:1].expand_as(tensor) if tensor.shape[0] > 1 else tensor
    if layout == "channels_last" and rank > 2:
        return in_order(tensor, (0, *range(2, rank), 1))
    return in_order(tensor, range(rank)[::-1])


def every_layout(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor in every order of its dims (of more than three, in a few), and with a dim broadcast."""
    rank = tensor.dim()
    orders: Iterable[Sequence[int]]
    orders = (
        itertools.permutations(range(rank)) if rank < 4 else (range(rank), (0, *range(2, rank), 1), range(rank)[::-1])
    )
    for order in orders:
        yield in_order(tensor, order)
    yield from (tensor.narrow(d, 0, 1).expand_as(tensor) for d in range(rank) if tensor.shape[d] > 1)
