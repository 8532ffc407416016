"""Decomposes the calls of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` for inference into operators.

    _native_multi_head_attention(x, x, x, ...)   ->   linear, softmax(q k^T) v, linear
    _transformer_encoder_layer_fwd(x, ...)       ->   this attention, layer_norm, linear, gelu, linear

Each of them is one operator of ATen, whose kernel calls others. Rules would find no attention in it, and
autocast, which casts the arguments of these calls, would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ...rewrites.compat.attention import NATIVE_ATTENTION, NATIVE_ENCODER_LAYER

_PADDING = 1  # type of a mask over keys, (batch, keys); others have a row for each query
_USE_GELU = 7  # position of the argument `use_gelu`


def fast_path(target: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """The function of operators that computes what a call computes; None for other calls."""
    if target is NATIVE_ATTENTION:
        return attention
    if target is not NATIVE_ENCODER_LAYER:
        return None
    tanh = args[_USE_GELU] and args[0].device.type != "cpu"  # other devices approximate GELU, each in its own way
    return None if tanh else encoder_layer


def attention(  # noqa: PLR0913 - the operator's arguments
    query: Any, key: Any, value: Any, _width: int, heads: int, weight: Any, bias: Any, out_weight: Any, out_bias: Any,
    mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`_native_multi_head_attention`. Masks are true where keys are hidden; numbers count as truths there."""
    if query is key and key is value:
        projected = functional.linear(query, weight, bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
        projected = tuple(functional.linear(*part) for part in parts)
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in projected)
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = mask.to(torch.bool)
        scores = scores.masked_fill(hidden[:, None, None] if mask_type == _PADDING else hidden, -math.inf)
    weights = scores.softmax(-1)
    result = functional.linear((weights @ v).transpose(1, 2).flatten(2), out_weight, out_bias)
    if not need_weights:
        return result, None
    return result, weights.sum(1) / heads if average_attn_weights else weights


def encoder_layer(  # noqa: PLR0913 - the operator's arguments
    src: Any, width: int, heads: int, weight: Any, bias: Any, out_weight: Any, out_bias: Any, use_gelu: bool,
    norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any, norm_bias_2: Any,
    ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """`_transformer_encoder_layer_fwd`. The kernel adds in place: sums keep the dtype of what a layer computes."""

    def normalized(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (width,), weight, bias, eps)

    def attend(x: Any) -> Any:
        return attention(x, x, x, width, heads, weight, bias, out_weight, out_bias, mask, False, True, mask_type)[0]

    def feed_forward(x: Any) -> Any:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = _added(attend(normalized(src, norm_weight_1, norm_bias_1)), src)
        return _added(feed_forward(normalized(x, norm_weight_2, norm_bias_2)), x)
    x = normalized(_added(attend(src), src), norm_weight_1, norm_bias_1)
    return normalized(_added(feed_forward(x), x), norm_weight_2, norm_bias_2)


def _added(x: Any, y: Any) -> Any:
    return (x + y).to(x.dtype)
