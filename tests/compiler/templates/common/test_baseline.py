"""Nodes of a graph as they run without a template."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates.common.baseline import Baseline


def test_nodes_run_as_they_would_in_the_graph() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w + b) * 2

    inputs = torch.randn(8, 16), torch.randn(16, 8), torch.randn(8)
    module = make_fx(function, tracing_mode="fake")(*inputs)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    baseline = Baseline(nodes, list(module.graph.find_nodes(op="placeholder")), [nodes[-1]])
    torch.testing.assert_close(baseline(*inputs), function(*inputs))
    (product, *_) = nodes
    tail = Baseline(nodes[1:], [product, module.graph.find_nodes(op="placeholder")[2]], [nodes[-1]])
    torch.testing.assert_close(tail(inputs[0] @ inputs[1], inputs[2]), function(*inputs))


def test_the_graph_may_change_once_it_has_begun() -> None:
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    module = make_fx(lambda x, y: (x + y).tanh() * 2, tracing_mode="fake")(x, y)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    baseline = Baseline(nodes, list(module.graph.find_nodes(op="placeholder")), [nodes[-1]])
    baseline.begin()
    nodes[1].args = (nodes[1].all_input_nodes[0].all_input_nodes[0],)  # tanh(x)
    for node in (nodes[0], *nodes[3:]):
        node.graph.erase_node(node)
    torch.testing.assert_close(baseline(x, y), (x + y).tanh() * 2)
