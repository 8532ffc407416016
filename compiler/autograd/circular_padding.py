"""Circular padding as one index map: a slice of the tensor repeated.

    pad(x[n, w], (2, 1), "circular")      torch's spelling: an empty tensor, and three copies into it, one after another
                                          here: x.repeat(1, 3)[:, w - 2 : 2 * w + 1]

Neither the repetition nor the slice is computed: the result reads ``x[n, (i + w - 2) % w]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.walk import recompiles

_PAD = torch.ops.aten.pad.default


@recompiles
def spell_circular_padding(graph_module: fx.GraphModule) -> int:
    """Have circular padding traced as a slice of a repetition, in place; returns how many calls are."""
    calls = [node for node in graph_module.graph.find_nodes(op="call_function", target=_PAD) if _is_circular(node)]
    for node in calls:
        node.target, node.args = circular_padding, node.args[:2]
    return len(calls)


def _is_circular(node: fx.Node) -> bool:
    if node.kwargs or len(node.args) < 3 or node.args[2] != "circular":
        return False
    (x, padding), value = node.args[:2], node.args[0].meta.get("val")  # type: ignore[union-attr]
    known = isinstance(padding, (list, tuple)) and all(isinstance(n, int) and n >= 0 for n in padding)
    return known and isinstance(x, fx.Node) and isinstance(value, torch.Tensor) and value.layout == torch.strided


def circular_padding(x: Any, padding: Sequence[int]) -> Any:
    """``pad(x, padding, "circular")``; `padding` is not negative."""
    before, after = padding[::2], padding[1::2]
    padded = range(x.dim() - 1, x.dim() - 1 - len(before), -1)
    times = [1] * x.dim()
    for dim, (low, high) in zip(padded, zip(before, after, strict=True), strict=True):
        times[dim] = 1 + (low > 0) + (high > 0)
    repeated = x.repeat(times)
    for dim, (low, high) in zip(padded, zip(before, after, strict=True), strict=True):
        size = x.shape[dim]
        first = size - low if low else 0
        repeated = repeated.narrow(dim, first, low + size + high)
    return repeated.clone(memory_format=torch.contiguous_format)
