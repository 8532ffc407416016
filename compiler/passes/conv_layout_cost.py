"""Estimates which layout convolutions on a GPU need, without measuring: tensor cores read channels side by side.

    NCHW:  nchwToNhwc(x), convolution, nhwcToNchw(y)        NHWC:  convolution

In half precision cuDNN computes in NHWC only, so that each convolution on NCHW copies its input and its result once
more. Convolutions of groups run one group after the other in either layout, but generated kernels (the template, which
reads NHWC) multiply groups side by side where each has channels enough for tensor cores. Convolutions of smaller groups
and in single precision have kernels for both layouts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import arguments, dtype, val
from ...rewrites.symbolic import hint

MOST_ASKED = 4  # most kinds that are measured: the largest ones determine the outcome
FEWEST = 16  # channels of a group: fewer leave tensor cores mostly idle
_HALVES = (torch.float16, torch.bfloat16)
_BANDWIDTH = 2e12  # bytes per second that a conversion moves on a large GPU; smaller GPUs save more


def is_on_cuda(node: fx.Node) -> bool:
    """Whether cuDNN computes a convolution, in a dtype for which it supports channels-last."""
    if val(node).device.type != "cuda" or dtype(node) not in (*_HALVES, torch.float32):
        return False
    return torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled


def seconds_saved(node: fx.Node) -> float | None:
    """The seconds that channels-last saves for one convolution; None if a measurement is needed."""
    if not is_on_cuda(node) or dtype(node) not in _HALVES or not fills_tensor_cores(node):
        return None
    moved = work(node)
    return 2 * moved * dtype(node).itemsize / _BANDWIDTH


def fills_tensor_cores(node: fx.Node) -> bool:
    """Whether a convolution, or its gradient, has one group, or channels enough in each."""
    values = arguments(node)
    channels = val(values["input"]).shape[1], val(values.get("grad_output", node)).shape[1]
    groups = values["groups"]
    groups = hint(val(groups)) or 1 if isinstance(groups, fx.Node) else groups
    return groups == 1 or (not values["transposed"] and min(hint(n) or 1 for n in channels) >= groups * FEWEST)


def work(node: fx.Node) -> int:
    """The number of elements that a convolution reads and writes; symbolic sizes count with their example values."""
    return elements(node.args[0]) + elements(node)


def elements(node: Any) -> int:
    """The number of elements of a tensor; symbolic sizes count with their example values."""
    return math.prod(int(hint(size) or 1) for size in val(node).shape)
