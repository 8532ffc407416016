"""Scaled dot-product attention: one rule for every spelling.

    scores = query @ key_t [* scale] [+ bias] [where(keep, ., fill)]
    softmax(scores, -1) [dropout] @ value              ->      one attention kernel

What normal form cannot erase is an optional part or an alternative here. Which kernel runs is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..rewrites.effects import wants_gradient
from ..rewrites.graph import describe, dtype, is_tensor, op_name, rank, shape, val
from ..rewrites.matcher import Binding
from ..rewrites.pattern import cast, choose, optional
from ..rewrites.reason import Reason
from ..rewrites.rule import Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known_equal
from .attention_cuda import CUDA_KERNELS
from .attention_kernels import CPU_KERNELS, MATH_KERNEL
from .masks import is_causal_match, may_empty_rows

_LEAST_FILL = -1e4
_LEAST_FILL_BELOW_BIAS = -1e9  # so low that what is added to it hardly shows


def floating(query: Any, key_t: Any, value: Any) -> Reason | None:
    """query, key and value are real floating tensors on one device."""
    tensors = (query, key_t, value)
    if not all(dtype(t).is_floating_point for t in tensors):
        return Reason("dtype-not-floating", "attention needs floating operands", tensors, "float", describe(query))
    if len({val(t).device for t in tensors}) > 1:
        return Reason("devices-differ", "query, key and value live on different devices", tensors)
    return None


def matrices(query: Any, key_t: Any, value: Any) -> Reason | None:
    """query, key and value have a batch of matrices each."""
    for t in (query, key_t, value):
        if rank(t) < 2:
            return Reason("rank-too-low", "attention needs matrices", (t,), "2 dims or more", describe(t))
    return None


def masks_fit(query: Any, key_t: Any, bias: Any = None, keep: Any = None, row_scale: Any = None) -> Reason | None:
    """A mask broadcasts to the scores, and does not enlarge them."""
    rows, columns = shape(query)[-2], shape(key_t)[-1]
    for mask in (bias, keep, row_scale):
        if not is_tensor(mask):
            continue
        for size, full in zip(reversed(shape(mask)), (columns, rows), strict=False):
            if not (known_equal(size, 1) or known_equal(size, full)):
                found = describe(mask)
                return Reason(
                    "mask-shape", f"{found} does not broadcast to the scores", (mask,), f"{rows} x {columns}", found
                )
    return None


def keeps_are_boolean(keep: Any) -> Reason | None:
    """What selects scores is boolean."""
    if dtype(keep) != torch.bool:
        return Reason(
            "mask-not-boolean", f"{describe(keep)} selects scores but is not boolean", (keep,), "bool", describe(keep)
        )
    return None


def bias_is_floating(bias: Any) -> Reason | None:
    """What is added to scores is a floating tensor."""
    if not dtype(bias).is_floating_point:
        return Reason("bias-not-floating", f"{describe(bias)} is added to scores", (bias,), "float", describe(bias))
    return None


def fill_masks(fill: Any) -> Reason | None:
    """What masked scores are replaced by is so low that their weight is zero."""
    number = val(fill)
    if isinstance(number, (int, float)) and number <= _LEAST_FILL:
        return None
    nodes = (fill,) if is_tensor(fill) else ()
    return Reason(
        "fill-not-a-mask", f"masked scores become {describe(fill)}", nodes, f"<= {_LEAST_FILL:g}", describe(fill)
    )


def fill_hides_bias(match: Binding) -> Reason | None:
    """Where a bias is added to masked scores, none of it is left in a row with nothing to keep."""
    fill = match.operands.get("fill")
    if dict(match.tags)["mask"] != "where_bias" or val(fill) <= _LEAST_FILL_BELOW_BIAS:
        return None
    found, bias = describe(fill), match.operands["bias"]
    message = f"masked scores become {found}, and a bias is added to that"
    return Reason("fill-not-a-mask", message, (bias,), f"<= {_LEAST_FILL_BELOW_BIAS:g}", found)


def row_scale_is_per_row(row_scale: Any) -> Reason | None:
    """A tensor that scales scores is constant along the keys, so that it can scale query instead."""
    if rank(row_scale) == 0 or known_equal(shape(row_scale)[-1], 1):
        return None
    return Reason(
        "scale-varies-along-keys",
        f"{describe(row_scale)} multiplies scores",
        (row_scale,),
        "last dim 1",
        describe(row_scale),
    )


def scores_keep_their_rows(match: Binding) -> Reason | None:
    """No part of the match casts to something that is not floating, or changes the scores' two last dims."""
    rows, columns = (shape(match.operands[n])[i] for n, i in (("query", -2), ("key_t", -1)))
    for node in match.matched:
        if not dtype(node).is_floating_point:
            return Reason(
                "cast-not-floating", f"{describe(node)} leaves the floating numbers", (node,), "float", describe(node)
            )
        last = op_name(node) == "aten.softmax"
        if last and not (known_equal(shape(node)[-2], rows) and known_equal(shape(node)[-1], columns)):
            return Reason("mask-shape", "a mask enlarges the scores", (node,), f"{rows} x {columns}", describe(node))
    return None


def compute_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype:
    """The dtype to compute in: that of the scores, unless query and key were only cast up from the result's."""
    products = [n for n in match.matched if op_name(n) == "aten.matmul"]
    result, scores = dtype(products[0]), dtype(products[1])
    if torch.finfo(scores).bits <= torch.finfo(result).bits:
        return result
    return result if all(_cast_from(match.operands[n], result) for n in ("query", "key_t")) else scores


def _cast_from(node: Any, source: torch.dtype) -> bool:
    """Whether a tensor is a cast of one with dtype `source`, perhaps seen through a permutation."""
    while op_name(node) in ("aten.permute", "aten.reshape"):
        node = node.args[0]
    return op_name(node) == "aten.to" and dtype(node.args[0]) == source


def result_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype:
    """The dtype of what is replaced."""
    return dtype(match.matched[0])


def nan_policy(match: Binding, policy: Mapping[str, str]) -> str:
    """``"eager"`` where rows that are NaN in eager code must stay NaN, ``"safe"`` where they may be finite."""
    return policy.get("nan", "eager")


def empty_rows(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the mask could leave nothing of a row."""
    bias, keep, fill = (match.operands.get(n) for n in ("bias", "keep", "fill"))
    return not is_causal_match(match) and may_empty_rows(bias, keep, val(fill))


def causal(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the mask is known to be the causal one, so that kernels need none."""
    return is_causal_match(match)


def training(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether gradients flow through the attention."""
    return any(wants_gradient(o) for o in match.operands.values() if is_tensor(o))


_QKV = {"query": T("B H S D"), "key_t": T("B H D T"), "value": T("B H T E")}
_BIAS, _KEEP = T("B 1 S T", values="mask"), T("B 1 S T", values="bool")
_PLAIN = {
    "cast": "no",
    "scale": "no",
    "mask": "none",
    "upcast": "no",
    "softmax": "same",
    "downcast": "no",
    "dropout": "no",
    "recast": "no",
}


def _sample(**given: Any) -> Sample:
    tags = {k: v for k, v in given.items() if k in _PLAIN}
    operands = {k: v for k, v in given.items() if k not in _PLAIN}
    number = {"scale_by": "scale"}
    operands = {number.get(k, k): v for k, v in operands.items()}
    return Sample(tags=_PLAIN | tags, **(_QKV | operands))


SAMPLES = (
    _sample(),
    _sample(scale="number", scale_by=0.3),
    _sample(scale="number", scale_by=T("", values="positive")),
    _sample(scale="rows", row_scale=T("H 1 1", values="positive")),
    _sample(scale="number", scale_by=0.25, mask="bias", bias=_BIAS),
    _sample(mask="bias", bias=T("S T")),
    _sample(scale="number", scale_by=0.25, mask="where", keep=_KEEP, fill=-math.inf),
    _sample(mask="where", keep=_KEEP, fill=torch.finfo(torch.float32).min),
    _sample(mask="where_bias", keep=T("S T", values="bool"), fill=-math.inf, bias=T("B 1 1 T", values="mask")),
    _sample(mask="bias_where", keep=_KEEP, fill=-math.inf, bias=T("H S T")),
    _sample(query=T("B S D"), key_t=T("B D T"), value=T("B T E"), scale="number", scale_by=0.5),
    _sample(query=T("2 B H S D"), key_t=T("2 B H D T"), value=T("2 B H T E"), mask="bias", bias=T("B 1 S T")),
    _sample(key_t=T("B 1 D T"), value=T("B 1 T E")),
    _sample(scale="number", scale_by=0.25, dropout="yes", p=0.2),
)


@register_pattern(
    "sdpa",
    family="attention",
    replacement=[*CPU_KERNELS, *CUDA_KERNELS, MATH_KERNEL],
    samples=SAMPLES,
    guards=(
        matrices, floating, masks_fit, keeps_are_boolean, bias_is_floating, fill_masks, fill_hides_bias,
        row_scale_is_per_row, scores_keep_their_rows,
    ),
    dims={"query": "... S D", "key_t": "... D T", "value": "... T E"},
    numbers=("scale", "fill", "p"),
    derived={
        "causal": causal, "nan": nan_policy, "empty_rows": empty_rows, "training": training,
        "compute": compute_dtype, "result": result_dtype,
    },
    numerics=Numerics(slack=4.0, random="stream"),
    nan="same",
)  # fmt: skip
def sdpa(  # noqa: PLR0913 - the parts of an attention
    query: Any, key_t: Any, value: Any, scale: Any, row_scale: Any, bias: Any, keep: Any, fill: Any, p: Any
) -> Any:
    """softmax(query @ key_t * scale + mask) @ value, with every part but the products optional."""
    scores = optional("cast", query @ key_t, cast)
    scores = choose("scale", no=scores, number=lambda: scores * scale, rows=lambda: scores * row_scale)
    scores = optional("upcast", scores, cast)
    masked = choose(
        "mask",
        none=scores,
        bias=lambda: scores + bias,
        where=lambda: torch.where(keep, scores, fill),
        where_bias=lambda: torch.where(keep, scores, fill) + bias,
        bias_where=lambda: torch.where(keep, scores + bias, fill),
    )
    weights = choose(
        "softmax", same=lambda: torch.softmax(masked, -1), fp32=lambda: torch.softmax(masked, -1, torch.float32)
    )
    weights = optional("downcast", weights, cast)
    weights = optional("dropout", weights, lambda w: torch.nn.functional.dropout(w, p, True))
    weights = optional("recast", weights, cast)
    return weights @ value
