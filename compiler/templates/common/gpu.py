"""The GPU of a graph."""

from __future__ import annotations

import torch
from torch import fx

from ...codegen.triton import can_build
from ...gpu import Gpu, gpu_at


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
    gpu = gpu_at(index)
    return (index, gpu) if gpu.capability >= 80 else None
