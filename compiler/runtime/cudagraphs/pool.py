"""Memory that captures share, and who may write it when.

forward      keeps a, b         their memory is held; the backward is given tensors that only look at it
backward     reads a            a's memory is let go:    what follows in the backward may be written over it
             reads b            b's too
forward      replayed           writes a and b again: must wait until no gradient that lies there is alive
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .memory import in_memory_of, memory

if TYPE_CHECKING:
    from .capture import Capture


class Pool:
    """Memory that captures share, held by each of them.

    Torch frees a pool when the last graph of it dies, and refuses its handle from then on: the next needs a new one.

    Args:
        handle: torch's name for it.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.spent = False
        self._kept: dict[int, torch.Tensor] = {}
        self._lenders: list[weakref.ref[Capture]] = []

    def keep(self, results: Iterable[torch.Tensor]) -> None:
        """Hold the memory of a forward's results, until a backward takes it."""
        self._kept.update((memory(x), x) for x in results)

    def take(self, args: Sequence[Any]) -> list[Any]:
        """Inputs of a backward, each the owner of its memory where that was kept here.

        They are the last to hold it, so that the backward's capture can write over what it has read. From then on it is
        not known which memory is free at which time: nothing else may be captured here.
        """
        self.spent = True
        taken = [_owner(x, self._kept.get(memory(x))) if isinstance(x, torch.Tensor) else x for x in args]
        for x in args:
            self._kept.pop(memory(x), None)
        return taken

    def lends(self, capture: Capture) -> None:
        """A capture gives out results that lie here."""
        self._lenders.append(weakref.ref(capture))

    def is_lent(self) -> bool:
        """Whether a gradient that lies here is alive."""
        return any(capture.is_held() for ref in self._lenders if (capture := ref()) is not None)


def _owner(x: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """`x` as a tensor in the memory that was kept."""
    return x if kept is None else in_memory_of(kept, x)
