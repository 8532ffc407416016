"""The dtype that eager gives, where torch's own metadata says otherwise.

Metadata of some operators promotes what their kernels do not: the result is made like one operand.

    mse_loss_backward(grad: float64, x: float32, y: float64, mean)       fake: float64      eager: float32

torch 2.11 has the indices and counts of `unique` and `bincount` in the dtype of their elements; the kernels give int64,
and sums of weights in float32 or float64.

Statistics of norms of 16 bits are float32 on CPUs where parameters are, as under autocast; metadata has the images'.

    native_group_norm(x: bfloat16, weight: float32)         fake: three bfloat16     eager: bfloat16, float32, float32

A call that gives another dtype than was told is memory read as something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import OpOverload

# The operand that a kernel makes its result like; None: what all operands promote to.
_LIKE: dict[str | None, str] = {
    "self": (
        "huber_loss mish_backward mse_loss_backward smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward"
    ),
    "target": "binary_cross_entropy_with_logits",
    "mean": "normal",
    None: "threshold_backward hardtanh_backward",
}
_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
# What a norm's kernel makes, and whatever of the first one given of these is float32 beside an input of 16 bits.
_NORMS = {
    "native_group_norm native_layer_norm": ("weight", "bias"),
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional "
    "native_batch_norm_backward": ("weight", "bias", "running_mean", "running_var", "save_mean"),
    "native_group_norm_backward": ("mean",),
}
_PARAMETERS = {name: given for names, given in _NORMS.items() for name in names.split()}
_FLOAT16 = (torch.bfloat16, torch.float16)
_UNIQUE = frozenset(("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"))
_OPERANDS = {name: operand for operand, names in _LIKE.items() for name in names.split()}


def of_eagers_dtype(target: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of a call on fake tensors in the dtype that eager gives it: itself where torch has that.

    Args:
        target: the operator.
        args: its arguments.
        kwargs: those by name.
        result: what torch gave: a fake tensor, or several.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return result
    if compat.packet_name(target) == _FLASH:
        return _with_sums_of(result)
    if compat.packet_name(target) in _UNIQUE:
        return result[0], *(_in(torch.int64, x) for x in result[1:])
    if compat.packet_name(target) in _PARAMETERS:
        return _of_norm(compat.packet_name(target), _tensors(target, args, kwargs), result)
    if not isinstance(result, torch.Tensor):
        return result
    if compat.packet_name(target) == "bincount":
        return _in(_of_counts(_tensors(target, args, kwargs).get("weights")), result)
    if compat.packet_name(target) not in _OPERANDS:
        return result
    dtype = _dtype(_OPERANDS[compat.packet_name(target)], _tensors(target, args, kwargs))
    return result if dtype is None else _in(dtype, result)


def _in(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == dtype else x.new_empty_strided(x.shape, x.stride(), dtype=dtype)


def _of_counts(weights: torch.Tensor | None) -> torch.dtype:
    if weights is None:
        return torch.int64
    return torch.float32 if weights.dtype == torch.float32 else torch.float64


def _with_sums_of(result: Any) -> Any:
    """The results of the CPU's attention kernel, the logarithms of its row sums as wide as it computes them.

    torch 2.11 says float32 of queries in float64.
    """
    out, sums = result
    return (out, _in(torch.float64, sums)) if out.dtype == torch.float64 else result


def _of_norm(name: str, tensors: dict[str, torch.Tensor], result: Any) -> Any:
    """The results of a norm, or of its derivative: what is like the input, two of sums, running ones as they are given.

    Those in the middle, if any, are bytes.
    """
    x = tensors["input"]
    if x.device.type != "cpu" or not isinstance(result, (tuple, list)):
        return result
    parameter = next((tensors[given] for given in _PARAMETERS[name] if given in tensors), x)
    wide = torch.float32 if x.dtype in _FLOAT16 and parameter.dtype == torch.float32 else x.dtype
    dtypes = [x.dtype, wide, wide, *(y.dtype for y in result[3:])]
    if name.endswith("_functional"):
        dtypes[-2:] = [tensors["running_mean"].dtype, tensors["running_var"].dtype]
    return tuple(y if y is None else _in(dtype, y) for y, dtype in zip(result, dtypes, strict=True))


def _dtype(operand: str | None, tensors: dict[str, torch.Tensor]) -> torch.dtype | None:
    if operand is not None:
        return tensors[operand].dtype if operand in tensors else None
    return reduce(torch.promote_types, (x.dtype for x in tensors.values()))


def _tensors(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that a call is given, by the names of its schema."""
    given = dict(zip((a.name for a in compat.schema(target).arguments), args, strict=False)) | kwargs
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
