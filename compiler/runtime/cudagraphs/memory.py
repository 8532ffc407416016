"""Memory that captures read and write: layouts, copies, and large results that the program passes between graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ....rewrites.compat.memory import storage_key

LARGE = 1 << 24  # fewest bytes of a result that another graph should read in place
CHAINED = 1 << 18  # the same, of a result that a capture writes at the same place in each step
GIVEN_OUT = 1 << 20  # fewest bytes of a forward's result that is returned in the capture's memory, without a copy
_REMEMBERED = 1024


class Given:
    """Results that compiled graphs returned to the program and that other graphs may read where they lie.

    For example, a loss that is compiled separately from its model reads the logits of the model's graph, which are at
    the same address in every step; and a layer reads what the layer before a graph break wrote.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._captured: Counter[int] = Counter()
        self._passing: dict[int, int] = {}

    def hold(self, addresses: Sequence[int]) -> None:
        """Remember where a capture writes results that the program is given."""
        self._captured.update(addresses)

    def release(self, addresses: Sequence[int]) -> None:
        """Forget them: the capture is gone."""
        self._captured.subtract(addresses)
        for address in addresses:
            if self._captured[address] <= 0:
                del self._captured[address]

    def is_captured(self, value: Any) -> bool:
        """Whether a tensor is in the memory of a result that a capture writes there in each step."""
        return size_of(value) >= CHAINED and memory(value) in self._captured

    def pass_on(self, results: Sequence[Any]) -> None:
        """Remember results of a graph that ran as it is, and will perhaps be captured when it runs again."""
        for result in results:
            size = size_of(result)
            if size >= CHAINED:
                _remember(self._passing, result)
            if size >= LARGE:
                _remember(self._known, result)

    def is_passing(self, value: Any) -> bool:
        """Whether a tensor is in the memory of such a result."""
        return size_of(value) >= CHAINED and self._passing.get(storage_key(value)) == memory(value)

    def note(self, value: Any) -> None:
        """Remember a result if it is large."""
        if size_of(value) >= LARGE:
            _remember(self._known, value)

    def __contains__(self, value: Any) -> bool:
        """Whether a tensor is in the memory of such a result."""
        return size_of(value) >= LARGE and self._known.get(storage_key(value)) == memory(value)


def _remember(known: dict[int, int], value: Any) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[storage_key(value)] = memory(value)


def layout(value: Any) -> Any:
    """The properties of an input on which a capture depends: the layout of a tensor, the value of a number."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    return value


def memory(value: Any) -> int:
    """The address of a tensor's storage; 0 if it has none."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def in_memory_of(holder: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A tensor like `x`, at the same offset in another storage."""
    made = torch.empty(0, dtype=x.dtype, device=holder.device)
    return made.set_(holder.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def within(results: Sequence[Any], keys: Collection[int]) -> frozenset[int]:
    """The addresses of storages with these keys that results view: see `storage_key`."""
    return frozenset(memory(x) for x in results if isinstance(x, torch.Tensor) and storage_key(x) in keys)


def lies_in(x: torch.Tensor, ranges: Sequence[range]) -> bool:
    """Whether a storage of the tensor is at one of these addresses."""
    start = memory(x)
    end = start + size_of(x)
    return any(start < part.stop and part.start < end for part in ranges)


def size_of(value: Any) -> int:
    """The bytes of a tensor's storage; 0 if it has none."""
    return value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) else 0


def same_memory(x: torch.Tensor) -> torch.Tensor:
    """New memory with the same layout."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def flat(x: torch.Tensor) -> torch.Tensor:
    """All memory between a tensor's first and last element, so that no element is written twice."""
    return x if x.is_contiguous() else x.as_strided((span(x),), (1,))


def span(x: torch.Tensor) -> int:
    """The elements between a tensor's first and last one, with both."""
    return 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
