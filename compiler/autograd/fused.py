"""Operators that our kernels fuse, for the minimum cut that decides what a forward keeps for its backward.

    y = hardswish(x)                  forward keeps x and y       ->       forward keeps x
    z = silu(y)
    dy = silu_backward(dz, y)         backward reads x and y      ->       backward reads x, and computes y again

torch's lists name the operators that remain after Inductor's decompositions. Here operators stay whole until they are
lowered, and the lists lack many of them: the cut would keep each value that an unlisted operator reads. A test asks for
each lowered operator to be in a list of torch's, in one of these, or to have a reason.
"""

from __future__ import annotations

from typing import Any

import torch

from ...rewrites.compat.min_cut import Fused

_VIEWS = ("diagonal", "split_with_sizes", "transpose", "unbind", "unfold")
# Each element is a function of a few elements of the operands, or one of them.
_AGAIN = (
    "_prelu_kernel", "_unsafe_index", "_unsafe_masked_index", "channel_shuffle", "constant_pad_nd", "diag_embed",
    "diagonal_scatter", "embedding", "flip", "floor_divide", "glu", "hardswish", "index_select", "leaky_relu",
    "new_full", "new_ones", "ones_like", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "roll", "select_scatter", "slice_scatter", "special_sinc", "take", "tril",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
)  # fmt: skip
_BACKWARD = (
    "_prelu_kernel", "binary_cross_entropy", "diagonal", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "huber_loss", "leaky_relu", "log_sigmoid", "mish", "mse_loss", "select", "slice", "smooth_l1_loss",
    "soft_margin_loss", "softplus", "softshrink",
    "_fused_rms_norm", "native_batch_norm", "native_group_norm", "native_layer_norm", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
)  # fmt: skip
_REDUCTIONS = (
    "_log_softmax", "_log_softmax_backward_data", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_safe_softmax", "_softmax", "_softmax_backward_data", "all", "amin",
    "aminmax", "argmin", "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss",
    "linalg_vector_norm", "logsumexp", "mse_loss", "nansum", "native_group_norm", "native_layer_norm",
    "_fused_rms_norm", "nll_loss_backward", "nll_loss_forward", "norm", "prod", "smooth_l1_loss", "soft_margin_loss",
    "std_mean",
)  # fmt: skip


def fused() -> Fused:
    """The operators of each kind that this version of torch has."""
    return Fused(_packets(_VIEWS), _packets(_AGAIN), _packets((*(f"{n}_backward" for n in _BACKWARD), *_REDUCTIONS)))


def _packets(names: tuple[str, ...]) -> frozenset[Any]:
    return frozenset(getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name))


__all__ = ["fused"]
