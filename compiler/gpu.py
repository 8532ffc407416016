"""The GPU for which kernels are generated: the one description that schedules, plans, tiles and estimates read."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from .options.fields import Tma

_STACKED = 10  # bytes in a cycle of the highest clock, from which on memory is stacked on the chip
_STACKED_BYTES = 16.0  # bytes in a cycle that kernels then reach, for each multiprocessor


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU.

    Args:
        capability: 90 for Hopper, 80, 86 and 89 for Ampere and Ada.
        shared_bytes: shared memory of one program (``shared_memory_per_block_optin``).
        processors: the number of multiprocessors, each of which runs at least one program.
        tma: whether the tensor memory accelerator copies tiles: as candidates beside others (``"measured"``),
            wherever operands allow it (``"always"``), or not at all (``"never"``). On GPUs without it, Triton
            replaces these copies by loads, and only ``"always"`` uses them.
        bytes_per_cycle: bytes that memory moves in a cycle, for each multiprocessor.
    """

    capability: int
    shared_bytes: int
    processors: int
    tma: Tma = "measured"
    bytes_per_cycle: float = _STACKED_BYTES

    @property
    def copies_tiles(self) -> bool:
        """Whether kernels may use the tensor memory accelerator."""
        return self.tma != "never" and (self.capability >= 90 or self.tma == "always")


# Published properties, for choices without a GPU.
H100 = HOPPER = Gpu(90, 227 << 10, 132)
A100 = AMPERE = Gpu(80, 163 << 10, 108)
A6000 = SMALLER = Gpu(86, 99 << 10, 84, bytes_per_cycle=5.1)
L4 = Gpu(89, 99 << 10, 58, bytes_per_cycle=2.5)


@functools.cache
def gpu_at(index: int) -> Gpu:
    """The GPU of this index, as the driver describes it."""
    found = torch.cuda.get_device_properties(index)
    shared = getattr(found, "shared_memory_per_block_optin", 48 << 10)  # torch has no type for it
    moved = _bytes_per_cycle(found)
    return Gpu(10 * found.major + found.minor, shared, found.multi_processor_count, bytes_per_cycle=moved)


def _bytes_per_cycle(found: Any) -> float:
    """Bytes that memory moves in a cycle, for each multiprocessor: of both edges of its clock."""
    clocks = getattr(found, "memory_clock_rate", 0), getattr(found, "clock_rate", 0)
    if not all(clocks):
        return _STACKED_BYTES
    exact = 2 * clocks[0] * found.memory_bus_width / 8 / (clocks[1] * found.multi_processor_count)
    return _STACKED_BYTES if exact >= _STACKED else exact


__all__ = ["A100", "A6000", "AMPERE", "H100", "HOPPER", "L4", "SMALLER", "Gpu", "gpu_at"]
