"""Checks the places of rows that are picked from small tables, once each, so that kernels of products may pick them.

    x @ (w * scales[group])   ->   at = clamp(arange(8)[group], 0, 7);  x @ (w * scales[at])

A product's kernel on a CPU raises no errors. What `arange` gives is in range, which the kernel can see only of what is
clamped. Weights of few bits come with such a table for groups along the depth, and the group of each place (`g_idx`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.compat import argument
from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, op_name, shape, val
from ...rewrites.symbolic import known_equal
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.linear", "mkldnn._linear_pointwise")
_WHOLE = (torch.int32, torch.int64)
_REPEATED = 8  # times that each element of a table is read, at least
_LONGEST = 20  # calls between a table and the product


@replaces_calls(aten.index.Tensor, aten.index_select.default)
def check_picked_rows(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Pick rows of a table for a product by places that were checked."""
    if not picks_rows(node) or not _is_multiplied(node):
        return None
    index = index_of(node)
    if index is None or not _is_given(index):
        return None
    return editor.call(aten.index.Tensor, node.args[0], [_checked(editor, index, int(val(node.args[0]).shape[0]))])


def _checked(editor: Editor, index: fx.Node, rows: int) -> fx.Node:
    """Places of so many rows that were checked, the same for all that are picked by one index."""
    for read in index.users:
        if op_name(read.args[0]) == "aten.arange" and known_equal(shape(read.args[0])[0], rows):
            found = next((user for user in read.users if user.target is aten.clamp.default), None)
            if found is not None:
                return found
    places = editor.call(aten.arange.default, rows, dtype=torch.int64, device=val(index).device)
    return editor.call(aten.clamp.default, editor.call(aten.index.Tensor, places, [index]), 0, rows - 1)


def _is_given(index: fx.Node) -> bool:
    """Whether places are data that the program is given."""
    found, waiting = {index}, [index]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            return index.target is not aten.clamp.default
        new = [n for n in node.all_input_nodes if n not in found]
        found.update(new)
        waiting.extend(new)
    return False


def index_of(node: fx.Node) -> fx.Node | None:
    """The one index by which a call takes elements or rows of a tensor, integers; None if it does something else."""
    name = op_name(node)
    if name not in ("aten.index", "aten.index_select", "aten.embedding") or not is_tensor(node.args[0]):
        return None
    if name == "aten.index":
        indices: Any = node.args[1]
        index = indices[0] if len(indices) == 1 else None
    else:
        index = argument(node, "index" if name == "aten.index_select" else "indices")
        if name == "aten.index_select" and argument(node, "dim") != 0:
            return None
    if not isinstance(index, fx.Node) or not is_tensor(index):
        return None
    return index if not val(index).dtype.is_floating_point and val(index).dtype != torch.bool else None


def picks_rows(node: fx.Node) -> bool:
    """Whether a node is rows of a small matrix, each of which is picked many times."""
    index = index_of(node)
    if index is None or op_name(node) == "aten.embedding":
        return False
    table, made = val(node.args[0]), val(node)
    if not all(isinstance(size, int) for size in (*table.shape, *made.shape)):
        return False
    few = 0 < table.numel() * _REPEATED <= made.numel()
    return few and table.dim() == 2 and val(index).dim() == 1 and val(index).dtype in _WHOLE


def _is_multiplied(node: fx.Node) -> bool:
    """Whether elements of a node go into a product's operand, one by one."""
    for _ in range(_LONGEST):
        if len(node.users) != 1:
            return False
        (node,) = node.users
        if op_name(node) in _PRODUCTS:
            return True
        if not is_tensor(node) or node.op != "call_function":
            return False
    return False
