"""Views of what a wrapper made itself, by their sizes and strides.

    view(permute(y, [0, 2, 1]), [1, 64, 32, 32])   ->   torch.as_strided(permute, (1, 64, 32, 32), (65536, 1, 2048, 64))

Metadata promises strides for dims of size 1 too. They say nothing of memory, torch's views give others, and libraries
read them: a convolution of (1, 64, 32, 32) with strides (64, 1, 2048, 64) is computed channels-first, between copies.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import op_name
from ....rewrites.moves import VIEWS
from ....rewrites.purity import PureCall
from ..kernel_call import KernelCall
from .stride_checks import is_doubtful, is_trusted, order_of


class Views:
    """The calls of a graph that are such views, and their spelling."""

    def __init__(self) -> None:
        self._as_told: dict[fx.Node, bool] = {}

    def strided(self, node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Sizes, strides and how far a view begins into its operand, all numbers; None where it stays a call."""
        if op_name(node) not in VIEWS or not self._lies_as_told(node.args[0]):
            return None
        source, view = node.args[0].meta.get("val"), node.meta.get("val")  # type: ignore[union-attr]
        if not (_is_plain(source) and _is_plain(view)) or view.dtype != source.dtype:
            return None
        return tuple(view.shape), tuple(view.stride()), view.storage_offset() - source.storage_offset()

    def _lies_as_told(self, node: Any) -> bool:
        """Whether a value lies in memory as metadata says: kernels write it so, or it is looked at after the call."""
        if not isinstance(node, fx.Node):
            return False
        if node not in self._as_told:
            self._as_told[node] = self._decide(node)
        return self._as_told[node]

    def _decide(self, node: fx.Node) -> bool:
        if isinstance(node.target, (KernelCall, PureCall)):
            return True
        if op_name(node) in VIEWS:
            return self._lies_as_told(node.args[0])
        if node.target is operator.getitem:
            return isinstance(getattr(node.args[0], "target", None), KernelCall)
        value = node.meta.get("val")
        return is_trusted(node.target) or (is_doubtful(node.target, value) and order_of(value) is not None)


def _is_plain(value: Any) -> bool:
    """Whether a tensor is numbers in memory, its geometry known."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_complex():
        return False
    return all(type(number) is int for number in (*value.shape, *value.stride(), value.storage_offset()))
