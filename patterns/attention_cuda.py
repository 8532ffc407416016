"""The CUDA kernels for scaled dot-product attention: cuDNN, flash and memory-efficient.

All of them return the result first. With ``rng="statistical"`` they draw dropout from their own counter-based stream.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, shape, val
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate
from ..rewrites.symbolic import known, known_equal
from .attention_guards import compute_dtype
from .attention_kernels import (
    AttentionOperands,
    Heads,
    device_of,
    head_size,
    keep_nan,
    like,
    not_allowed,
    refused,
    sizes_positive,
    softmax_is_plain,
    wants_mask_gradient,
)
from .hidden_rows import lifted
from .masks import is_causal_match, is_kept_by

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_ALIGNMENT = 8  # elements of the innermost dim in one load of the kernels
_CUDNN_HEAD = 128
_WIDE_CUDNN_HEAD = 256  # from cuDNN 9.5.1 on Hopper, as torch's own choice has it
_FLASH_HEAD = 256


def _heads(attention: AttentionOperands) -> Heads:
    """The operands of a kernel that takes a mask; in training they have no hidden rows."""
    heads = attention.heads()
    if heads.mask is None or attention.training or attention.absorbing == -torch.inf:
        return heads
    query, mask = lifted(heads.query, heads.mask, attention.absorbing, selected=attention.selected)
    return replace(heads, query=query, mask=mask)


def _kernel_mask(heads: Heads) -> torch.Tensor | None:
    """The mask in the dtype of query, with finite elements kept finite and a column for each key."""
    if heads.mask is None:
        return None
    mask, columns = like(heads.mask, heads.query.dtype), heads.key.shape[2]
    if not known_equal(mask.shape[-1], columns):
        mask = mask.expand(*mask.shape[:-1], columns)
    return mask.contiguous()


def cudnn(*operands: Any, **derived: Any) -> torch.Tensor:
    """cuDNN's fused attention."""
    attention = AttentionOperands(*operands, **derived)
    heads = _heads(attention)
    q, k, v, mask = heads.query, heads.key, heads.value, _kernel_mask(heads)
    out = aten._scaled_dot_product_cudnn_attention(
        q, k, v, mask, attention.training, attention.p or 0.0, attention.causal, False, scale=heads.factor
    )[0]
    return attention.restore(keep_nan(attention, out, replace(heads, mask=mask), shows_nan=True))


def flash(*operands: Any, **derived: Any) -> torch.Tensor:
    """FlashAttention-2, which supports the causal mask only."""
    attention = AttentionOperands(*operands, **derived)
    heads = attention.heads()
    out = aten._scaled_dot_product_flash_attention(
        heads.query, heads.key, heads.value, attention.p or 0.0, attention.causal, False, scale=heads.factor
    )[0]
    return attention.restore(keep_nan(attention, out, replace(heads, mask=None), shows_nan=True))


def efficient(*operands: Any, **derived: Any) -> torch.Tensor:
    """The memory-efficient kernel, whose mask must have the shape of the scores and aligned rows."""
    attention = AttentionOperands(*operands, **derived)
    heads = _heads(attention)
    q, k, v, mask = heads.query, heads.key, heads.value, _kernel_mask(heads)
    spread = None if mask is None else _aligned(mask).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    out = aten._scaled_dot_product_efficient_attention(
        q, k, v, spread, attention.training, attention.p or 0.0, attention.causal, scale=heads.factor
    )[0]
    return attention.restore(keep_nan(attention, out, replace(heads, mask=mask), shows_nan=True))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that start at aligned addresses; a view of a wider mask if necessary."""
    columns, step = mask.shape[-1], 2 * _ALIGNMENT
    if known(columns % step == 0):
        return mask
    padded = torch.nn.functional.pad(mask, (0, step - columns % step))
    return padded[..., :columns]


def _basics(name: str, match: Binding, policy: Mapping[str, str], dtypes: tuple[torch.dtype, ...]) -> Reason | None:
    query = match.operands["query"]
    if device_of(match) != "cuda":
        return refused(name, "not on a CUDA device", match)
    if not sizes_positive(match):
        return refused(name, "a size may be zero", match, "query", "key_t")
    if dtype(match.matched[0]) not in dtypes:
        return refused(name, f"not for {dtype(query)}", match)
    if head_size(match) is None or not known(head_size(match) % _ALIGNMENT == 0):
        return refused(name, f"the head size is not one multiple of {_ALIGNMENT}", match, "query", "value")
    if "sink" in match.operands:
        return refused(name, "it takes no sink", match, "sink")
    reason = not_allowed(name, match, policy) or softmax_is_plain(name, match) or _mask_is_kept(name, match, policy)
    if reason is not None:
        return reason
    if "p" in match.operands and policy.get("rng") == "eager":
        return refused(name, "it draws dropout from another random stream than eager (option rng='statistical')", match)
    return None


def _mask_is_kept(name: str, match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """The kernels read the mask in the dtype of query."""
    bias, kind = match.operands.get("bias"), compute_dtype(match, policy)
    if bias is None or is_causal_match(match) or is_kept_by(bias, kind):
        return None
    return refused(name, f"the mask, {describe(bias)}, would be rounded to {kind}", match, "bias")


def cudnn_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Half precision, heads of at most 128 elements, or of 256 on Hopper, more than one row."""
    reason = _basics("cudnn", match, policy, _HALF)
    if reason is not None:
        return reason
    widest = _WIDE_CUDNN_HEAD if _takes_wide_heads(val(match.operands["query"]).device) else _CUDNN_HEAD
    if not known(head_size(match) <= widest):
        return refused("cudnn", f"heads wider than {widest}", match)
    if known_equal(shape(match.operands["query"])[-2], 1) or known_equal(shape(match.operands["key_t"])[-1], 1):
        return refused("cudnn", "one row only", match)
    if wants_mask_gradient(match):
        return refused("cudnn", "the mask needs gradients", match, "bias")
    return None


@functools.cache
def _takes_wide_heads(device: torch.device) -> bool:
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0) and (torch.backends.cudnn.version() or 0) >= 90501


def flash_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Half precision, and no mask but one that is known to be causal."""
    reason = _basics("flash", match, policy, _HALF)
    if reason is not None:
        return reason
    if not known(head_size(match) <= _FLASH_HEAD):
        return refused("flash", f"heads wider than {_FLASH_HEAD}", match)
    masks = [n for n in ("bias", "keep") if n in match.operands]
    if masks and not is_causal_match(match):
        return refused("flash", "it takes no mask", match, *masks)
    return None


def efficient_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Any mask; also single precision if infinite operands may give NaN.

    Its float32 products split operands into upper and lower bits, which gives inf - inf for infinity.
    """
    reason = _basics("efficient", match, policy, (*_HALF, torch.float32))
    if reason is not None:
        return reason
    if dtype(match.matched[0]) == torch.float32 and policy.get("nan") != "safe":
        return refused("efficient", "in float32 it turns infinite operands into NaN (option nan='safe')", match)
    return None


CUDA_KERNELS = (
    Candidate("cudnn", cudnn, cudnn_applies),
    Candidate("flash", flash, flash_applies),
    Candidate("efficient", efficient, efficient_applies),
)
