"""Gives the gradient that cuDNN's attention backward reads the same strides as the result of the forward.

    cudnn_attention_backward(grad, q, k, v, out, ...)   ->   cudnn_attention_backward(grad in out's strides, q, ...)

Torch caches cuDNN's plans by the sizes and strides of q, k and v alone (seen in 2.11). A plan that was made for a
gradient in one layout also runs on gradients in another layout, reads them in the wrong order, and raises no error. All
calls that regraft makes, including those that it measures, therefore use one layout.
"""

from __future__ import annotations

from torch import fx

from ...rewrites.graph import is_tensor, op_name, val
from ...rewrites.layout import restore_layout, same_layout

_BACKWARD = "aten._scaled_dot_product_cudnn_attention_backward"


def lay_out_sdpa_gradients(graph_module: fx.GraphModule) -> int:
    """Give each such call its gradient in the strides of its result, in place; returns the number of copies."""
    graph, copied = graph_module.graph, 0
    for node in graph.nodes:
        if op_name(node) != _BACKWARD or not all(is_tensor(node.args[k]) for k in (0, 4)):
            continue
        gradient, out = node.args[0], node.args[4]
        if same_layout(val(gradient), val(out)):
            continue
        with graph.inserting_before(node):
            node.update_arg(0, restore_layout(graph, gradient, val(out)))  # type: ignore[arg-type]
        copied += 1
    if copied:
        graph_module.recompile()
    return copied
