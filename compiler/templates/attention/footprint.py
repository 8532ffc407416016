"""The memory that an attention needs without a generated kernel; if it is large, the attention must not run so.

%bmm, where, %_softmax, %bmm_1 of 16 heads and 32768 positions      64 GiB of scores, and as much of weights
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from ....rewrites.compat import OpOverload, aliasing_arguments
from ....rewrites.symbolic import hint
from ...autotune.inputs import free_memory
from ..common.formula import packet
from .match import FoundAttention
from .sdpa import SDPA

# The most bytes of scores and values computed from them at one time. Above this, memory decides whether a model runs at
# all, which matters more than the small gain of library products over a generated kernel at such lengths.
LARGEST_SCORES = 1 << 30
_SHARE = 4  # the same as a share of free memory: one part in four


def excluded(found: FoundAttention, nodes: Sequence[fx.Node]) -> str:
    """Why an attention must not run by the nodes of the graph, since its scores need much memory; empty if it may.

    Args:
        found: the attention. Library kernels store no scores, so that their calls are never excluded.
        nodes: the nodes that would run, in graph order.
    """
    if any(packet(node) in SDPA for node in found.nodes):
        return ""
    peak, free = peak_bytes(nodes), free_memory(found.output.meta["val"].device)
    bound = LARGEST_SCORES if free is None else min(LARGEST_SCORES, free // _SHARE)
    if peak <= bound:
        return ""
    return f"the original is not measured: its scores take {peak >> 20} MiB, more than {bound >> 20} MiB"


def peak_bytes(nodes: Sequence[fx.Node]) -> int:
    """The most bytes that nodes hold at once if they run in this order, with example values of symbolic sizes."""
    own = dict.fromkeys(nodes)
    last = {_memory(source): place for place, node in enumerate(nodes) for source in node.all_input_nodes}
    ends: dict[int, list[fx.Node]] = {}
    for node, place in last.items():
        if node in own:
            ends.setdefault(place, []).append(node)
    held = peak = 0
    for place, node in enumerate(nodes):
        held += _bytes(node) if _memory(node) is node else 0
        peak = max(peak, held)
        held -= sum(map(_bytes, ends.get(place, ())))
    return peak


def _memory(node: fx.Node) -> fx.Node:
    """The node that allocates the memory of a value."""
    while (source := _viewed(node)) is not None:
        node = source
    return node


def _viewed(node: fx.Node) -> fx.Node | None:
    views = isinstance(node.target, OpOverload) and bool(aliasing_arguments(node.target))
    source = node.args[0] if views or node.target is operator.getitem else None
    return source if isinstance(source, fx.Node) else None


def _bytes(node: fx.Node) -> int:
    val = node.meta.get("val")
    values: Iterable[Any] = val if isinstance(val, (tuple, list)) else (val,)
    return sum((hint(x.numel()) or 0) * x.dtype.itemsize for x in values if isinstance(x, torch.Tensor))
