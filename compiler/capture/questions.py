"""Removes questions that Dynamo has answered: which kernels could compute an attention (`causal_lower_right` asks).

    params = SDPAParams(q, k, v, None, 0.0, False, False);  can_use_flash_attention(params)    ->    nothing

The answer decided what Dynamo traced, and no call reads it. The questions are no operators, so that they would prevent
capture.
"""

from __future__ import annotations

import torch
from torch import fx

_cuda = torch.backends.cuda
_QUESTIONS = frozenset(
    getattr(_cuda, name)
    for name in (
        "SDPAParams",
        "can_use_flash_attention",
        "can_use_efficient_attention",
        "can_use_cudnn_attention",
    )
)


def without_questions(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of `gm` without questions whose answers nobody reads; `gm` if there are none."""
    asked = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _QUESTIONS]
    if not asked or any(user not in asked for node in asked for user in node.users):
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, copies))
    graph.output_node().meta = dict(gm.graph.output_node().meta)
    for node in reversed(asked):
        graph.erase_node(copies[node])
    made = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    made.meta, made.training = dict(gm.meta), gm.training
    return made
