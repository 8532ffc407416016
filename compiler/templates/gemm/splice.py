"""Kernels in place of products, in a graph: where they may be called, and what then reads their results."""

from __future__ import annotations

import operator

from torch import fx

from ....rewrites.compat import OpOverload, is_mutable
from ..common.formula import is_move
from ..common.triton_call import TritonTemplateKernel
from .match import FoundProduct
from .replacement import RULE, erase_dead_calls


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


def replace_product(
    graph: fx.Graph, found: FoundProduct, kernel: TritonTemplateKernel, anchor: fx.Node, rule: str = RULE
) -> None:
    """Put the call of a kernel into the graph, before `anchor`."""
    with graph.inserting_before(anchor):
        call = graph.call_function(kernel, found.inputs)
        call.meta = {**found.output.meta, "regraft_rule": rule}
        if found.kept is None:
            found.output.replace_all_uses_with(call)
        else:
            _unpack(graph, found, call, rule)
    erase_dead_calls(graph, [*found.nodes, found.output])


def _unpack(graph: fx.Graph, found: FoundProduct, call: fx.Node, rule: str) -> None:
    assert found.kept is not None
    nodes = (found.output, found.kept)
    call.meta["val"] = tuple(node.meta["val"] for node in nodes)
    for place, node in enumerate(nodes):
        item = graph.call_function(operator.getitem, (call, place))
        item.meta = {**node.meta, "regraft_rule": rule}
        node.replace_all_uses_with(item)
