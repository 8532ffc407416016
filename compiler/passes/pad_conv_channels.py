"""Pads images of few channels with channels of zeros for convolutions on a GPU, so that pixels are aligned.

convolution(clone(x), clone(w))   ->   convolution(clone(pad(x)), clone(pad(w)))       3 channels become 4

The first layer of a network reads three colors, 6 bytes per pixel, two bytes at a time. With 8 bytes per pixel, a
generated kernel loads a pixel at once (0.12 ms instead of 0.20 for the first layer of ResNet, 64 images, H200; cuDNN
takes 0.45 ms either way). The copy that converts the layout also writes the zeros. Products with zeros change no sum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank, shape, val
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_GPUS = ("cuda",)
_DTYPES = (torch.float16, torch.bfloat16)
_ALIGNED = 4  # channels, of 8 bytes: the GPU copies them to shared memory at once
_FEWEST, _MOST = 3, 16  # with fewer channels, most reads would be zeros; more channels need several loads anyway


@replaces_calls(aten.convolution.default, same_strides=True)
def pad_conv_channels(editor: Editor, node: fx.Node, devices: Collection[str] = _GPUS) -> fx.Node | None:
    """Pad an image of few channels where a convolution reads it."""
    if val(node).device.type not in devices or not _is_candidate(node):
        return None
    x, weight, *others = node.args
    more = -shape(weight)[1] % _ALIGNED
    return editor.call(aten.convolution.default, _padded(editor, x, more), _padded(editor, weight, more), *others)


def _is_candidate(node: fx.Node) -> bool:
    values = arguments(node)
    x, weight = values["input"], values["weight"]
    if rank(node) != 4 or any(dtype(n) not in _DTYPES for n in (node, x, weight)):
        return False
    if values["transposed"] or values["groups"] != 1 or values["dilation"][-1] != 1:
        return False
    channels, line = shape(weight)[1], shape(weight)[-1]
    if any(type(n) is not int for n in (*shape(weight), *shape(x))) or not val(x).numel():
        return False
    few = _FEWEST <= channels < _MOST and channels % _ALIGNED != 0
    return few and line > 1 and val(node).is_contiguous(memory_format=torch.channels_last)


def _padded(editor: Editor, node: Any, more: int) -> fx.Node:
    """A tensor with additional channels of zeros, in the layout that was asked for."""
    given = node.args[0] if op_name(node) == "aten.clone" and "memory_format" in node.kwargs else node
    wide = editor.call(aten.constant_pad_nd.default, given, [0, 0, 0, 0, 0, more])
    return editor.call(aten.clone.default, wide, memory_format=torch.channels_last)
