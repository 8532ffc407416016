"""Computes convolutions over one dim on a GPU as those of images of one row, which may lie with channels last.

    convolution(x, w)              ->  view(convolution(unsqueeze(x, 2), unsqueeze(w, 2)), [b, c, n])
    convolution_backward(g, x, w)  ->  the same of views

Libraries view lines as images of one row anyway, but copy them first: channels apart is the only layout that they take
lines in. As images, they stay as they lie where channels are last (hidden states of shape [batch, steps, channels] are
transposed before a convolution along steps), and the passes and templates for images apply.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, val
from ...rewrites.layout import adapt_users, same_layout
from ...rewrites.walk import recompiles
from .conv_layout_cost import fills_tensor_cores

aten = torch.ops.aten

_GPUS = ("cuda",)
_CALLS = ("aten.convolution", "aten.convolution_backward")
_LINES = ("grad_output", "input", "weight")
_ROWS = 2  # the dim that lines lack
_HALF = 2  # bytes
# Arguments for the added dim of one row, beside those of the line's own dim.
_NEUTRAL = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


@recompiles
def lines_as_images(graph_module: fx.GraphModule, devices: Collection[str] = _GPUS, keep_stream: bool = False) -> int:
    """Give lines a dim of one row where convolutions and their gradients read them, in place; returns the number.

    Results may lie with channels last then; outputs keep their strides. With `keep_stream`, random numbers must be the
    same as eager's.
    """
    graph = graph_module.graph
    editor = Editor(graph)
    images: dict[fx.Node, fx.Node] = {}
    found = [node for node in graph.nodes if op_name(node) in _CALLS and _reads_lines(node, devices)]
    for node in found:
        laid_out_anew = _replaced(editor, node, images)
        adapt_users(graph, laid_out_anew, keep_stream=keep_stream)
    return len(found)


def _reads_lines(node: fx.Node, devices: Collection[str]) -> bool:
    values = arguments(node)
    lines = values["input"], values["weight"]
    if not all(is_tensor(n) and rank(n) == 3 for n in lines) or val(values["input"]).device.type not in devices:
        return False
    # Of few channels in single precision, libraries have no good gradients where channels are last.
    return dtype(values["input"]).itemsize == _HALF or fills_tensor_cores(node)


def _replaced(editor: Editor, node: fx.Node, images: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """Put the call on images in place of that on lines; returns the results whose strides are others now."""
    values = arguments(node)
    with editor.at(node):
        for name in _LINES:
            if name in values:
                values[name] = _image(editor, values[name], images)
        for name, neutral in _NEUTRAL.items():
            values[name] = [neutral, *values[name]]
        call = editor.call(node.target, *values.values())
        parts = _parts(editor, node, call)
    for old, new in parts:
        editor.replace(old, new)
        if not same_layout(val(old), val(new)):
            new.meta["regraft_layout"] = val(old)
    for old, _ in parts:
        editor.erase_dead(old)
    return [new for _, new in parts if "regraft_layout" in new.meta]


def _image(editor: Editor, line: fx.Node, images: dict[fx.Node, fx.Node]) -> fx.Node:
    """A line as an image, the same one for a convolution and its gradients."""
    if line not in images:
        images[line] = editor.call(aten.unsqueeze.default, line, _ROWS)
    return images[line]


def _parts(editor: Editor, node: fx.Node, call: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Each value that the call on lines gives, with the same one of the call on images."""
    if is_tensor(node):
        return [(node, _line(editor, node, call))]
    parts = [(user, editor.call(user.target, call, user.args[1])) for user in node.users]
    return [(old, _line(editor, old, part) if is_tensor(part) and rank(part) == 4 else part) for old, part in parts]


def _line(editor: Editor, line: fx.Node, image: fx.Node) -> fx.Node:
    """An image as the line that it was: a view gives dims of one entry the strides that they have in eager."""
    return editor.call(aten.view.default, image, list(val(line).shape))
