"""What is asked at each replay, of hundreds of tensors: whether inputs are where they were, and results still in use.

Each question goes to all tensors at once, by functions that are not Python's, since this is the host's time of a step.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from ....rewrites.compat import memory as torch_memory

_dtype = operator.attrgetter("dtype")


class Checks:
    """What inputs must be for a capture to be replayed.

    Args:
        given: the inputs of the capture.
        addresses: of those that are read where they are, by position.
        varying: positions of those whose layout may be another in another call.
    """

    def __init__(self, given: Sequence[Any], addresses: Mapping[int, int], varying: Sequence[int]) -> None:
        self._read, self._addresses = _picked(addresses), list(addresses.values())
        self._varying = _picked(varying)
        self._layouts = _layouts(self._varying(given))
        numbers = [k for k, x in enumerate(given) if not isinstance(x, torch.Tensor)]
        self._pick_numbers = _picked(numbers)
        self._numbers = list(self._pick_numbers(given))

    def hold(self, args: Sequence[Any]) -> bool:
        """Whether these inputs are so."""
        return (
            list(map(torch.Tensor.data_ptr, self._read(args))) == self._addresses
            and _layouts(self._varying(args)) == self._layouts
            and list(self._pick_numbers(args)) == self._numbers
        )


def _picked(positions: Collection[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks what lies at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    only = list(positions)
    return lambda args: [args[k] for k in only]


def _layouts(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...]:
    return (
        list(map(torch.Tensor.size, tensors)),
        list(map(torch.Tensor.stride, tensors)),
        list(map(_dtype, tensors)),
    )


class Users:
    """Whether anyone but us uses some tensors, or others that look at their memory.

    Made when nobody does: what there is of memory's users then is ours.

    Args:
        tensors: whose memory is asked about.
        same: objects that are given out again and again, so that they may be used without a further look at their
            memory, each with how many times we hold it.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], same: Iterable[tuple[torch.Tensor, int]] = ()) -> None:
        self.keys = [torch_memory.storage_key(x) for x in tensors]
        pairs = list(same)
        self._same = [x for x, _ in pairs]
        idle = [_COUNTED + 1 + times for _, times in pairs]  # `_same` holds them as well
        self._idle = [*torch_memory.storages_users(self.keys), *(1 for _ in pairs), *idle]

    def are_there(self) -> bool:
        """Whether anyone does now."""
        counts = chain(
            torch_memory.storages_users(self.keys),
            torch_memory.tensors_users(self._same),
            map(sys.getrefcount, self._same),
        )
        return any(map(operator.gt, counts, self._idle))


_COUNTED = next(map(sys.getrefcount, [object()])) - 1  # what Python counts of itself while it counts
