"""The GPU that a kernel runs on, as far as its source depends on it."""

from __future__ import annotations

import functools

import torch

from ...ir.kernel import Kernel
from ...schedule.target import HOPPER


@functools.cache
def capability(device: int) -> int:
    """Of a GPU: 90 for Hopper."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def processors(device: int) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def index_of(kernel: Kernel) -> int:
    """The GPU of a kernel."""
    device = next(p.buffer.device for p in kernel.params if not p.buffer.scalar)
    return torch.cuda.current_device() if device.index is None else device.index


def processors_of(kernel: Kernel) -> int:
    """Multiprocessors of a kernel's GPU; those of Hopper where there is none, as for sources to read."""
    return processors(index_of(kernel)) if torch.cuda.is_available() else HOPPER
