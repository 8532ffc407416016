"""The GPU that a kernel runs on, as far as its source depends on it."""

from __future__ import annotations

import torch

from ...gpu import gpu_at
from ...ir.kernel import Kernel


def capability(device: int) -> int:
    """The capability of a GPU: 90 for Hopper."""
    return gpu_at(device).capability


def processors(device: int) -> int:
    """The number of multiprocessors of a GPU."""
    return gpu_at(device).processors


def index_of(kernel: Kernel) -> int:
    """The GPU of a kernel."""
    device = next(p.buffer.device for p in kernel.params if not p.buffer.scalar)
    return torch.cuda.current_device() if device.index is None else device.index
