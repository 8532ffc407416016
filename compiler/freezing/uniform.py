"""Tensors that a program makes from nothing, and whose elements are all equal: masks that mask nothing.

    position = arange(128);  keep = position[None] <= position[:, None] + 128;  where(keep, scores, -inf)
        ->  where(full([128, 128], True), scores, -inf)

What `full` makes is known to all later stages, so that adding, multiplying or selecting by it goes away there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.effects import written
from ...rewrites.graph import is_tensor, op_name, val
from ...rewrites.sizes import SizeTable
from .. import torch_compat
from .fold import is_foldable

aten = torch.ops.aten

MAX_ELEMENTS = 1 << 20  # of a tensor that is computed while compiling to see what it holds
_AS_GOOD = ("aten.full", "aten.zeros", "aten.ones", "aten.scalar_tensor", "aten.arange", "aten.expand", "aten.view")


def fold_uniform(graph_module: fx.GraphModule) -> int:
    """Replace computed tensors that hold one value everywhere by `full`, in place; returns how many.

    Args:
        graph_module: a functional graph; only CPU tensors of constant size are looked at.
    """
    graph = graph_module.graph
    numbers = _numbers(graph)
    editor = Editor(graph, SizeTable(graph))
    made = 0
    for node, number in numbers.items():
        if number is None or op_name(node) in _AS_GOOD or all(user in numbers for user in node.users):
            continue
        value = val(node)
        with editor.at(node):
            new = editor.call(aten.full.default, list(value.shape), number, dtype=value.dtype, device=value.device)
        editor.replace(node, new)
        editor.erase_dead(node)
        made += 1
    if made:
        graph_module.recompile()
    return made


def _numbers(graph: fx.Graph) -> dict[fx.Node, Any]:
    """The tensors that follow from no input, in order, each with the number that all its elements are, or None."""
    mutated = {target for node in graph.nodes for target in written(node)}
    found: dict[fx.Node, torch.Tensor] = {}
    with torch_compat.plain_eager(), torch.no_grad():
        for node in graph.nodes:
            if node not in mutated and _is_small(node) and all(n in found for n in node.all_input_nodes):
                value = _call(node, found)
                if value is not None:
                    found[node] = value
        return {node: _number(value) for node, value in found.items()}


def _call(node: fx.Node, found: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The result of a call; None where it raises, which is the run's business."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), found.__getitem__)
    try:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, IndexError, ValueError):
        return None


def _is_small(node: fx.Node) -> bool:
    if node.op != "call_function" or not is_tensor(node) or not is_foldable(node):
        return False
    value = val(node)
    return value.device.type == "cpu" and value.layout == torch.strided and value.numel() <= MAX_ELEMENTS


def _number(value: torch.Tensor) -> Any:
    """The number that all elements are, None where there is none. NaN is none, and the two zeros are two."""
    if value.numel() == 0 or value.is_complex() or not value.is_contiguous():
        return None
    first = value.flatten()[0]
    if value.is_floating_point() and not (torch.signbit(value) == torch.signbit(first)).all():
        return None
    return first.item() if (value == first).all() else None
