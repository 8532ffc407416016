"""Estimates which layout convolutions on a GPU need, without measuring: tensor cores read channels side by side.

    NCHW:  nchwToNhwc(x), convolution, nhwcToNchw(y)        NHWC:  convolution

In half precision cuDNN computes in NHWC only, so that each convolution on NCHW copies its input and its result once
more. Grouped convolutions and convolutions in single precision have kernels for both layouts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import arguments, dtype, val
from ...rewrites.symbolic import hint

MOST_ASKED = 4  # most kinds that are measured: the largest ones determine the outcome
_HALVES = (torch.float16, torch.bfloat16)
_BANDWIDTH = 2e12  # bytes per second that a conversion moves on a large GPU; smaller GPUs save more


def is_on_cuda(node: fx.Node) -> bool:
    """Whether cuDNN computes a convolution, in a dtype for which it supports channels-last."""
    if val(node).device.type != "cuda" or dtype(node) not in (*_HALVES, torch.float32):
        return False
    return torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled


def seconds_saved(node: fx.Node) -> float | None:
    """The seconds that channels-last saves for one convolution; None if a measurement is needed."""
    if not is_on_cuda(node) or dtype(node) not in _HALVES or arguments(node)["groups"] != 1:
        return None
    moved = work(node)
    return 2 * moved * dtype(node).itemsize / _BANDWIDTH


def work(node: fx.Node) -> int:
    """The number of elements that a convolution reads and writes; symbolic sizes count with their example values."""
    return elements(node.args[0]) + elements(node)


def elements(node: Any) -> int:
    """The number of elements of a tensor; symbolic sizes count with their example values."""
    return math.prod(int(hint(size) or 1) for size in val(node).shape)
