"""Which layout convolutions on a GPU want, without measuring: tensor cores read channels side by side.

    NCHW:  nchwToNhwc(x), convolution, nhwcToNchw(y)        NHWC:  convolution

In half precision cuDNN computes in NHWC only, so that each convolution on NCHW moves its input and its result once
more. Convolutions in groups (channels apart from each other) and in single precision have kernels for both layouts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import arguments, dtype, val
from ...rewrites.symbolic import hint

MOST_ASKED = 4  # kinds that are measured where measuring must decide: the largest say enough
_HALVES = (torch.float16, torch.bfloat16)
_BANDWIDTH = 2e12  # bytes a second: of a large GPU; a smaller one saves more


def is_on_cuda(node: fx.Node) -> bool:
    """Whether cuDNN computes a convolution, in a dtype for which it knows channels-last."""
    if val(node).device.type != "cuda" or dtype(node) not in (*_HALVES, torch.float32):
        return False
    return torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled


def seconds_saved(node: fx.Node) -> float | None:
    """Seconds that channels-last saves one convolution; None where only measuring tells."""
    if not is_on_cuda(node) or dtype(node) not in _HALVES or arguments(node)["groups"] != 1:
        return None
    moved = work(node)
    return 2 * moved * dtype(node).itemsize / _BANDWIDTH


def work(node: fx.Node) -> int:
    """Elements that a convolution reads and makes; symbolic sizes count with their examples."""
    return elements(node.args[0]) + elements(node)


def elements(node: Any) -> int:
    """Elements of a tensor; symbolic sizes count with their examples."""
    return math.prod(int(hint(size) or 1) for size in val(node).shape)
