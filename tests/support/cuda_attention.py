"""The GPU's library kernels for attention, on tensors of the CPU.

run(aten._scaled_dot_product_cudnn_attention.default, (q, k, v, bias, True), {"scale": 0.125})      a call of a graph

Scores become powers of two as in those kernels: a product with log2(e), minus that of the largest, which alone is
rounded. Layouts and sizes of results are those that torch states for the operator. Without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten
_LOG2_E = 1 / math.log(2)


def scores_of(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float) -> torch.Tensor:
    """Scores in float32, with the mask."""
    scores = (q.float() @ k.float().mT) * scale
    scores = scores if bias is None else scores + bias.float()
    rows, columns = scores.shape[-2:]
    return scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1), -math.inf) if causal else scores


def attention(v: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the logarithms of sums."""
    top = scores.amax(-1, keepdim=True)
    powers = torch.exp2(scores.double() * _LOG2_E - (top * _LOG2_E).double()).float()
    total = powers.sum(-1, keepdim=True)
    return (powers / total) @ v.float(), (top + total.log()).squeeze(-1)


def _forward(given: Mapping[str, Any], scale: float) -> list[torch.Tensor]:
    bias = given.get("attn_bias")
    scores = scores_of(given["query"], given["key"], bias, given["is_causal"], scale)
    return list(attention(given["value"], scores))


def _backward(given: Mapping[str, Any], scale: float) -> list[torch.Tensor]:
    q, k, v, out = (given[name].float() for name in ("query", "key", "value", "out"))
    bias = given.get("attn_bias")
    bias = bias if bias is not None and bias.numel() else None
    grad = next(x for name, x in given.items() if name.startswith("grad_out")).float()
    sums = given["logsumexp"].reshape(*q.shape[:2], -1)[..., : q.shape[2], None]
    weights = (scores_of(q, k, bias, given["is_causal"], scale) - sums).exp()
    slopes = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
    return [slopes @ k * scale, slopes.mT @ q * scale, weights.mT @ grad, slopes]


KERNELS = {
    getattr(aten, f"_scaled_dot_product_{name}_attention{way}").default: run
    for name in ("cudnn", "efficient", "flash")
    for way, run in (("", _forward), ("_backward", _backward))
}


def run(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a call gives; numbers that only its backward reads are zeros."""
    named = {x.name: x.default_value for x in target._schema.arguments if x.has_default_value()}
    named |= dict(zip((x.name for x in target._schema.arguments), args, strict=False)) | dict(kwargs)
    assert not named["dropout_p"]
    scale = named["scale"] if named["scale"] is not None else named["query"].shape[-1] ** -0.5
    results = KERNELS[target](named, scale)
    made = tree_map(_zeros, target(*tree_map(_meta, tuple(args)), **dict(kwargs)))
    for place, result in zip(made, results, strict=False):
        if isinstance(place, torch.Tensor) and place.numel():
            whole = result.reshape(*result.shape, *[1] * (place.dim() - result.dim()))
            place[tuple(slice(n) for n in whole.shape)] = whole.to(place.dtype)
    return tuple(made)


def _meta(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x


def _zeros(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu").zero_()
