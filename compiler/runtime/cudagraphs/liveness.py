"""Checks at each replay whether inputs are where they were, and whether results are still in use.

Each check covers hundreds of tensors at once, with functions written in C, because it takes time of the host in every
step.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from ....rewrites.compat import memory as torch_memory
from ....rewrites.compat.dynamo import alike

_TRIES = 4  # calls whose tensors become those of Dynamo's check, made in other modes perhaps
_dtype = operator.attrgetter("dtype")
_address = torch.Tensor.data_ptr


class Checks:
    """The conditions on inputs under which a capture can be replayed.

    Args:
        given: the inputs of the capture.
        addresses: the addresses of inputs that are read in place, by position.
        varying: positions of inputs whose layout may change between calls.
    """

    def __init__(self, given: Sequence[Any], addresses: Mapping[int, int], varying: Sequence[int]) -> None:
        self._read, self._addresses = _picked(addresses), list(addresses.values())
        self._varying = _picked(varying)
        self._layouts = _layouts(self._varying(given))
        self._alike: Callable[..., bool] | None = None
        self._tries = _TRIES
        numbers = [k for k, x in enumerate(given) if not isinstance(x, torch.Tensor)]
        self._pick_numbers = _picked(numbers)
        self._numbers = list(self._pick_numbers(given))

    def hold(self, args: Sequence[Any]) -> bool:
        """Whether these inputs meet the conditions."""
        return (
            (not self._addresses or list(map(_address, self._read(args))) == self._addresses)
            and (not self._layouts[0] or self._have_layouts(self._varying(args)))
            and (not self._numbers or list(self._pick_numbers(args)) == self._numbers)
        )

    def _have_layouts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors have the layouts of the capture, by Dynamo's check of equal tensors if that says so.

        It takes a third of the time, and also looks at modes, and at whether two are one.
        """
        if self._alike is not None and self._alike(*tensors):
            return True
        if _layouts(tensors) != self._layouts:
            return False
        if self._tries:
            self._tries -= 1
            self._alike = alike(tensors)
        return True


def _picked(positions: Collection[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns the items at these positions."""
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
    """Whether anything besides regraft uses some tensors, or other tensors that share their memory.

    Created when there are no other users: all users of the memory at that time are regraft's own.

    Args:
        tensors: the tensors whose memory is checked.
        same: objects that are returned again and again, whose use does not show in their memory, each with the
            number of references that regraft holds.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], same: Iterable[tuple[torch.Tensor, int]] = ()) -> None:
        self.keys = [torch_memory.storage_key(x) for x in tensors]
        pairs = list(same)
        self._same = [x for x, _ in pairs]
        idle = [_COUNTED + 1 + times for _, times in pairs]  # `_same` holds them as well
        self._idle = [*torch_memory.storages_users(self.keys), *(1 for _ in pairs), *idle]

    def are_there(self) -> bool:
        """Whether anything does now."""
        if not self._idle:
            return False
        counts = list(
            chain(
                torch_memory.storages_users(self.keys),
                torch_memory.tensors_users(self._same),
                map(sys.getrefcount, self._same),
            )
        )
        return counts != self._idle and any(map(operator.gt, counts, self._idle))


_COUNTED = next(map(sys.getrefcount, [object()])) - 1  # references that Python adds while counting
