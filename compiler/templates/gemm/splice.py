"""The place in a graph at which the kernel of a product may be called."""

from __future__ import annotations

from torch import fx

from ....rewrites.compat import OpOverload, is_mutable
from ..common.formula import is_move
from .match import FoundProduct


def anchor_of(graph: fx.Graph, found: FoundProduct) -> fx.Node | None:
    """The node before which the kernel may be called.

    None where readers of the product come before operands of the epilogue, or memory is written to in between.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    first, last = found.call, found.output
    # What a prologue reads, the graph reads before the product.
    begin = min(order[node] for node in (first, *(node for node in found.before if not is_move(node))))
    if any(writes(node) for node in order if begin < order[node] < order[last]):
        return None
    if all(order[node] < order[first] for node in found.inputs):
        return first
    inside = {*found.nodes, last}
    read = [(node, user) for node in found.nodes if node is not last for user in node.users]
    outside = [(node, user) for node, user in read if user not in inside]
    return last if all(node is found.kept and order[user] > order[last] for node, user in outside) else None


def writes(node: fx.Node) -> bool:
    """Whether a call writes to memory that it is given."""
    return isinstance(node.target, OpOverload) and is_mutable(node.target)
