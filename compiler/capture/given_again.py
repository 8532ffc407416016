"""Calls that give their input itself or a view of it, of which torch's tracing makes a copy.

    y = dropout(x, 0.5, training=False);  y.mul_(2)      writes to `x`, as in eager
    y = channel_shuffle(x, 1)                            so does this on GPUs, and where `x` is empty

In their schema, what they give is new. Such calls are not recorded: what reads their result reads the input, or the
views that eager makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...rewrites.functional import takes_hook
from ...rewrites.symbolic import hint, known_equal

aten = torch.ops.aten
_RECORDED = NotImplemented  # what tells the recorder to record the call


def with_given_again(graph: fx.Graph, table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A recorder's table of decompositions, with one for each of such calls, for the program of `graph`.

    It has none if the program has hooks: AOTAutograd loses hooks of what is returned beside its input.
    """
    if any(map(takes_hook, graph.nodes)):
        return table
    return {**table, aten.dropout.default: _dropout, aten.channel_shuffle.default: _channel_shuffle}


def can_be_split(x: torch.Tensor, groups: int) -> bool:
    """Whether eager can view the groups of channels that it shuffles; on CPUs, and of nothing, it needs no view.

    Decided with example sizes; where there are none, it can.
    """
    sizes, strides = list(map(hint, x.shape)), list(map(hint, x.stride()))
    if x.device.type == "cpu" or None in (*sizes, *strides) or 0 in sizes:
        return True
    try:
        torch.empty_strided(sizes, strides, device="meta").view(sizes[0], groups, sizes[1] // groups, -1)
    except RuntimeError:
        return False
    return True


def _dropout(x: torch.Tensor, p: Any, train: bool) -> Any:
    nothing = not train or (not isinstance(p, torch.SymFloat) and p == 0) or known_equal(x.numel(), 0)
    return x if nothing else _RECORDED


def _channel_shuffle(x: torch.Tensor, groups: int) -> Any:
    if x.dim() < 3 or groups <= 0 or not known_equal(x.shape[1] % groups, 0):  # eager refuses it
        return _RECORDED
    if known_equal(x.shape[1], 0) and x.requires_grad:  # likewise
        return _RECORDED
    if known_equal(x.numel(), 0):
        return x.view_as(x)
    if x.device.type == "cpu" or not can_be_split(x, groups):
        return _RECORDED
    rows = x.view(x.shape[0], groups, x.shape[1] // groups, -1)
    return rows.transpose(1, 2).contiguous().reshape(x.shape)
