"""Programs that AOTAutograd compiles for known sizes only: compiled anew for each combination of sizes they meet.

    program(s, x[s])        called with 5 rows     ->     program(5, x[5]), compiled once, kept for such calls

Torch cannot trace what some tensor subclasses (those spread over processes, in training) make of symbolic sizes, which
Dynamo hands over from the second size on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat.memory import storage_key

_Program = Callable[..., Any]
_LIMIT = 8  # as many as Dynamo compiles of one frame by default


class BySizes:
    """A program of symbolic sizes as one compiled program for each combination of sizes.

    What else a compiled program relies on, Dynamo has guarded: how many dims there are, dtypes, devices, which tensors
    require gradients, which are one.

    Args:
        program: run as it is where there have been too many combinations, or tensors share their memory.
        compiled: gives what to call for inputs of sizes that are numbers.
    """

    def __init__(self, program: _Program, compiled: Callable[[Sequence[Any]], _Program]) -> None:
        self._program, self._compiled = program, compiled
        self._known: dict[tuple[Any, ...], _Program] = {}

    def __call__(self, *inputs: Any) -> Any:
        """The results of the program for these inputs."""
        return self._of(inputs)(*inputs)

    def _of(self, inputs: Sequence[Any]) -> _Program:
        sizes = tuple(map(_sizes, inputs))
        if sizes in self._known:
            return self._known[sizes]
        with compat.compile_lock():
            if len(self._known) == _LIMIT or _share_memory(inputs):
                return self._program
            if sizes not in self._known:
                with compat.tracing_apart():
                    self._known[sizes] = self._compiled(inputs)
        return self._known[sizes]


def with_known_sizes(inputs: Sequence[Any]) -> bool:
    """Whether all sizes are numbers already, or one never is."""
    if any(map(compat.has_ragged_size, inputs)):
        return True
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return not any(compat.has_symbols(x) if isinstance(x, torch.Tensor) else isinstance(x, symbols) for x in inputs)


def _sizes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        parts = compat.parts_of(value)
        if parts:
            return tuple(value.shape), value.stride(), *map(_sizes, parts)
        return tuple(value.shape), value.stride(), value.storage_offset()
    return (type(value), value) if isinstance(value, (int, float)) else None


def _share_memory(inputs: Sequence[Any]) -> bool:
    """Whether two tensors lie in the same memory: what was compiled for some offsets is not right for others."""
    tensors = [part for x in inputs if isinstance(x, torch.Tensor) for part in compat.parts_of(x) or (x,)]
    places = [storage_key(x) for x in tensors]
    return len(set(places)) < len(places)
