"""Gives a backward its gradients as it was traced: conjugated where they are read.

    y = complex(x, x).conj(); y.backward(g)     g  ->  _conj(clone(_conj(g)))

A result of `conj` only says that its numbers are to be conjugated where they are read. AOTAutograd takes for granted
that its gradient does, too, and that the gradient's conjugate is a plain tensor, which `view_as_real` can read. The
gradients that a program is given are plain tensors.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.graph import val
from ...rewrites.walk import recompiles

aten = torch.ops.aten


@recompiles
def conjugate_gradients(graph_module: fx.GraphModule) -> int:
    """Give gradients of lazily conjugated results the same form; returns their number.

    Args:
        graph_module: the joint graph, changed in place.
    """
    changed = 0
    for node in graph_module.graph.find_nodes(op="placeholder"):
        value = val(node)
        if not isinstance(value, torch.Tensor) or "tangents" not in str(node.target):
            continue
        if value.is_conj():
            _conjugate(node)
            changed += 1
    return changed


def _conjugate(gradient: fx.Node) -> None:
    """Read a gradient through a copy: of its conjugate as a plain tensor, which is then conjugated where it is read."""
    graph, node = gradient.graph, gradient
    made = []
    for target in (aten._conj.default, aten.clone.default, aten._conj.default):
        with graph.inserting_after(node):
            value = target(val(node))
            node = graph.call_function(target, (node,))
            node.meta["val"] = value
            made.append(node)
    gradient.replace_all_uses_with(node, delete_user_cb=lambda user: user is not made[0])
