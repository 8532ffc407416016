"""What is known about a mask from the graph alone: masks built from sizes and constants are evaluated while compiling."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..rewrites.graph import is_pure, is_random, is_tensor, nodes_in, val
from ..rewrites.symbolic import SYMBOLIC

_MOST_ELEMENTS = 1 << 22


def evaluate(node: Any) -> torch.Tensor | None:
    """The value of a tensor that depends on nothing but constants and static sizes; None where it is not known."""
    cone = _cone(node)
    if cone is None:
        return None
    values: dict[fx.Node, Any] = {}
    with torch.utils._python_dispatch._disable_current_modes():
        for n in cone:
            args, kwargs = fx.node.map_arg((n.args, dict(n.kwargs)), values.__getitem__)
            values[n] = n.target(*args, **kwargs)
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def _cone(node: Any) -> list[fx.Node] | None:
    """The nodes that `node` is computed from, in order, if all are pure, static, small and start from constants."""
    if not is_tensor(node):
        return None
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        n = todo.pop()
        if n in found:
            continue
        if n.op != "call_function" or not _constant_step(n):
            return None
        found.add(n)
        todo.extend(n.all_input_nodes)
    return sorted(found)


def _constant_step(node: fx.Node) -> bool:
    value = val(node)
    if not isinstance(value, torch.Tensor) or "opaque" in node.meta or not is_pure(node) or is_random(node):
        return False
    if any(isinstance(s, SYMBOLIC) for s in value.shape) or value.numel() > _MOST_ELEMENTS:
        return False
    return not any(isinstance(a, SYMBOLIC) for a in _flat([node.args, node.kwargs])) and _reads_only_nodes(node)


def _reads_only_nodes(node: fx.Node) -> bool:
    return all(is_tensor(n) for n in nodes_in([node.args, node.kwargs]))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _flat(v)]
    return [x for v in value.values() for x in _flat(v)] if isinstance(value, dict) else [value]


def is_causal(mask: Any) -> bool:
    """Whether a mask (additive or boolean) is known to keep exactly the keys at or before each query, and to add nothing."""
    value = evaluate(mask)
    if value is None or value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        return False
    rows = value.shape[-1]
    lower = torch.ones(rows, rows, dtype=torch.bool).tril()
    if value.dtype == torch.bool:
        return bool((value.cpu() == lower).all())
    value = value.cpu()
    kept, masked = value[lower.expand_as(value)], value[~lower.expand_as(value)]
    return bool((kept == 0).all()) and bool((masked <= -1e4).all())
