"""The GPU for which kernels are generated, and its limits."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import fx

from ...codegen.triton import can_build
from ...codegen.triton.device import capability, processors
from ...options.fields import Tma


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that limit tiles.

    Args:
        capability: 90 for Hopper, 80 and 86 for Ampere.
        shared_bytes: shared memory of one program (``shared_memory_per_block_optin``).
        processors: the number of multiprocessors, each of which runs at least one program.
        tma: whether the tensor memory accelerator copies tiles: as candidates beside others (``"measured"``),
            wherever operands allow it (``"always"``), or not at all (``"never"``). On GPUs without it, Triton
            replaces these copies by loads, and only ``"always"`` uses them.
    """

    capability: int
    shared_bytes: int
    processors: int
    tma: Tma = "measured"

    @property
    def copies_tiles(self) -> bool:
        """Whether kernels may use the tensor memory accelerator."""
        return self.tma != "never" and (self.capability >= 90 or self.tma == "always")


HOPPER, AMPERE, SMALLER = Gpu(90, 227 << 10, 132), Gpu(80, 163 << 10, 108), Gpu(86, 99 << 10, 84)


def device_of(graph: fx.Graph) -> tuple[int, Gpu] | None:
    """The only GPU of a graph, with its index; None if there is no GPU, several, or one without support."""
    if not can_build() or torch.version.hip is not None:
        return None
    values = [node.meta.get("val") for node in graph.nodes]
    devices = {x.device for x in values if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if len(devices) != 1:
        return None
    index = next(iter(devices)).index
    index = torch.cuda.current_device() if index is None else index
    return (index, _gpu(index)) if _gpu(index).capability >= 80 else None


@functools.cache
def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    shared = getattr(properties, "shared_memory_per_block_optin", 48 << 10)  # torch has no type for it
    return Gpu(capability(index), shared, processors(index))
