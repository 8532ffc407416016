"""Keeps two results of a program in two tensors where autograd's partition would merge the equal calls behind them.

    a, _ = sort(x); b, _ = sort(x); return a, b    ->    return a, clone(b)

The partition merges equal calls, except those whose result the program returns. It overlooks calls with several
results: writing to one returned tensor would then change the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Set

import torch
from torch import fx

from ...rewrites.purity import returned_storages, storages
from ...rewrites.walk import recompiles
from .cse import frozen


@recompiles
def keep_results_apart(graph_module: fx.GraphModule) -> int:
    """Copy results of the program that come from equal calls, all but the first; returns the number of copies.

    Args:
        graph_module: the joint graph, changed in place.
    """
    graph = graph_module.graph
    returned = returned_storages(graph)
    values: dict[fx.Node, Hashable] = {}
    first: dict[Hashable, Hashable] = {}
    copies = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or _is_returned(node, returned):
            values[node] = node
            continue
        args = fx.map_arg((frozen(node.args), frozen(node.kwargs)), lambda arg: values.get(arg, arg))
        key = (node.target, *args)
        known = first.setdefault(key, node)
        values[node] = known
        if known is not node and isinstance(node.meta.get("val"), (tuple, list)) and not _are_views(node, known):
            copies += sum(_copied(graph, part) for part in node.users if storages(part) & returned)
    return copies


def _is_returned(node: fx.Node, returned: Set[Hashable]) -> bool:
    """Whether the program returns the memory of this tensor: the partition keeps it and its views apart."""
    return isinstance(node.meta.get("val"), torch.Tensor) and bool(storages(node) & returned)


def _are_views(node: fx.Node, known: Hashable) -> bool:
    """Whether both calls give parts of one value, which are its memory in eager, too."""
    return isinstance(known, fx.Node) and bool(storages(node) & storages(known))


def _copied(graph: fx.Graph, part: fx.Node) -> bool:
    """Read a copy instead of one result of a call; the copy has the same metadata, so that views of it stay views."""
    if not isinstance(part.meta.get("val"), torch.Tensor):
        return False
    with graph.inserting_after(part):
        copy = graph.call_function(torch.ops.aten.clone.default, (part,))
    copy.meta = dict(part.meta)
    part.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    return True
