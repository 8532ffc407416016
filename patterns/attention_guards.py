"""Guards of the attention rules, and values that they derive from a match: types, shapes, masks, policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import describe, dtype, is_tensor, op_name, rank, shape, val
from ..rewrites.reason import Reason
from ..rewrites.symbolic import known_equal
from .masks import is_causal_match, may_empty_rows

_LEAST_FILL = -1e4
_LEAST_FILL_BELOW_BIAS = -1e9  # so low that numbers added to it hardly change it

CLEARED = "cleared"
"""In the metadata of a product in training whose weights were set to 0 where they are NaN."""
BY_SUMS = "by_sums"
"""In the metadata of a softmax that was written as exponents by their sum: infinite scores leave others 0, not NaN."""


def floating(query: Any, key_t: Any, value: Any) -> Reason | None:
    """query, key and value are real floating tensors."""
    for t in (query, key_t, value):
        if not dtype(t).is_floating_point:
            return Reason("dtype-not-floating", "attention needs floating operands", (t,), "float", describe(t))
    return None


def masks_fit(
    query: Any, key_t: Any, bias: Any = None, keep: Any = None, row_scale: Any = None, factor: Any = None,
    inner: Any = None,
) -> Reason | None:  # fmt: skip
    """A mask broadcasts to the scores, and does not enlarge them."""
    rows, columns = shape(query)[-2], shape(key_t)[-1]
    for mask in (bias, keep, row_scale, factor, inner):
        if not is_tensor(mask):
            continue
        for size, full in zip(reversed(shape(mask)), (columns, rows), strict=False):
            if not (known_equal(size, 1) or known_equal(size, full)):
                found = describe(mask)
                return Reason(
                    "mask-shape", f"{found} does not broadcast to the scores", (mask,), f"{rows} x {columns}", found
                )
    return None


def bias_is_floating(bias: Any) -> Reason | None:
    """A bias of scores is a floating tensor."""
    if not dtype(bias).is_floating_point:
        return Reason("bias-not-floating", f"{describe(bias)} is added to scores", (bias,), "float", describe(bias))
    return None


def fill_masks(fill: Any) -> Reason | None:
    """Masked scores are replaced by a number so low that their weight is zero, or by a tensor."""
    number = val(fill)
    if is_tensor(fill):
        return None
    if isinstance(number, (int, float)) and number <= _LEAST_FILL:
        return None
    found = describe(fill)
    return Reason("fill-not-a-mask", f"masked scores become {found}", (), f"<= {_LEAST_FILL:g}", found)


def fill_hides_bias(match: Binding) -> Reason | None:
    """If a bias is added to masked scores, the fill absorbs it, so that rows without keys have uniform weights."""
    fill = match.operands.get("fill")
    if dict(match.tags)["mask"] != "where_bias" or (not is_tensor(fill) and val(fill) <= _LEAST_FILL_BELOW_BIAS):
        return None
    found, bias = describe(fill), match.operands["bias"]
    message = f"masked scores become {found}, and a bias is added to that"
    return Reason("fill-not-a-mask", message, (bias,), f"<= {_LEAST_FILL_BELOW_BIAS:g}", found)


def row_scale_is_per_row(row_scale: Any) -> Reason | None:
    """A tensor that scales the scores is constant along the keys, so that it can scale query instead."""
    if rank(row_scale) == 0 or known_equal(shape(row_scale)[-1], 1):
        return None
    return Reason(
        "scale-varies-along-keys",
        f"{describe(row_scale)} multiplies scores",
        (row_scale,),
        "last dim 1",
        describe(row_scale),
    )


def casts_stay_floating(match: Binding) -> Reason | None:
    """No part of the match casts to a type that is not floating."""
    for node in match.matched:
        if not dtype(node).is_floating_point:
            found = describe(node)
            return Reason("cast-not-floating", f"{found} is not a floating-point dtype", (node,), "float", found)
    return None


def casts_keep_precision(match: Binding) -> Reason | None:
    """No part of the match is rounded to a narrower type than the result: a kernel would not round."""
    result = dtype(next(n for n in match.matched if op_name(n) == "aten.matmul"))
    for node in match.matched:
        if dtype(node).is_floating_point and torch.finfo(dtype(node)).eps > torch.finfo(result).eps:
            found = describe(node)
            message = f"{found} is rounded to less than the result, {result}, holds".replace("torch.", "")
            return Reason("cast-rounds", message, (node,), str(result).removeprefix("torch."), found)
    return None


def sink_is_a_column(sink: Any) -> Reason | None:
    """The sink, which is dropped after the softmax, is one column beside the scores."""
    if known_equal(shape(sink)[-1], 1):
        return None
    message = f"{describe(sink)} stands beside the scores"
    return Reason("sink-not-a-column", message, (sink,), "last dim 1", describe(sink))


def rows_keep_a_key(match: Binding) -> Reason | None:
    """If the softmax gives 0 for rows without keys: there are no such rows, so that it is a usual softmax."""
    if dict(match.tags)["softmax"] != "safe" or not empty_rows(match, {}):
        return None
    masks = tuple(match.operands[n] for n in ("bias", "keep", "fill") if is_tensor(match.operands.get(n)))
    return Reason(
        "rows-may-be-empty", "the mask may exclude all keys of a row; the weights of that row are 0 then", masks
    )


def weights_are_used(match: Binding) -> Reason | None:
    """The weights have readers besides the product with value; otherwise rule `sdpa` applies.

    Of several products with the same weights one is replaced: each would take the weights from the others in turn.
    """
    product, *inner = match.matched
    inside = {product, *inner}
    own = next((n for n in inner if getattr(n.meta.get("application"), "rule", "") == "sdpa_with_weights"), None)
    if own is not None:
        return Reason(
            "weights-replaced", "another product that reads these weights is replaced already", (product, own)
        )
    if any(user not in inside for node in inner for user in node.users):
        return None
    return Reason("weights-unused", "no other node reads the weights", (product,), "another use of them", "none")


def compute_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype:
    """The dtype to compute in: that of the scores, unless query and key are only cast from the dtype of the result.

    A fill that is a tensor may have any value, so that scores need the range of the type in which it is selected.
    """
    if is_tensor(match.operands.get("fill")):
        return next(dtype(n) for n in match.matched if op_name(n) == "aten.where")
    products = [n for n in match.matched if op_name(n) == "aten.matmul"]
    result, scores = dtype(products[0]), dtype(products[1])
    if torch.finfo(scores).bits <= torch.finfo(result).bits:
        return result
    return result if all(_cast_from(match.operands[n], result) for n in ("query", "key_t")) else scores


def _cast_from(node: Any, source: torch.dtype) -> bool:
    """Whether a tensor is a cast from dtype `source`, possibly permuted."""
    while op_name(node) in ("aten.permute", "aten.reshape"):
        node = node.args[0]
    return op_name(node) == "aten.to" and dtype(node.args[0]) == source


def nan_policy(match: Binding, policy: Mapping[str, str]) -> str:
    """``"eager"`` if rows that are NaN in eager code must stay NaN, ``"safe"`` if they may be finite."""
    return policy.get("nan", "eager")


def empty_rows(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the mask may hide all keys of a row."""
    bias, keep, fill = (match.operands.get(n) for n in ("bias", "keep", "fill"))
    return is_tensor(fill) or (not is_causal_match(match) and may_empty_rows(bias, keep, val(fill)))


def causal(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the mask is known to be causal, so that kernels need no mask."""
    return is_causal_match(match)


def training(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether gradients flow through the attention."""
    return any(wants_gradient(o) for o in match.operands.values() if is_tensor(o))


def drawn_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype | None:
    """The dtype of the weights that are dropped, on which eager's numbers depend on GPUs; None where any will do."""
    tags, node = dict(match.tags), match.matched[0].args[0]
    if tags["dropout"] != "yes" or policy.get("rng") != "eager":
        return None
    return dtype(node.args[0] if tags["recast"] == "yes" else node)  # type: ignore[union-attr, arg-type]


def kept_weights(match: Binding, policy: Mapping[str, str]) -> tuple[str, torch.dtype]:
    """The weights that are returned besides the result, before or after dropout, and their dtype."""
    tags, node = dict(match.tags), match.matched[0].args[0]
    for tag in ("recast", "dropout"):
        if tags["weights"] == "whole" and tags[tag] == "yes":
            node = node.args[0]  # type: ignore[union-attr]
    return tags["weights"], dtype(node)  # type: ignore[arg-type]
