"""Keeps what a forward copies from the CPU to a GPU for the backward, which would copy it again.

    y = x * to_copy(mask, device=cuda)         forward keeps mask, on the CPU      ->     to_copy(mask), on the GPU
    dx = dy * to_copy(mask, device=cuda)       ->     dx = dy * what was kept

A copy looks cheap where autograd's partition counts bytes. It makes the CPU wait for all that the GPU has to do, and
belongs to no CUDA graph. The pass runs on the joint graph, before it is split.
"""

from __future__ import annotations

import torch
from torch import fx

from ..autograd.joint_graph import backward_nodes, mark_recomputed
from .tables_to_device import brings

aten = torch.ops.aten


def save_copies(graph_module: fx.GraphModule) -> int:
    """Mark copies from the CPU to a GPU that the backward is to keep, in place; returns their number.

    Args:
        graph_module: a joint graph of forward and backward.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    copies = graph.find_nodes(op="call_function", target=aten._to_copy.default)
    found = [node for node in copies if node not in backward and "recompute" not in node.meta and brings(node)]
    for node in found:
        mark_recomputed(node, False)
    return len(found)
