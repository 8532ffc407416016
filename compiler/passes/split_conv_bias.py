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
from ...rewrites.layout import same_layout
from ...rewrites.sizes import SizeTable
from .conv_as_mm import are_rows

aten = torch.ops.aten

_GPUS = ("cuda",)
_BIAS = 2  # index of the bias gradient among the results


def split_conv_biases(graph_module: fx.GraphModule, devices: Collection[str] = _GPUS) -> int:
    """Add the biases of convolutions in separate calls, in place; returns the number of convolutions."""
    graph, split = graph_module.graph, 0
    editor = Editor(graph, SizeTable(graph))
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        x, weight, bias, *geometry = node.args
        if bias is None or val(node).device.type not in devices or not dtype(node).is_floating_point:
            continue
        if arguments(node)["groups"] != 1 and not are_rows(
            x
        ):  # ATen's kernel for depthwise convolutions adds the bias itself
            continue
        with editor.at(node):
            bare = editor.call(aten.convolution.default, x, weight, None, *geometry)
            per_channel = editor.call(aten.view.default, bias, [-1] + [1] * (rank(node) - 2))
            whole = editor.call(aten.add.Tensor, bare, per_channel)
        if same_layout(val(whole), val(node)):
            editor.replace(node, whole)
            split += 1
        editor.erase_dead(node if not node.users else whole)
    graph_module.recompile()
    return split


def sum_conv_bias_gradients(graph_module: fx.GraphModule, devices: Collection[str] = _GPUS) -> int:
    """Compute the gradients of biases as sums, which fuse with earlier kernels, in place; returns their number.

    ATen computes the same sums, with the same single rounding.
    """
    graph, made = graph_module.graph, 0
    editor = Editor(graph, SizeTable(graph))
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        above = node.args[0]
        wanted = arguments(node)["output_mask"]
        if not wanted[_BIAS] or val(above).device.type not in devices or not dtype(above).is_floating_point:
            continue
        gradients = [user for user in node.users if op_name(user) == "getitem" and user.args[1] == _BIAS]
        if any(dtype(gradient) != dtype(above) for gradient in gradients):
            continue
        for gradient in gradients:
            with editor.at(node):
                total = editor.call(aten.sum.dim_IntList, above, [0, *range(2, rank(above))])
            editor.replace(gradient, total)
        for user in list(node.users):
            editor.erase_dead(user)
        if not compat.is_erased(node):
            node.args, node.kwargs = (*list(arguments(node).values())[:-1], [*wanted[:_BIAS], False]), {}
            node.meta["val"] = (*node.meta["val"][:_BIAS], None)
        made += 1
    graph_module.recompile()
    return made
