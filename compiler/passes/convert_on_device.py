"""Converts tensors that are copied from the CPU to a GPU on the GPU, not before.

    to_copy(x, dtype=bfloat16, device=cuda)     x on the CPU     ->     to_copy(to_copy(x, device=cuda), dtype=bfloat16)

PyTorch converts on the device that data comes from: the CPU goes through it element by element, and the GPU waits. On
the GPU a kernel that reads the data converts it in passing.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, val
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_WIDER = 2  # times as many bytes that a copy may move for it


@replaces_calls(aten._to_copy.default, same_strides=True)
def convert_on_device(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Separate a copy to a GPU from a conversion of floats."""
    if not _converts(node):
        return None
    how = {name: value for name, value in node.kwargs.items() if name not in ("dtype", "memory_format")}
    copy = editor.call(aten._to_copy.default, node.args[0], **how)
    return editor.call(aten._to_copy.default, copy, dtype=dtype(node), **_format(node))


def _converts(node: fx.Node) -> bool:
    """Whether a call copies floats from the CPU to a GPU in another dtype."""
    source = node.args[0]
    if not is_tensor(source) or val(source).device.type != "cpu" or val(node).device.type != "cuda":
        return False
    before, after = dtype(source), dtype(node)
    floats = before.is_floating_point and after.is_floating_point
    return floats and before != after and val(source).dim() > 0 and before.itemsize <= _WIDER * after.itemsize


def _format(node: fx.Node) -> dict[str, torch.memory_format]:
    return {name: value for name, value in node.kwargs.items() if name == "memory_format"}
