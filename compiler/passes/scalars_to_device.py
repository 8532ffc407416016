"""Moves numbers that a program keeps as tensors on the CPU to the GPU whose calls read them.

    div(x, full([], 8.0, device=cpu))     x on a GPU     ->     div(x, full([], 8.0, device=cuda))

PyTorch treats a tensor without dims as a number in a call on another device. Once it is on the GPU, kernels know its
value, and the graph can be captured.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.facts import Uniform, facts_of_graph, is_known_exactly
from ...rewrites.graph import is_tensor, val
from ...rewrites.purity import mutable
from ...rewrites.walk import recompiles
from .host_scalars import takes_numbers

aten = torch.ops.aten


@recompiles
def move_scalars_to_device(graph_module: fx.GraphModule) -> int:
    """Move known numbers from the CPU to the device whose calls read them, in place; returns how many.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    read = [(node, x) for node in graph.nodes for x in dict.fromkeys(node.all_input_nodes) if _is_elsewhere(node, x)]
    if not read:
        return 0
    facts = facts_of_graph(graph, mutable(graph))
    editor, moved = Editor(graph), 0
    for node, scalar in read:
        fact = facts.get(scalar)
        if not isinstance(fact, Uniform) or not is_known_exactly(fact) or math.isnan(fact.number):
            continue
        with editor.at(node):
            new = editor.call(aten.full.default, [], fact.number, dtype=val(scalar).dtype, device=val(node).device)
        node.replace_input_with(scalar, new)
        moved += 1
        if not scalar.users:
            editor.erase_dead(scalar)
    return moved


def _is_elsewhere(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a call on an accelerator reads a number that is on the CPU."""
    if not is_tensor(node) or not is_tensor(operand) or not takes_numbers(node):
        return False
    scalar = val(operand)
    return scalar.device.type == "cpu" and scalar.dim() == 0 and val(node).device.type != "cpu"
