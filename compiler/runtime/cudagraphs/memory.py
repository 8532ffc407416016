"""Memory that captures read and write: layouts, copies, and which large results went from one graph to the program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from ....rewrites.compat.memory import storage_key

LARGE = 1 << 24  # bytes of a result that another graph had better read where it lies
GIVEN_OUT = 1 << 20  # bytes of a forward's result that is given out in the capture's memory, not copied
_REMEMBERED = 1024


class Given:
    """Large results that compiled graphs gave to the program, known as long as their memory is the same.

    A loss that is compiled apart from its model, say, reads the logits of that graph, and they come to lie at the same
    place in every step.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def note(self, value: Any) -> None:
        """Remember a result, if it is large."""
        if size_of(value) >= LARGE:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[storage_key(value)] = memory(value)

    def __contains__(self, value: Any) -> bool:
        """Whether a tensor lies in such a result."""
        return size_of(value) >= LARGE and self._known.get(storage_key(value)) == memory(value)


def layout(value: Any) -> Any:
    """The part of an input that a capture depends on: how a tensor lies, what a number is."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    return value


def memory(value: Any) -> int:
    """Where the memory behind a tensor begins; 0 of what has none."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def in_memory_of(holder: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A tensor like `x`, at the same place in the memory behind another."""
    made = torch.empty(0, dtype=x.dtype, device=holder.device)
    return made.set_(holder.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def within(results: Sequence[Any], keys: Collection[int]) -> frozenset[int]:
    """Where the memory begins that results look at, of that with these keys: see `storage_key`."""
    return frozenset(memory(x) for x in results if isinstance(x, torch.Tensor) and storage_key(x) in keys)


def lies_in(x: torch.Tensor, ranges: Sequence[range]) -> bool:
    """Whether any of the memory behind a tensor is among these addresses."""
    start = memory(x)
    end = start + size_of(x)
    return any(start < part.stop and part.start < end for part in ranges)


def size_of(value: Any) -> int:
    """Bytes behind a tensor; 0 of what has none."""
    return value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) else 0


def same_memory(x: torch.Tensor) -> torch.Tensor:
    """New memory of the same layout."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def flat(x: torch.Tensor) -> torch.Tensor:
    """All memory between a tensor's first and last element: no element of it is written twice."""
    if x.is_contiguous():
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((span,), (1,))
