"""Which calls may be evaluated while compiling, and which tensors a program writes to."""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.effects import storages, written
from ...rewrites.graph import arguments, is_pure, op_name, val

_ZEROS = ("aten.zeros", "aten.new_zeros", "aten.zeros_like")
_FULL = ("aten.full", "aten.new_full", "aten.full_like")
_UNINITIALISED = ("aten.empty", "aten.new_empty")


def is_foldable(node: fx.Node) -> bool:
    """Whether a call may be evaluated while compiling: it is pure, and its sizes are constant."""
    sizes = [s for v in tensors_of(node) for s in v.shape]
    plain = isinstance(node.target, compat.OpOverload) or op_name(node) == "getitem"
    filled = not op_name(node).startswith(_UNINITIALISED)
    return plain and filled and is_pure(node) and bool(tensors_of(node)) and all(type(s) is int for s in sizes)


def is_zeros(node: fx.Node) -> bool:
    """Whether a call creates a tensor of zeros."""
    name = op_name(node)
    return name in _ZEROS or (name in _FULL and arguments(node)["fill_value"] == 0)


def mutable(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory a call writes to."""
    memory = {s for node in graph.nodes for target in written(node) for s in storages(target)}
    return {node for node in graph.nodes if memory and storages(node) & memory}


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors among a call's results."""
    return [v for v in compat.tree_leaves(val(node)) if isinstance(v, torch.Tensor)]
