"""Copies indices on the CPU, by which a tensor on a GPU is indexed, before the call that reads them.

    index(x, [None, i])     x on a GPU, i on the CPU     ->     index(x, [None, to_copy(i, device=cuda)])

ATen copies them within the call, each time. As calls of their own, copies of constants are made once, while compiling
(`constants_on_device`), and the lookup is part of a generated kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, val
from ...rewrites.walk import visits_calls

aten = torch.ops.aten


@visits_calls(aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default)
def move_indices_to_device(editor: Editor, node: fx.Node) -> bool:
    """Copy integers that index a tensor of a GPU there."""
    device = val(node.args[0]).device
    if device.type != "cuda" or not any(map(_is_elsewhere, node.args[1])):  # type: ignore[arg-type]
        return False
    with editor.at(node):
        moved = [_on(editor, index, device) if _is_elsewhere(index) else index for index in node.args[1]]  # type: ignore[union-attr]
    node.update_arg(1, moved)
    return True


def _is_elsewhere(index: Any) -> bool:
    """Whether an index is a tensor of integers on the CPU; a single number is no copy in eager either."""
    if not is_tensor(index):
        return False
    value = val(index)
    return value.device.type == "cpu" and value.dtype in (torch.int32, torch.int64) and value.dim() > 0


def _on(editor: Editor, index: fx.Node, device: torch.device) -> fx.Node:
    return editor.call(aten._to_copy.default, index, device=device)
