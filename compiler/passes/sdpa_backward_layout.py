"""Gives the gradient that cuDNN's attention backward reads the same strides as the result of the forward.

    cudnn_attention_backward(grad, q, k, v, out, ...)   ->   cudnn_attention_backward(grad in out's strides, q, ...)

Torch caches cuDNN's plans by the sizes and strides of q, k and v alone (seen in 2.11). A plan that was made for a
gradient in one layout also runs on gradients in another layout, reads them in the wrong order, and raises no error. All
calls that regraft makes, including those that it measures, therefore use one layout.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, val
from ...rewrites.layout import restore_layout, same_layout
from ...rewrites.walk import visits_calls

aten = torch.ops.aten


@visits_calls(aten._scaled_dot_product_cudnn_attention_backward.default)
def lay_out_sdpa_gradients(editor: Editor, node: fx.Node) -> bool:
    """Give a call its gradient in the strides of its result."""
    gradient, out = node.args[0], node.args[4]
    if not is_tensor(gradient) or not is_tensor(out) or same_layout(val(gradient), val(out)):
        return False
    with editor.at(node):
        node.update_arg(0, restore_layout(editor.graph, gradient, val(out)))  # type: ignore[arg-type]
    return True
