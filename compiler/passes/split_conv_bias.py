"""Computes the biases of convolutions on a GPU in calls of their own, which generated kernels can fuse.

convolution(x, w, bias)                           ->  add(convolution(x, w), bias)
convolution_backward(g, x, w, ..., [_, _, True])  ->  convolution_backward(g, x, w, ..., [_, _, False]), sum(g)
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank, val
from ...rewrites.walk import replaces_calls, visits_calls
from .conv_as_mm import are_rows

aten = torch.ops.aten

_GPUS = ("cuda",)
_BIAS = 2  # index of the bias gradient among the results


@replaces_calls(aten.convolution.default, same_strides=True)
def split_conv_biases(editor: Editor, node: fx.Node, devices: Collection[str] = _GPUS) -> fx.Node | None:
    """Add the bias of a convolution in a separate call."""
    x, weight, bias, *geometry = node.args
    if bias is None or val(node).device.type not in devices or not dtype(node).is_floating_point:
        return None
    if arguments(node)["groups"] != 1 and not are_rows(x):  # type: ignore[arg-type]
        return None  # ATen's kernel for depthwise convolutions adds the bias itself
    bare = editor.call(aten.convolution.default, x, weight, None, *geometry)
    per_channel = editor.call(aten.view.default, bias, [-1] + [1] * (rank(node) - 2))
    return editor.call(aten.add.Tensor, bare, per_channel)


@visits_calls(aten.convolution_backward.default)
def sum_conv_bias_gradients(editor: Editor, node: fx.Node, devices: Collection[str] = _GPUS) -> bool:
    """Compute the gradient of a bias as a sum, which fuses with earlier kernels.

    ATen computes the same sum, with the same single rounding.
    """
    above = node.args[0]
    wanted = arguments(node)["output_mask"]
    if not wanted[_BIAS] or val(above).device.type not in devices or not dtype(above).is_floating_point:
        return False
    gradients = [user for user in node.users if op_name(user) == "getitem" and user.args[1] == _BIAS]
    if any(dtype(gradient) != dtype(above) for gradient in gradients):
        return False
    for gradient in gradients:
        with editor.at(node):
            total = editor.call(aten.sum.dim_IntList, above, [0, *range(2, rank(above))])
        editor.replace(gradient, total)
    for user in list(node.users):
        editor.erase_dead(user)
    if not compat.is_erased(node):
        node.args, node.kwargs = (*list(arguments(node).values())[:-1], [*wanted[:_BIAS], False]), {}
        node.meta["val"] = (*node.meta["val"][:_BIAS], None)
    return True
