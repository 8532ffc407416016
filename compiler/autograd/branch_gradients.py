"""Gradients of the branches of `cond`, laid out in memory alike.

    cond(p, sum, sin, (x,)).sum().backward()      the gradient of the first branch: one number, expanded to x's sizes
                                                  the gradient of the second: in x's order

AOTAutograd raises where the gradients of two branches have other orders of strides. Here each branch reads its operands
through a function whose gradient is laid out as a new tensor like the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.walk import recompiles


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(operand: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return operand.view_as(operand)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (operand,) = ctx.saved_tensors
        return torch.empty_like(operand, dtype=gradient.dtype).copy_(gradient)


def read_operand(operand: Any) -> Any:
    """An operand of a branch; its gradient will be laid out as it is."""
    return _Read.apply(operand) if isinstance(operand, torch.Tensor) and _differentiable(operand) else operand


def lay_out_branch_gradients(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> int:
    """Have the branches of `cond` read their operands so, in copies, if gradients flow; returns how many calls do."""
    given = [*example_inputs, *graph_module.parameters(), *graph_module.buffers()]
    tracked = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    return _change(graph_module) if tracked and torch.is_grad_enabled() else 0


@recompiles
def _change(graph_module: fx.GraphModule) -> int:
    found = graph_module.graph.find_nodes(op="call_function", target=compat.COND)
    calls = [node for node in found if all(getattr(branch, "op", "") == "get_attr" for branch in node.args[1:3])]
    for node in calls:
        branches = [_reading(graph_module, branch) for branch in node.args[1:3]]
        node.args = (node.args[0], *branches, *node.args[3:])
    return len(calls)


def _differentiable(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _reading(graph_module: fx.GraphModule, branch: Any) -> fx.Node:
    """A copy of a branch that reads its operands by `read_operand`, as an attribute of the module."""
    body = graph_module.get_submodule(branch.target)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    operands = body.graph.find_nodes(op="placeholder")  # type: ignore[union-attr]
    given = [graph.node_copy(node) for node in operands]
    for node, copy in zip(operands, given, strict=True):
        copies[node] = graph.call_function(read_operand, (copy,))
        copies[node].meta = dict(node.meta)
    for node in body.graph.nodes:  # type: ignore[union-attr]
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = fx.GraphModule(body, graph)
    made.meta = dict(body.meta)  # type: ignore[arg-type]
    _change(made)
    name = next(name for name in (f"{branch.target}_read_{i}" for i in range(10**9)) if not hasattr(graph_module, name))
    graph_module.add_submodule(name, made)
    with graph_module.graph.inserting_before(branch):
        return graph_module.graph.get_attr(name)
