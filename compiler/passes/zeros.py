"""Calls that create tensors of zeros."""

from __future__ import annotations

from torch import fx

from ...rewrites.graph import arguments, op_name

_ZEROS = ("aten.zeros", "aten.new_zeros", "aten.zeros_like")
_FULL = ("aten.full", "aten.new_full", "aten.full_like")


def is_zeros(node: fx.Node) -> bool:
    """Whether a call creates a tensor of zeros."""
    name = op_name(node)
    return name in _ZEROS or (name in _FULL and arguments(node)["fill_value"] == 0)
