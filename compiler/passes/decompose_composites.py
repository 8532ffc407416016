"""Decomposes composite operators that rules insert after autograd, as AOTAutograd would have done.

    %y = aten.linear(%x, %w, %b)      ->      %t = aten.t(%w);  %y = aten.addmm(%b, %x, %t)

Programs that cannot be captured before autograd (transforms of `torch.func`, tensor subclasses) meet the rules only
after AOTAutograd has desugared them. Rules insert operators from above autograd; later stages know only those below it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.tracing import record
from ...rewrites.walk import recompiles

_PROVENANCE = ("stack_trace", "nn_module_stack", "regraft_rule", "custom")


@recompiles
def decompose_composites(graph_module: fx.GraphModule) -> int:
    """Replace calls of composite operators by their decompositions, in place; returns the number of calls."""
    calls = [node for node in graph_module.graph.nodes if _is_composite(node)]
    return sum(_write_out(node) for node in calls)


def _is_composite(node: fx.Node) -> bool:
    target = node.target
    return (
        isinstance(target, compat.OpOverload)
        and not compat.is_mutable(target)
        and isinstance(node.meta.get("val"), torch.Tensor)
        and compat.is_composite(target)
    )


def _write_out(node: fx.Node) -> bool:
    inputs = list(dict.fromkeys(node.all_input_nodes))
    fakes = [n.meta["val"] for n in inputs]
    mode = compat.fake_mode_of(fakes)
    if mode is None:
        return False

    def run(*values: Any) -> Any:
        given = dict(zip(inputs, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    with mode, torch.no_grad():
        traced = record(run, _told_apart(fakes), "decomposed")
    return _put_in_place(node, traced, inputs)


def _told_apart(fakes: list[Any]) -> list[Any]:
    """Metadata in new, equal objects: tracing distinguishes inputs by identity."""
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in fakes]


def _put_in_place(node: fx.Node, traced: fx.GraphModule, inputs: list[fx.Node]) -> bool:
    """Copy the nodes of `traced` before `node`, and remove `node`."""
    if any(inner.op == "get_attr" for inner in traced.graph.nodes):
        return False  # tracing created a constant: the call stays
    places: dict[fx.Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with node.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "call_function":
                places[inner] = new = node.graph.node_copy(inner, places.__getitem__)
                known = {key: node.meta[key] for key in _PROVENANCE if key in node.meta}
                new.meta = {**known, "val": inner.meta.get("val")}
    result = traced.graph.output_node().args[0]
    node.replace_all_uses_with(places[result])  # type: ignore[index]
    node.graph.erase_node(node)
    return True
