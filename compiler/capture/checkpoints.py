"""Activation checkpoints of a captured program, whose bodies are captured like the rest.

%c = tag_activation_checkpoint(%body, %x)       body: aten.linear, aten.gelu
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from ...rewrites import compat
from ...rewrites.editor import infer
from ...rewrites.purity import storages
from ...rewrites.walk import recompiles

CAPTURED = "regraft_captured"
"""Marks a body that was captured."""


def captured_bodies(graph_module: fx.GraphModule) -> list[tuple[fx.Node, fx.GraphModule]]:
    """The calls of checkpoints whose bodies were captured, each with its body."""
    calls = [node for node in graph_module.graph.nodes if node.target is compat.CHECKPOINT]
    found = [(call, compat.attribute(graph_module, str(call.args[0].target))) for call in calls]
    return [(call, body) for call, body in found if CAPTURED in body.meta]


@recompiles
def inline_bodies(graph_module: fx.GraphModule) -> int:
    """Replace calls of checkpoints by their bodies; returns the number of calls.

    This is for programs without gradients, which recompute nothing. AOTAutograd would treat a body as recomputed, and
    refuse random numbers in it.

        %c = tag_activation_checkpoint(%body, %x)     ->     %l = aten.linear(%x, ...); %y = aten.gelu(%l)
    """
    count = 0
    while ready := [(c, b) for c, b in captured_bodies(graph_module) if not b.graph.find_nodes(op="get_attr")]:
        for call, body in ready:
            _inline(call, body)
            count += 1
    return count


def _inline(call: fx.Node, body: fx.GraphModule) -> None:
    inputs = body.graph.find_nodes(op="placeholder")
    places: dict[fx.Node, Any] = dict(zip(inputs, call.args[1:], strict=True))
    with call.graph.inserting_before(call):
        results = call.graph.graph_copy(body.graph, places)
    views = [places[node] for node in _sharing(body.graph, inputs) if node.op == "call_function"]
    views += [node for node in _sharing(call.graph, [call]) if node is not call and node.target is not operator.getitem]
    for user in list(call.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index,arg-type]
            call.graph.erase_node(user)
    call.graph.erase_node(call)
    for view in views:
        view.meta["val"] = infer(view)


def _sharing(graph: fx.Graph, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes of a graph, in order, that share memory with some of its nodes, these included.

    A body has tensors of its own as metadata: which of its values share memory with those of the program around it is
    known once the metadata of these is made from each other.
    """
    memory = {s for node in nodes for s in storages(node)}
    return [node for node in graph.nodes if storages(node) & memory]
