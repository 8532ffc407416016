"""Programs whose derivatives AOTAutograd cannot trace through an operator of a library: compiled in parts around it.

    a(x), library::op, b(x)       ->       a(x) compiled, library::op as it is, b(x) compiled

AOTAutograd traces a program and its derivatives as one graph. A derivative that a library has registered for its
operator, and that reads the value of a tensor (`.item()`, `.tolist()`), cannot be traced; autograd runs it as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from ...rewrites import compat
from ...rewrites.compat.operators import ships_with_torch
from ...rewrites.graph import op_name
from ...rewrites.purity import SCOPES
from .by_sizes import BySizes

_VIEWS = ("transpose", "swapaxes", "swapdims", "permute", "movedim", "t", "unsqueeze", "squeeze")
_Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def in_parts(program: fx.GraphModule, compiled: _Compile) -> fx.GraphModule | None:
    """A program that calls the operators of libraries, and the parts between them, which are compiled when they run.

    Args:
        program: as Dynamo gives it, of calls that capture accepts, with a flat output; it is not changed.
        compiled: compiles one part for its inputs.

    Returns:
        None if the program calls no operator of a library, or sets a mode that does not end with a part (an inference
        mode, the kernels that attention may use).
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    apart = [node for node in graph.nodes if _is_of_library(node)]
    if not apart or any(map(_reaches_further, graph.nodes)):
        return None
    numbers = _numbers(graph, _gathered(apart))
    whole = split_module(fx.GraphModule(program, graph), None, numbers.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
    for name, part in list(whole.named_children()):
        if isinstance(part, fx.GraphModule) and not any(map(_is_of_library, part.graph.nodes)):
            setattr(whole, name, _CompiledPart(part, compiled))
    return whole


class _CompiledPart(torch.nn.Module):
    """A part of a program, compiled for the sizes that its inputs have."""

    def __init__(self, part: fx.GraphModule, compiled: _Compile) -> None:
        super().__init__()
        self._call = BySizes(part, partial(compiled, part))

    def forward(self, *inputs: Any) -> Any:
        return self._call(*inputs)


def _is_of_library(node: fx.Node) -> bool:
    return isinstance(node.target, compat.OPERATORS) and not ships_with_torch(node.target)


def _reaches_further(node: fx.Node) -> bool:
    return op_name(node) in SCOPES and node.target not in (*compat.AUTOCAST_SCOPE, compat.SET_GRAD_MODE)


def _gathered(apart: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Nodes that belong to operators of libraries, moved beside them: what picks results, and views of inputs.

    As a result of a compiled part, a view of a parameter would have its gradient copied there and back.
    """
    owners = {node: node for node in apart}
    for node in apart:
        for user in reversed([user for user in node.users if user.target is operator.getitem]):
            node.append(user)
            owners[user] = node
        for operand in node.all_input_nodes:
            if _is_view_of_input(operand) and list(operand.users) == [node]:
                node.prepend(operand)
                owners[operand] = node
    return owners


def _is_view_of_input(node: fx.Node) -> bool:
    operands = node.all_input_nodes
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name in _VIEWS and len(operands) == 1 and operands[0].op == "placeholder"


def _numbers(graph: fx.Graph, owners: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """The number of each node's part: odd for operators of libraries and what belongs to them."""
    numbers: dict[fx.Node, int] = {}
    number, last = 0, None
    for node in graph.nodes:
        owner = owners.get(node)
        if owner is None:
            number += number % 2
        elif owner is not last:
            number += 1 + number % 2
        numbers[node], last = number, owner
    return numbers
