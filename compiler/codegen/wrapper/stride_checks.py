"""Strides that a graph was compiled for, and that a library's call may not keep, or not take.

While a graph is traced, metadata says how the result of a convolution lies in memory; which of its algorithms runs, and
so what it makes, is decided when it runs. Generated kernels compute addresses: what they read must lie as it was told.

    convolution(x, w)      told: channels last       made: contiguous       ->  copied once, to channels last

Some operators take contiguous images only, which eager's functions around them see to. The operands of such a
call are made contiguous if no kernel computes it (there is no Triton, or a kernel was refused): the graph may lay them
otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.compat import OpOverload
from ....rewrites.symbolic import hint, known_equal

# Calls whose results are contiguous, or as told, whatever runs.
_ATEN = (
    "mm addmm _addmm_activation bmm baddbmm mv dot linear embedding empty full arange sort topk "
    "_scaled_dot_product_flash_attention_for_cpu"
)
_TORCHS = ("aten", "prims", "mkldnn")  # whose rows are rows
# Weights in layouts of oneDNN's own have no strides to look at.
_MKLDNN = "_linear_pointwise _reorder_linear_weight _reorder_convolution_weight"
_TRUSTED = frozenset([*(f"aten.{name}" for name in _ATEN.split()), *(f"mkldnn.{name}" for name in _MKLDNN.split())])

_CONTIGUOUS = frozenset({"aten.native_group_norm", "aten.native_group_norm_backward"})  # of images on a GPU


def wants_contiguous(target: Any, operand: Any) -> bool:
    """Whether an operator takes an operand only if it is contiguous, which this one may not be."""
    if not isinstance(target, OpOverload) or not isinstance(operand, torch.Tensor) or operand.device.type == "cpu":
        return False
    return f"{target.namespace}.{compat.packet_name(target)}" in _CONTIGUOUS and operand.dim() > 2


def is_doubtful(target: Any, result: Any) -> bool:
    """Whether the call of an operator may lay out its result in another way than metadata says."""
    if not isinstance(target, OpOverload) or not isinstance(result, torch.Tensor):
        return False
    if result.dim() < (2 if target.namespace in _TORCHS else 1):
        return False
    if compat.schema(target).is_mutable or any(r.alias_info is not None for r in compat.schema(target).returns):
        return False  # a view, or a value that is there already
    return result.layout == torch.strided and not is_trusted(target)


def is_trusted(target: Any) -> bool:
    """Whether the results of an operator are contiguous, or as told, whatever runs."""
    return isinstance(target, OpOverload) and f"{target.namespace}.{compat.packet_name(target)}" in _TRUSTED


def order_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dims of a tensor from the outermost to the innermost in memory; None where it is not dense.

    Sizes that are symbolic count with their example values; dims of size 1 have no place, and come first. Of sizes that
    are known when the program runs only, a tensor is contiguous for all of them or for none.
    """
    sizes, strides = ([hint(n) for n in part] for part in (tensor.shape, tensor.stride()))
    if None in (*sizes, *strides):
        return tuple(range(tensor.dim())) if _is_contiguous(tensor) else None
    order = sorted(range(len(sizes)), key=lambda d: (sizes[d] != 1, -strides[d], -sizes[d]))
    return tuple(order) if is_dense(sizes, strides, tuple(order)) else None


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is contiguous whatever its sizes."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not known_equal(stride, step):
            return False
        step = step * size
    return True


def is_dense(sizes: Any, strides: Any, order: tuple[int, ...]) -> bool:
    """Whether strides are those of contiguous memory, dims taken in `order`; those of dims of size 1 say nothing."""
    step = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != step:
            return False
        step *= max(sizes[dim], 1)
    return True


def laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor dense in memory, dims from the outermost to the innermost in `order`: itself if it is so."""
    if is_dense(tensor.shape, tensor.stride(), order):
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
