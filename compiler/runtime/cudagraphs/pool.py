"""Memory that captures share, and the times at which each may write it.

forward      saves a, b         their memory is kept alive; the backward receives tensors that only view it
backward     reads a            a's memory is released: later parts of the backward may overwrite it
             reads b            b's memory likewise
forward      replayed           writes a and b again: must wait until no gradient in this memory is alive
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from .memory import in_memory_of, memory


class Lender(Protocol):
    """A capture that returns results in the memory of a pool."""

    def is_held(self) -> bool:
        """Whether the program holds such a result."""


class MemoryPool:
    """Memory that captures share; each of them keeps it alive.

    Torch frees a pool when its last graph dies, and rejects its handle from then on: the next capture needs a new one.

    Args:
        handle: torch's handle of the pool.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.spent = False
        self._kept: dict[int, torch.Tensor] = {}
        self._lenders: list[weakref.ref[Lender]] = []

    def keep(self, results: Iterable[torch.Tensor]) -> None:
        """Keep the memory of a forward's results until a backward takes it."""
        self._kept.update((memory(x), x) for x in results)

    def take(self, args: Sequence[Any]) -> list[Any]:
        """The inputs of a backward, each owning its memory if it was kept here.

        They are the last owners, so that the backward's capture can overwrite inputs after reading them. From then on
        it is not known which memory is free at which time, so that nothing else may be captured here.
        """
        self.spent = True
        taken = [_owner(x, self._kept.get(memory(x))) if isinstance(x, torch.Tensor) else x for x in args]
        for x in args:
            self._kept.pop(memory(x), None)
        return taken

    def lends(self, capture: Lender) -> None:
        """Note that a capture returns results in this memory."""
        self._lenders.append(weakref.ref(capture))

    def is_lent(self) -> bool:
        """Whether a gradient in this memory is alive."""
        for reference in self._lenders:
            capture = reference()
            if capture is not None and capture.is_held():
                return True
        return False


def _owner(x: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """`x` as a tensor that owns the memory that was kept."""
    return x if kept is None else in_memory_of(kept, x)
