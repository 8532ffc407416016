"""Writes the same values to all rows that a mask chooses, without asking how many rows these are.

    index_put(x, [mask], row)     ->     where(logical_not(mask), x, row)

What a mask chooses has a size that only the data tells: a GPU would be waited for, and the program could not be
captured. The gradient of `row`, a sum over the chosen rows, asks for them as well; that of `where` does not.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.sizes import SizeTable
from ..normal.masks import written_entries

aten = torch.ops.aten


def write_rows_by_mask(graph_module: fx.GraphModule) -> int:
    """Replace such writes, in place; returns their number.

    Args:
        graph_module: a functional program before autograd (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    editor, made = Editor(graph, SizeTable(graph)), 0
    for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
        with editor.at(node):
            new = written_entries.step(node, editor)
        if new is None:
            continue
        editor.replace(node, new)
        editor.erase_dead(node)
        made += 1
    if made:
        graph_module.recompile()
    return made
