"""Calls that eager refuses: by a dim, an index into nothing, or a dtype without a kernel, though a formula exists.

Tracing on metadata does not notice, so a kernel of ours would compute what eager does not. Such calls stay ATen's,
which raises eager's error when the program runs. If a later version of torch computes one, it is merely kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ...rewrites.graph import arguments
from .agreement import disagreement

_GREATEST = torch.iinfo(torch.int64).max
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_OF_NO_INTEGERS = """
    _adaptive_avg_pool3d _log_softmax _log_softmax_backward_data _native_batch_norm_legit.no_stats _prelu_kernel
    _softmax _softmax_backward_data adaptive_max_pool2d adaptive_max_pool3d binary_cross_entropy
    binary_cross_entropy_with_logits celu dist elu frac gelu glu hardshrink hardsigmoid hardswish huber_loss hypot
    leaky_relu lerp.Scalar lerp.Tensor log_sigmoid_forward logaddexp logaddexp2 logcumsumexp max_pool1d mish mse_loss
    native_batch_norm native_group_norm native_layer_norm nextafter nll_loss_forward round.decimals silu
    smooth_l1_loss soft_margin_loss softplus softshrink upsample_linear1d upsample_trilinear3d _batch_norm_with_update
    _native_batch_norm_legit grid_sampler_2d grid_sampler_3d max_unpool2d max_unpool3d glu_backward
    huber_loss_backward mish_backward mse_loss_backward nll_loss2d_forward smooth_l1_loss_backward
    upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward upsample_nearest1d_backward
    upsample_trilinear3d_backward _upsample_nearest_exact1d_backward multi_margin_loss multilabel_margin_loss_forward
    multilabel_margin_loss
    var var.dim var.correction std std.dim std.correction var_mean var_mean.dim var_mean.correction std_mean
    std_mean.dim std_mean.correction
"""
_OF_BYTES_ONLY = """
    _upsample_nearest_exact1d _upsample_nearest_exact2d upsample_bicubic2d upsample_bilinear2d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d
"""
_OF_LONGS_ONLY = "avg_pool2d avg_pool3d"
_OF_BOOLS_ONLY = "col2im im2col max_pool2d_with_indices_backward"
_OF_NO_BOOLS = """
    abs addcmul ceil div.Tensor_mode floor floor_divide fmod.Tensor hardtanh max_pool2d_with_indices
    max_pool3d_with_indices neg pow.Tensor_Tensor reflection_pad1d reflection_pad2d reflection_pad3d relu
    remainder.Tensor replication_pad1d replication_pad2d replication_pad3d round threshold trunc linalg_cross trace
    argmax argmin _safe_softmax clamp clamp.Tensor clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor
"""
_MARGINS = (
    "aten.multi_margin_loss.default", "aten.multilabel_margin_loss.default",
    "aten.multilabel_margin_loss_forward.default",
)  # fmt: skip
# By the device: kernels that exist for others.
_ON_DEVICES = {
    "cpu": (
        (("aten.avg_pool3d.default",), (torch.bfloat16, torch.float16)),
        (_MARGINS, (torch.bfloat16, torch.float16, torch.int64)),  # with their labels
    ),
    "cuda": (
        (("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default"), _INTEGERS),
        (("aten.native_dropout_backward.default",), _INTEGERS),
        (("aten.angle.default",), (torch.bfloat16, torch.float16)),
    ),
}
# Whatever the other tensors are.
_OF_ANY_BOOL = ("aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Tensor", "aten.rsub.Scalar", "aten.dist.default")
_OF_ONE_DTYPE = ("aten.heaviside.default", "aten.linalg_cross.default")
# Whose rules for metadata take any dim; those of other operators raise while a program is traced.
_OF_ANY_DIM = (
    "aten._softmax.default", "aten._safe_softmax.default", "aten.softmax.int", "aten.cummax.default",
    "aten.cummin.default", "aten.index_reduce.default",
)  # fmt: skip
_WITH_MODES = (
    "aten.index_reduce.default", "aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar",
    "aten.rsub.Tensor", "aten.rsub.Scalar",
)  # fmt: skip
# Which look at no index where there is nothing to look up, and eager's does.
_LOOK_UPS = ("aten.index.Tensor", "aten.index_put.default", "aten.index_select.default", "aten.embedding.default")
_REDUCTIONS_BY_INDEX = ("prod", "mean", "amax", "amin")
_REMAINDERS = ("aten.remainder.Scalar", "aten.fmod.Scalar")
_SCANS = ("aten.cumsum.default", "aten.cumprod.default")
_BITS = ("aten.bitwise_and", "aten.bitwise_or", "aten.bitwise_xor", "aten.bitwise_not")
_SHIFTS = ("aten.bitwise_left_shift", "aten.bitwise_right_shift", "aten.__lshift__", "aten.__rshift__")


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


def refused(node: fx.Node) -> str | None:
    """Why eager refuses a call for the dtypes of its tensors or its dim; None where it does not."""
    name, tensors = str(node.target), list(_tensors(node))
    dtypes = {x.dtype for x in tensors}
    against = disagreement(node)
    if against is not None or not dtypes:
        return against
    device = tensors[0].device.type
    if name in _LOOK_UPS and any(type(size) is int and size == 0 for size in tensors[0].shape):
        return "eager may refuse an index into a dim of size 0"
    if name in _WITH_MODES and _refused_mode(node, dtypes):
        return "eager refuses this mode of it"
    if dtypes == {torch.bool} and any(type(n) is int and n > _GREATEST for n in arguments(node).values()):
        return "eager refuses numbers beyond 64 bits beside truth values"
    if _refused_alike(name, dtypes, device) or _refused_mixture(name, dtypes, node):
        return f"eager refuses {', '.join(sorted(map(str, dtypes)))}"
    dim, rank = node.args[1] if name in _OF_ANY_DIM else 0, max(tensors[0].dim(), 1)
    return None if not isinstance(dim, int) or -rank <= dim < rank else f"eager refuses dim {dim} of {rank}"


def _refused_alike(name: str, dtypes: set[torch.dtype], device: str) -> bool:
    """By the table, which is of calls whose tensors are all of dtypes without a kernel."""
    if dtypes <= REFUSED.get(name, frozenset()):
        return True
    return any(name in names and dtypes.issubset(without) for names, without in _ON_DEVICES.get(device, ()))


def _refused_mode(node: fx.Node, dtypes: set[torch.dtype]) -> bool:
    """By a mode that the call names, which rules for metadata do not look at."""
    values = arguments(node)
    if "alpha" in values:
        return _refused_factor(values["alpha"], _dtype(node), negated="sub" in str(node.target))
    if values["reduce"] not in _REDUCTIONS_BY_INDEX:
        return True
    if torch.bool in dtypes:
        return values["reduce"] == "mean" or not values["include_self"] or values["self"].meta["val"].dim() < 2
    return _dtype(node) not in _INTEGERS and any(dtype.is_complex for dtype in dtypes)


def _refused_factor(alpha: object, dtype: torch.dtype | None, negated: bool) -> bool:
    """A factor that is no number, or whose negative, by which a difference adds, is too large for the dtype."""
    if isinstance(alpha, bool):
        return dtype != torch.bool
    narrow = dtype in (torch.int8, torch.int16, torch.int32)
    return negated and narrow and alpha == torch.iinfo(dtype).min  # type: ignore[arg-type]


def _refused_mixture(name: str, dtypes: set[torch.dtype], node: fx.Node) -> bool:
    """By what the dtypes are together: one of them, the one computed in, or that there are several."""
    if name in _OF_ANY_BOOL:
        return torch.bool in dtypes
    if name in _SCANS or name in _REMAINDERS:
        return _dtype(node) == torch.bool
    if name in _OF_ONE_DTYPE:
        return len(dtypes) > 1
    if name == "aten.ldexp.Tensor":
        x, exponent = map(_dtype, node.args)
        return exponent == torch.bool and x is not None and x.is_floating_point
    if name.startswith("aten.addcdiv."):
        return all(_dtype(arg) in _INTEGERS for arg in node.args[1:3])
    made = _dtype(node)
    if name.startswith(_SHIFTS):
        return made not in _INTEGERS or made == torch.bool
    return name.startswith(_BITS) and made not in _INTEGERS


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    """The tensors that a call reads."""
    metas = (x.meta.get("val") for x in node.all_input_nodes)
    return (meta for meta in metas if isinstance(meta, torch.Tensor))


def _dtype(value: object) -> torch.dtype | None:
    meta = value.meta.get("val") if isinstance(value, fx.Node) else None
    return meta.dtype if isinstance(meta, torch.Tensor) else None
