"""What eager refuses: operators whose kernels do not exist for a dtype, though their formula does.

Tracing on metadata does not notice, so a kernel of ours would compute what eager does not. Such calls stay ATen's,
which raises eager's error when the program runs. Where a later version of torch computes one, the call is merely kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_OF_NO_INTEGERS = """
    _adaptive_avg_pool3d _native_batch_norm_legit.no_stats _prelu_kernel _softmax_backward_data adaptive_max_pool2d
    adaptive_max_pool3d binary_cross_entropy binary_cross_entropy_with_logits celu dist elu frac gelu glu hardshrink
    hardsigmoid hardswish huber_loss hypot leaky_relu lerp.Scalar lerp.Tensor log_sigmoid_forward logaddexp logaddexp2
    logcumsumexp mish mse_loss native_batch_norm native_group_norm native_layer_norm nextafter nll_loss_forward
    round.decimals silu smooth_l1_loss soft_margin_loss softplus softshrink upsample_linear1d upsample_trilinear3d
    _batch_norm_with_update _native_batch_norm_legit grid_sampler_2d grid_sampler_3d max_unpool2d max_unpool3d
    multi_margin_loss multilabel_margin_loss_forward
"""
_OF_BYTES_ONLY = """
    _upsample_nearest_exact1d _upsample_nearest_exact2d upsample_bicubic2d upsample_bilinear2d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d
"""
_OF_LONGS_ONLY = "avg_pool2d avg_pool3d"
_OF_BOOLS_ONLY = "im2col max_pool2d_with_indices_backward"
_OF_NO_BOOLS = """
    abs addcmul ceil div.Tensor_mode floor floor_divide fmod.Tensor hardtanh max_pool2d_with_indices
    max_pool3d_with_indices neg pow.Tensor_Tensor reflection_pad1d reflection_pad2d reflection_pad3d relu
    remainder.Tensor replication_pad1d replication_pad2d replication_pad3d round rsub.Tensor sub.Tensor threshold trunc
    linalg_cross trace
"""


def _table(names: str, *taken: torch.dtype) -> dict[str, frozenset[torch.dtype]]:
    refused = frozenset(_INTEGERS) - set(taken)
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": refused for name in names.split()}


REFUSED: dict[str, frozenset[torch.dtype]] = {
    **_table(_OF_NO_INTEGERS),
    **_table(_OF_BYTES_ONLY, torch.uint8),
    **_table(_OF_LONGS_ONLY, torch.int64),
    **_table(_OF_BOOLS_ONLY, torch.bool),
    **_table(_OF_NO_BOOLS, *(dtype for dtype in _INTEGERS if dtype != torch.bool)),
}


def refused(name: str, dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """The dtype for which eager refuses an operator, where it refuses those of all its tensors."""
    table, given = REFUSED.get(name), list(dtypes)
    return given[0] if table is not None and given and table.issuperset(given) else None
