"""Computes gradients of grouped convolutions on a GPU by programs that compute all groups at once.

    convolution_backward(g, x, w)[0]   ->   convolution(g, w turned around, padding d * (k - 1) - p)      stride 1
    convolution_backward(g, x, w)[1]   ->   bmm(rows(g).T, rows(x)), one matrix a group                   a window of 1
    convolution_backward(g, x, w)      ->   two calls, one for each gradient                             single channels

Libraries compute the gradients of one group after the other, and that of the input of single channels at half the speed
of the convolution. The gradient of an input is a convolution again, for which there is a template if channels are last;
the gradient of a weight that looks at one pixel is a product of matrices. There is a template for the gradient of a
weight of single channels, which a call of its own computes.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from math import prod
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank, shape, val
from ...rewrites.walk import put_adapted, visits_calls
from .conv_layout_cost import FEWEST
from .layout_ends import has_channels_last

aten = torch.ops.aten

_GPUS = ("cuda",)
_HALVES, _SINGLE = (torch.float16, torch.bfloat16), (torch.float32,)
_INPUT, _WEIGHT = 0, 1  # indices of the gradients among the results
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@visits_calls(aten.convolution_backward.default)
def compute_grouped_conv_gradients(
    editor: Editor, node: fx.Node, devices: Collection[str] = _GPUS, keep_stream: bool = False
) -> int:
    """Replace gradients of a grouped convolution.

    Gradients may lie with channels last then; outputs keep their strides. With `keep_stream`, random numbers must be
    the same as eager's.
    """
    if val(node.args[0]).device.type not in devices or not _is_grouped(node):
        return 0
    made = 0
    for index, fits, computed in (
        (_INPUT, _has_convolution, _gradient_of_input),
        (_WEIGHT, _has_product, _gradient_of_weight),
        (_WEIGHT, _is_beside_another, _weight_alone),
    ):
        values = {} if compat.is_erased(node) else arguments(node)
        if values and values["output_mask"][index] and fits(values):
            _replace(editor, node, index, computed, keep_stream)
            made += 1
    return made


def _is_grouped(node: fx.Node) -> bool:
    """Whether groups are single channels or have enough for tensor cores, and channels are last."""
    values = arguments(node)
    operands = [values[name] for name in ("grad_output", "input", "weight")]
    sizes = [size for n in operands for size in shape(n)]
    if values["transposed"] or values["groups"] == 1 or not all(isinstance(size, int) and size for size in sizes):
        return False
    single = _of_single_channels(values)
    if any(dtype(n) not in _HALVES + _SINGLE * single or rank(n) not in _FORMATS for n in operands):
        return False
    if not all(map(has_channels_last, operands[:2])):
        return False
    return single or min(shape(n)[1] for n in operands[:2]) >= values["groups"] * FEWEST


def _of_single_channels(values: dict[str, Any]) -> bool:
    """Whether each channel of the result is computed from one of the image, and no other is."""
    outputs, inputs, *_ = shape(values["weight"])
    return bool(inputs == 1 and outputs == values["groups"])


def _paddings(values: dict[str, Any]) -> list[int]:
    """The paddings of the convolution that computes the gradient of the input."""
    window = shape(values["weight"])[2:]
    each = zip(values["dilation"], window, values["padding"], strict=True)
    return [dilation * (size - 1) - padding for dilation, size, padding in each]


def _has_convolution(values: dict[str, Any]) -> bool:
    """A window may be padded by no more than reaches beyond its own size."""
    return set(values["stride"]) == {1} and min(_paddings(values)) >= 0


def _has_product(values: dict[str, Any]) -> bool:
    """In float16, a library may add up parts of a long sum in 16 bits, which overflow."""
    if dtype(values["input"]) == torch.float16 or _of_single_channels(values):
        return False
    return set(values["stride"]) == {1} and prod(shape(values["weight"])[2:]) == 1 and not any(values["padding"])


def _is_beside_another(values: dict[str, Any]) -> bool:
    """Whether the call computes another gradient of single channels as well."""
    return _of_single_channels(values) and bool(values["output_mask"][_INPUT])


def _gradient_of_input(editor: Editor, values: dict[str, Any]) -> fx.Node:
    weight, groups, space = values["weight"], values["groups"], rank(values["weight"]) - 2
    outputs, inputs, *window = shape(weight)
    apart = editor.call(aten.view.default, weight, [groups, outputs // groups, inputs, *window])
    turned = editor.call(aten.transpose.int, apart, 1, 2)
    joined = editor.call(aten.reshape.default, turned, [groups * inputs, outputs // groups, *window])
    flipped = editor.call(aten.flip.default, joined, list(range(2, space + 2)))
    laid_out = editor.call(aten.clone.default, flipped, memory_format=_FORMATS[space + 2])
    geometry = [1] * space, _paddings(values), values["dilation"], False, [0] * space, groups
    return editor.call(aten.convolution.default, values["grad_output"], laid_out, None, *geometry)


def _gradient_of_weight(editor: Editor, values: dict[str, Any]) -> fx.Node:
    groups = values["groups"]
    above, below = (_rows(editor, values[name], groups) for name in ("grad_output", "input"))
    product = editor.call(aten.bmm.default, editor.call(aten.transpose.int, above, 1, 2), below)
    return editor.call(aten.view.default, product, shape(values["weight"]))


def _weight_alone(editor: Editor, values: dict[str, Any]) -> fx.Node:
    call = editor.call(aten.convolution_backward.default, *list(values.values())[:-1], [False, True, False])
    return editor.call(operator.getitem, call, _WEIGHT)


def _rows(editor: Editor, image: fx.Node, groups: int) -> fx.Node:
    """The pixels of each group: [groups, pixels, channels of a group]."""
    images, channels, *space = shape(image)
    last = editor.call(aten.permute.default, image, [0, *range(2, rank(image)), 1])
    rows = editor.call(aten.reshape.default, last, [images * prod(space), groups, channels // groups])
    return editor.call(aten.transpose.int, rows, 0, 1)


def _replace(editor: Editor, node: fx.Node, index: int, computed: Any, keep_stream: bool) -> None:
    """Put one gradient in place of the call's, which need not compute it any longer."""
    values = arguments(node)
    for old in [user for user in node.users if op_name(user) == "getitem" and user.args[1] == index]:
        with editor.at(node):
            new = computed(editor, values)
        put_adapted(editor, old, new, keep_stream=keep_stream)
    if compat.is_erased(node):
        return
    mask = [wanted and k != index for k, wanted in enumerate(values["output_mask"])]
    node.args, node.kwargs = (*list(values.values())[:-1], mask), {}
    node.meta["val"] = tuple(None if k == index else part for k, part in enumerate(node.meta["val"]))
