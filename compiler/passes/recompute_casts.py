"""Casts to a wider dtype again in the backward, from the narrower value, instead of keeping the wider one.

    y = to(x, float32)                       forward keeps y, 4 bytes an element     ->     x, 2 bytes
    dx = layer_norm_backward(dz, y, ...)     ->     dx = layer_norm_backward(dz, to(x, float32), ...)

Autocast runs norms and losses in single precision on results of 16 bits. The partition takes the backward of a norm for
a call that needs its operands in memory, and keeps the wider value. Generated kernels cast as they read. The pass runs
on the joint graph, before it is split.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.graph import op_name, val
from ..autograd.joint_graph import WHOLE_VIEWS, backward_nodes, mark_recomputed
from ..lowering.fallbacks import calls_library

aten = torch.ops.aten

_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)


def recompute_casts(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph cast to wider dtypes again, in place; returns the number of casts.

    Left alone are results of the graph, nodes that the user checkpoints, and values that a library's call reads.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    stays = backward.union(graph.output_node().all_input_nodes)
    count = 0
    for node in [n for target in _CASTS for n in graph.find_nodes(op="call_function", target=target)]:
        seen = _views(node, backward)
        plain = stays.isdisjoint(seen) and not any("recompute" in n.meta for n in seen)
        if not plain or not _widens(node) or not _is_fused(seen, backward):
            continue
        for part in seen:
            mark_recomputed(part, True)
        count += 1
    return count


def _views(node: fx.Node, backward: set[fx.Node]) -> list[fx.Node]:
    """A value and its views in the forward."""
    found = [node]
    for one in found:
        found += [user for user in one.users if user not in backward and op_name(user) in WHOLE_VIEWS]
    return found


def _widens(node: fx.Node) -> bool:
    """Whether a cast loses nothing, moves nothing and makes more bytes."""
    narrow, wide = val(node.args[0]), val(node)
    if not isinstance(narrow, torch.Tensor) or narrow.device != wide.device or narrow.stride() != wide.stride():
        return False
    kept = narrow.dtype.is_floating_point or narrow.dtype in (torch.bool, torch.uint8, torch.int8)
    return kept and wide.dtype.is_floating_point and wide.dtype.itemsize > narrow.dtype.itemsize


def _is_fused(seen: list[fx.Node], backward: set[fx.Node]) -> bool:
    """Whether the backward reads a value, in nothing but kernels that compute it as they read it."""
    readers = [user for node in seen for user in node.users if user in backward]
    waiting = list(readers)
    while waiting:
        reader = waiting.pop()
        if calls_library(op_name(reader)):
            return False  # the wider value would be written to memory again
        waiting += reader.users if op_name(reader) in WHOLE_VIEWS else ()
    return bool(readers)
