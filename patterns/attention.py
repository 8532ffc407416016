"""Scaled dot-product attention: one pattern for all spellings.

    scores = query @ key_t [* scale] [tanh(. [+ inner]) * cap] [+ bias] [where(keep, ., fill)] [beside a sink]
    softmax(scores, -1) [dropout] @ value              ->      one attention kernel

The differences that the normal form keeps are optional parts or alternatives of the pattern. Kernels are measured.

    sdpa                 if nothing else reads the weights
    sdpa_with_weights    if something does: they are the second result
"""

from __future__ import annotations

from typing import Any

import torch

from ..rewrites.pattern import cast, choose, optional
from ..rewrites.rule import Numerics, register_pattern
from .attention_advice import ADVICE
from .attention_cuda import CUDA_KERNELS
from .attention_guards import (
    bias_is_floating,
    casts_keep_precision,
    casts_stay_floating,
    causal,
    compute_dtype,
    drawn_dtype,
    empty_rows,
    fill_hides_bias,
    fill_masks,
    floating,
    kept_weights,
    masks_fit,
    nan_policy,
    row_scale_is_per_row,
    rows_keep_a_key,
    sink_is_a_column,
    training,
    weights_are_used,
)  # fmt: skip
from .attention_kernels import CPU_KERNELS, MATH_KERNEL, WEIGHTS_KERNEL, with_eagers_rows_of_nan
from .attention_overlooked import overlooked_attentions
from .attention_samples import REFUSED, SAMPLES, WEIGHTS_REFUSED, WEIGHTS_SAMPLES
from .dtypes import result_dtype
from .hidden_rows import absorbing, bias_comes_last, selects, sums_lose_digits

_GUARDS = (
    floating, masks_fit, bias_is_floating, fill_masks, fill_hides_bias,
    row_scale_is_per_row, sink_is_a_column, casts_stay_floating, casts_keep_precision, rows_keep_a_key,
)  # fmt: skip
_DERIVED = {
    "causal": causal, "nan": nan_policy, "empty_rows": empty_rows, "selected": selects, "added_last": bias_comes_last,
    "low": sums_lose_digits, "absorbing": absorbing, "training": training,
    "compute": compute_dtype, "result": result_dtype, "drawn": drawn_dtype,
}  # fmt: skip
_DECLARED: dict[str, Any] = {
    "family": "attention",
    "advice": ADVICE,
    "dims": {"query": "... S D", "key_t": "... D T", "value": "... T E"},
    "numbers": ("scale", "cap", "fill", "p"),
    # ATen's kernel for CPUs uses an exp with errors of up to 20 units in the last place, forward and backward.
    "numerics": Numerics(slack=4.0, roundings=40, random="stream"),
    "nan": "same",
}


def _masked(scores: Any, factor: Any, bias: Any, keep: Any, fill: Any) -> Any:
    """Scores with their bias and their mask."""
    return choose(
        "mask",
        none=scores,
        bias=lambda: scores + bias,
        where=lambda: torch.where(keep, scores, fill),
        where_bias=lambda: torch.where(keep, scores, fill) + bias,
        bias_where=lambda: torch.where(keep, scores + bias, fill),
        factor_bias=lambda: scores * factor + bias,
    )


def _capped(scores: Any, inner: Any, cap: Any) -> Any:
    """Scores with an optional cap, and an optional bias inside of it."""
    return choose(
        "softcap",
        no=scores,
        yes=lambda: torch.tanh(scores) * cap,
        biased=lambda: torch.tanh(scores + inner) * cap,
    )


def _softmax(masked: Any, sink: Any) -> Any:
    """Softmax, optionally with one more score whose weight is dropped."""
    columns = optional("sink", masked, lambda m: torch.cat([m, sink], -1))
    weights = choose(
        "softmax",
        same=lambda: torch.softmax(columns, -1),
        fp32=lambda: torch.softmax(cast(columns, torch.float32), -1),
        safe=lambda: torch.ops.aten._safe_softmax(columns, -1),
    )
    return optional("sink", weights, lambda w: torch.ops.aten.slice(w, -1, 0, -1))


def _weights(  # noqa: PLR0913 - the parts of an attention
    query: Any, key_t: Any, scale: Any, row_scale: Any, inner: Any, cap: Any, factor: Any, bias: Any, keep: Any,
    fill: Any, sink: Any, p: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The weights of an attention before dropout, and those that multiply value."""
    scores = optional("cast", query @ key_t, cast)
    scaled = choose("scale", no=scores, number=lambda: scores * scale, rows=lambda: scores * row_scale)
    scores = optional("upcast", _capped(scaled, inner, cap), cast)
    weights = _softmax(_masked(scores, factor, bias, keep, fill), sink)
    whole = optional("downcast", weights, cast)
    dropped = optional("dropout", whole, lambda w: torch.nn.functional.dropout(w, p, True))
    return whole, optional("recast", dropped, cast)


@register_pattern(
    "sdpa",
    replacement=[with_eagers_rows_of_nan(kernel) for kernel in (*CPU_KERNELS, *CUDA_KERNELS, MATH_KERNEL)],
    samples=(*SAMPLES, *REFUSED),
    guards=_GUARDS,
    derived=_DERIVED,
    overlooked=overlooked_attentions,
    **_DECLARED,
)
def sdpa(  # noqa: PLR0913 - the parts of an attention
    query: Any, key_t: Any, value: Any, scale: Any, row_scale: Any, inner: Any, cap: Any, factor: Any, bias: Any,
    keep: Any, fill: Any, sink: Any, p: Any,
) -> Any:  # fmt: skip
    """softmax(query @ key_t * scale + mask) @ value, with every part but the products optional."""
    _, weights = _weights(query, key_t, scale, row_scale, inner, cap, factor, bias, keep, fill, sink, p)
    return weights @ value


@register_pattern(
    "sdpa_with_weights",
    replacement=[with_eagers_rows_of_nan(WEIGHTS_KERNEL)],
    samples=(*WEIGHTS_SAMPLES, *WEIGHTS_REFUSED),
    guards=(*_GUARDS, weights_are_used),
    derived=_DERIVED | {"kept": kept_weights},
    **_DECLARED,
)
def sdpa_with_weights(  # noqa: PLR0913 - the parts of an attention
    query: Any, key_t: Any, value: Any, scale: Any, row_scale: Any, inner: Any, cap: Any, factor: Any, bias: Any,
    keep: Any, fill: Any, sink: Any, p: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """`sdpa` whose weights have other readers, before or after dropout."""
    whole, weights = _weights(query, key_t, scale, row_scale, inner, cap, factor, bias, keep, fill, sink, p)
    return weights @ value, choose("weights", dropped=weights, whole=whole)
