"""Whether a node's value exists before the graph runs, or a kernel of the graph writes it."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import fx

from .formula import COPIES, NUMBERS, is_move, packet


def root_of(node: fx.Node, through: Container[str] = ()) -> fx.Node:
    """The node of which a node is a view; operators in `through` may copy as well."""
    while is_move(node) and (packet(node) not in COPIES or packet(node) in through):
        node = node.all_input_nodes[0]
    return node


def is_written_by_kernel(node: fx.Node) -> bool:
    """Whether a kernel of the graph must write a node before it can be read."""
    root = root_of(node)
    val = root.meta.get("val")
    is_tensor = isinstance(val, torch.Tensor) and val.device.type == "cuda" and val.numel() > 0
    is_made = packet(root) in NUMBERS or packet(root).startswith("aten.empty")  # possibly without a kernel
    return root.op == "call_function" and is_tensor and not is_made
