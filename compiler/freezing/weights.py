"""The inputs of a compiled graph that are weights: parameters, buffers and other tensors that its modules hold.

    Dynamo's graph: inputs (x, self.weight, ...)  ->  AOTAutograd's graph: inputs in its own order
                                                      weight_nodes: {its placeholder: the tensor}

A tensor is no weight here if the program itself writes to it, or if nobody could tell that it was written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import autograd
from ...rewrites.purity import written
from ...rewrites.words import counted
from ..options import OptionError

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def refuse_training(example_inputs: Sequence[Any]) -> None:
    """Weights that are trained cannot be frozen.

    Raises:
        OptionError: gradients would be computed; the message says how to turn that off.
    """
    wanted = sum(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    if torch.is_grad_enabled() and wanted:
        raise OptionError(
            f"option 'freezing' is for inference, but gradients of {counted(wanted, 'tensor')} are wanted: call "
            "it under torch.no_grad() or torch.inference_mode(), set requires_grad_(False), or leave 'freezing' out"
        )


def module_state(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """The inputs of Dynamo's graph that modules hold, by position."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    pairs = enumerate(zip(placeholders, example_inputs, strict=True))
    return {i: x for i, (node, x) in pairs if compat.is_module_state(node) and _is_tracked(x)}


def weight_nodes(
    graph_module: fx.GraphModule, state: dict[int, torch.Tensor], owner: torch.nn.Module
) -> dict[fx.Node, torch.Tensor]:
    """The placeholders of AOTAutograd's inference graph that stand for weights, with their values.

    Args:
        graph_module: the graph, functional but for writes to inputs at its end.
        state: the inputs that modules hold, see `module_state`.
        owner: the module that AOTAutograd was given, whose own parameters and buffers are inputs too.
    """
    mutated = {target for node in graph_module.graph.nodes for target in written(node)}
    found = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        origin = autograd.input_origin(node)
        value = _value(origin, state, owner)
        if value is not None and node not in mutated and _is_tracked(value):
            found[node] = value
    return found


def _value(origin: int | str | None, state: dict[int, torch.Tensor], owner: torch.nn.Module) -> Any:
    if isinstance(origin, str):
        return compat.attribute(owner, origin)
    return None if origin is None else state.get(origin)


def _is_tracked(value: Any) -> bool:
    """Whether torch counts the writes to a tensor: not to those made in inference mode."""
    return type(value) in _PLAIN and value.layout == torch.strided and not value.is_inference()
