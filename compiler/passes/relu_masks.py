"""Keeps a ReLU's mask for the backward instead of its result, where the backward reads the result for nothing else.

    y = relu(x)                           forward keeps y, 2 or 4 bytes an element   ->   mask = y <= 0, 1 byte
    dx = threshold_backward(dy, y, 0)     ->     dx = where(mask, 0, dy)

A result that another part of the backward reads, such as the gradient of a weight, is kept for that anyway. The pass
runs on the joint graph, before it is split.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import op_name
from ...rewrites.moves import ALIASES
from ...rewrites.walk import recompiles
from ..autograd.joint_graph import backward_nodes, readers

aten = torch.ops.aten

_BACKWARD = aten.threshold_backward.default


@recompiles
def keep_relu_masks(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph read masks, in place; returns the number of ReLUs.

    Left alone are results of the graph, and nodes that the user checkpoints.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    editor = Editor(graph)
    calls = graph.find_nodes(op="call_function", target=_BACKWARD)
    found = [(node, result) for node in calls if _is_read_alone(result := _named(node.args[1]), backward)]
    for node, result in found:
        gradient, _, threshold = node.args
        with editor.at(node):
            mask = editor.call(aten.le.Scalar, result, threshold)
            made = editor.call(aten.where.ScalarSelf, mask, 0.0, gradient)
        made.meta["val"] = node.meta["val"]  # the recorded layout
        editor.replace(node, made)
        editor.erase_dead(node)
    return len(found)


def _named(value: fx.Node) -> fx.Node:
    """The value that an alias has another name for."""
    while op_name(value) in ALIASES:
        value = value.args[0]  # type: ignore[assignment]
    return value


def _is_read_alone(result: fx.Node, backward: set[fx.Node]) -> bool:
    """Whether only the backwards of ReLUs read a value of the forward in the backward, through no view either."""
    if result in backward or result.op != "call_function" or "recompute" in result.meta:
        return False
    for user, views in readers(result):
        read = views[-1] if views else result
        if user.op == "output" or (user in backward and (user.target is not _BACKWARD or user.args[1] is not read)):
            return False
    return True
