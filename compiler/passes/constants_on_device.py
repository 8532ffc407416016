"""Moves tables that depend on constants alone to a GPU once, while compiling.

    to_copy(int(log(arange(512))), device=cuda)     on the CPU     ->     constant      on the GPU

Buckets of relative positions and frequencies are often written without a device. What is computed in the same way on
both devices is made on the GPU (`tables_to_device`); the rest is computed here by eager, on the CPU as the program
would, and kept. At each call it would take the CPU's time, and a copy that cannot be captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor, hold_constant
from ...rewrites.graph import val
from ...rewrites.purity import mutable, returned_storages, storages
from ...rewrites.walk import recompiles
from .fold_constant_tables import compute, describe, free_name, memory_like
from .tables_to_device import brings

aten = torch.ops.aten

_MAX_BYTES = 1 << 25  # of a table, and of all that it is computed from


@recompiles
def keep_constants_on_device(graph_module: fx.GraphModule) -> int:
    """Replace copies of constants from the CPU to a GPU by constants there, in place; returns their number.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    copies = [node for node in graph.find_nodes(op="call_function", target=aten._to_copy.default) if brings(node)]
    if not copies:
        return 0
    changed = mutable(graph)
    returned = returned_storages(graph)
    editor, made = Editor(graph), 0
    kept: dict[tuple[Any, ...], fx.Node] = {}  # layers often move the same table
    for node in copies:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        key = source, val(node).dtype, val(node).device, tuple(map(str, val(node).stride()))  # sizes may be symbols
        if key not in kept:
            value = None if source in changed or node in changed else compute(source, limit=_MAX_BYTES)
            if value is None:
                continue
            kept[key] = hold_constant(graph_module, free_name(graph_module), _moved(value, node), node)
        with editor.at(node):  # a result is the program's own memory
            own = editor.call(aten.clone.default, kept[key]) if storages(node) & returned else kept[key]
        editor.replace(node, own)
        made += 1
    for node in copies:
        if not node.users:
            editor.erase_dead(node)
    for constant in kept.values():
        describe(graph_module, constant, getattr(graph_module, str(constant.target)))
    return made


def _moved(value: torch.Tensor, node: fx.Node) -> torch.Tensor:
    """The result of a call of `to_copy` for this value, laid out as its readers expect."""
    promised = val(node)
    with compat.plain_eager(), torch.no_grad():
        return memory_like(promised, list(promised.shape)).copy_(value)
