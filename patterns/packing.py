"""Weights in the blocked layouts that oneDNN computes in, and which operands are known while compiling.

    linear(x, weight)   ->   _linear_pointwise(x, _reorder_linear_weight(weight))       the inner call is folded away

A weight is packed by a call in the graph; freezing evaluates it once. While candidates are measured, the last weight
stays packed, so that their times are those of the program after folding.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from ..rewrites.graph import is_pure, is_tensor
from ..rewrites.reason import Reason

FROZEN = "frozen"  # mark in a placeholder's metadata: its value is known while compiling
PACKED = "packed"  # mark in a call's metadata: it gives a linear layer's weight in the layout of a generated kernel
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SPATIAL_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_frozen(node: Any) -> bool:
    """Whether a tensor is computed from frozen weights and constants alone."""
    if not is_tensor(node):
        return False
    if node.op == "placeholder":
        return FROZEN in node.meta
    if node.op == "get_attr":
        return True
    return is_pure(node) and bool(node.all_input_nodes) and all(map(is_frozen, node.all_input_nodes))


def only_frozen(weight: fx.Node) -> Reason | None:
    """Packing pays only where it happens once."""
    if is_frozen(weight):
        return None
    return Reason("kernel-unavailable", "oneDNN: the weight may change from call to call (option freezing)", (weight,))


def packed_linear_weight(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """`weight` (N, K) for products with `rows` rows at once; None where that varies."""
    declare_results()
    return _packed(torch.ops.mkldnn._reorder_linear_weight, weight, rows)


def packed_convolution_weight(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int] | None,
) -> torch.Tensor:
    """`weight` (out, in / groups, *kernel) for inputs of that size; None where it varies."""
    declare_results()
    settings = (list(padding), list(stride), list(dilation), groups, input_size)
    return _packed(torch.ops.mkldnn._reorder_convolution_weight, weight, *settings)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """`x` (batch, channels, *space) with its channels side by side in memory; itself where it is so already."""
    return x.contiguous(memory_format=_SPATIAL_FORMATS[x.dim()])


def dense(bias: torch.Tensor | None) -> torch.Tensor | None:
    """`bias` one number after the other, as oneDNN reads it whatever its strides say."""
    return bias if bias is None or bias.is_contiguous() else bias.contiguous()


class _Last:
    """The last weight that was packed on real tensors; the packed one lives as long as the plain one."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] = ()
        self.weight: Callable[[], torch.Tensor | None] = lambda: None
        self.packed: torch.Tensor | None = None

    def keep(self, key: tuple[Any, ...], weight: torch.Tensor, packed: torch.Tensor) -> None:
        self.key, self.packed = key, packed
        self.weight = weakref.ref(weight, self.forget)

    def forget(self, _dead: Any = None) -> None:
        self.packed = None


_last = _Last()


def _packed(operator: Any, weight: torch.Tensor, *settings: Any) -> torch.Tensor:
    if type(weight) not in _PLAIN:  # traced: one node of the graph
        return operator(weight, *settings)
    key = (operator, settings, weight._version)
    if _last.packed is None or _last.weight() is not weight or _last.key != key:
        _last.keep(key, weight, operator(weight, *settings))
    assert _last.packed is not None
    return _last.packed


@cache
def declare_results() -> None:
    """Tell tracing what these operators of torch return, which torch leaves open."""

    def unchanged(weight: torch.Tensor, *_settings: Any) -> torch.Tensor:
        return torch.empty_like(weight, memory_format=torch.contiguous_format)

    def like_other(_x: torch.Tensor, other: torch.Tensor, *_settings: Any) -> torch.Tensor:
        return torch.empty_like(other, memory_format=_SPATIAL_FORMATS[other.dim()])

    for name, result in (
        ("mkldnn::_reorder_linear_weight", unchanged),
        ("mkldnn::_reorder_convolution_weight", unchanged),
        ("mkldnn::_convolution_pointwise.binary", like_other),
    ):
        try:
            torch.library.register_fake(name, result)
        except RuntimeError:  # this torch knows already
            continue
