"""Weights may change after they were frozen, by a training step or `load_state_dict`: constants then follow.

    call(args)  ->  any weight with other memory, or written to since?  ->  compute the constants anew, in place
                ->  run

Seen are writes that torch counts (`Tensor._version`) and new tensors in place of old ones. Writes through ``.data`` or
a NumPy view are counted by nobody; after such, `torch.compiler.reset()` compiles anew.
"""

from __future__ import annotations

from typing import Any

import torch

from ...rewrites import compat
from ..runtime.calls import Boxed
from .fold import Folded


class WeightGuard:
    """Keeps the constants of one graph true to its weights.

    Attributes:
        refolded: how often weights had changed.
    """

    def __init__(self, folded: Folded) -> None:
        self.refolded = 0
        self._folded = folded
        self._note(folded.weights)

    def _note(self, weights: list[torch.Tensor]) -> None:
        # Aliases share the counter of writes, and keep the memory from being given to another tensor.
        with compat.plain_eager():
            aliases = [weight.detach() for weight in weights]
        self._seen = [
            (position, alias, compat.writes_to(alias), alias.data_ptr())
            for position, alias in zip(self._folded.positions, aliases, strict=True)
        ]

    def check(self, args: list[Any]) -> None:
        """Compute the constants anew if one of the weights among `args` is not what it was."""
        for position, alias, writes, address in self._seen:
            if args[position].data_ptr() != address or compat.writes_to(alias) != writes:
                self._refold([args[position] for position in self._folded.positions])
                return

    def _refold(self, weights: list[torch.Tensor]) -> None:
        self.refolded += 1
        current = self._folded.constants.values()
        # A program that another thread captures is recorded by modes of all threads, which are suspended here.
        with compat.compile_lock(), compat.plain_eager(), torch.no_grad():
            for constant, value in zip(current, self._folded.compute(weights), strict=True):
                constant.copy_(value)
        self._note(weights)


def guarded(call: Boxed, guard: WeightGuard) -> Boxed:
    """`call`, its constants checked before each run."""

    def run(args: list[Any]) -> Any:
        guard.check(args)
        return call(args)

    compat.mark_boxed(run)
    return run
