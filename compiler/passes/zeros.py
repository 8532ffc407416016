"""Calls that create tensors of zeros."""

from __future__ import annotations

from typing import Any

from torch import fx

from ...rewrites.graph import arguments, op_name

_ZEROS = ("aten.zeros", "aten.new_zeros", "aten.zeros_like")
_ONES = ("aten.ones", "aten.new_ones", "aten.ones_like")
_FULL = ("aten.full", "aten.new_full", "aten.full_like")


def is_zeros(node: fx.Node) -> bool:
    """Whether a call creates a tensor of zeros."""
    name = op_name(node)
    return name in _ZEROS or (name in _FULL and arguments(node)["fill_value"] == 0)


def is_filled(node: fx.Node) -> bool:
    """Whether a call creates a tensor of equal numbers."""
    return op_name(node) in (*_ZEROS, *_ONES, *_FULL)


def filling(node: fx.Node) -> Any:
    """The number that a tensor of equal numbers is filled with."""
    name = op_name(node)
    return arguments(node)["fill_value"] if name in _FULL else int(name in _ONES)
