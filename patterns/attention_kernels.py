"""The kernels that can compute scaled dot-product attention, as candidates of the attention rule.

Each candidate takes the operands of the match, converts them to the form of the kernel (4-D, one mask, contiguous head
dim), and calls the kernel directly, not `scaled_dot_product_attention`, whose choice would depend on what tracing sees.

A row whose scores are all -inf, or NaN, is NaN in eager code but may be finite in a kernel. If the mask may hide a
whole row, or the kernel hides NaN in query, the result is multiplied by a factor for each row that is 1 or NaN. This
keeps the NaN of eager code, in the result and in the gradients.

Kernels add masks where eager code may select. Keys that are hidden from all queries are replaced by zeros, because
inf - inf is NaN. A key that only some queries see must be finite, or the rows of all queries may be NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import is_tensor, shape, val
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate
from ..rewrites.symbolic import known, known_equal
from .attention_guards import BY_SUMS, CLEARED
from .hidden_rows import hides_rows_by_numbers, opened, rows_lose_gradients, with_dead_rows

aten = torch.ops.aten


@dataclass(frozen=True)
class Heads:
    """The operands of a kernel: query, key and value in four dims, the broadcast mask, and the scale as a number.

    `dead` marks rows that are NaN in eager code, but not with the mask that the kernel gets.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    factor: float
    dead: torch.Tensor | None


@dataclass(frozen=True)
class AttentionOperands:
    """The operands of a match, by their names in the pattern: tensors, numbers, or None for missing optional parts."""

    query: Any
    key_t: Any
    value: Any
    scale: Any
    row_scale: Any
    inner: Any
    cap: Any
    factor: Any
    bias: Any
    keep: Any
    fill: Any
    sink: Any
    p: Any
    causal: bool
    nan: str
    empty_rows: bool
    selected: bool
    added_last: bool
    low: bool
    absorbing: float
    training: bool
    compute: torch.dtype
    result: torch.dtype
    drawn: torch.dtype | None

    @property
    def batch(self) -> Any:
        """The leading dims of the result."""
        heads, masks = (self.query, self.key_t, self.value), (self.inner, self.bias, self.keep, self.factor)
        inputs = (*heads, *masks, self.row_scale, self.sink)
        return torch.broadcast_shapes(*(t.shape[:-2] for t in inputs if t is not None))

    def scaled_query(self) -> tuple[torch.Tensor, float]:
        """query in the compute dtype, and the rest of the scale as a number for the kernel."""
        query, factor = self.query.to(self.compute), 1.0
        if isinstance(self.scale, (int, float)):
            factor = float(self.scale)
        elif self.scale is not None:
            query = (query * _one_element(self.scale)).to(self.compute)
        if self.row_scale is not None:
            query = (query * self.row_scale).to(self.compute)
        return query, factor

    def mask(self) -> torch.Tensor | None:
        """Both masks as one additive mask."""
        return merge_masks(self.bias, self.keep, self.fill, self.compute, hides_bias=not self.added_last)

    def seen_keys(self) -> torch.Tensor:
        """The transposed keys, with zeros for keys that are hidden from all queries."""
        if self.keep is None or self.causal:
            return self.key_t
        seen = self.keep
        if seen.dim() > 1 and not known_equal(seen.shape[-2], 1):
            seen = seen.any(-2, keepdim=True)
        return torch.where(seen, self.key_t, 0.0)

    def heads(self) -> Heads:
        """The operands of a kernel; without a mask if the mask is known to be causal."""
        query, factor = self.scaled_query()
        mask = None if self.causal else fit_mask(self.mask(), query.dtype)
        dead = None
        if mask is not None and self.training and (self.selected or self.low):
            own_bias = self.selected and self.bias is not None and not self.added_last
            empty = self.empty_rows and self.nan != "safe"
            query, mask, dead = opened(query, mask, selected=self.selected, own_bias=own_bias, empty=empty)
        tensors = (query, self.seen_keys().transpose(-2, -1).to(self.compute), self.value.to(self.compute))
        query, key, value = (_four_dims(t, self.batch) for t in tensors)
        mask, dead = (None if x is None else _mask_four_dims(x, self.batch) for x in (mask, dead))
        return Heads(query, key, value, mask, factor, dead)

    def restore(self, out: torch.Tensor) -> torch.Tensor:
        """The 4-D result of a kernel in the shape and dtype of the product of weights and value."""
        out = out.to(self.result)
        return out if len(self.batch) == 2 else out.reshape(*self.batch, *out.shape[-2:])


def fit_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The mask in a type that kernels support with a query of `dtype`; finite elements stay finite."""
    if mask is None or mask.dtype == dtype:
        return mask
    if torch.finfo(mask.dtype).bits < torch.finfo(dtype).bits:
        return mask.to(dtype)
    return like(mask, torch.float32)


def like(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask in `dtype`, with finite elements kept finite."""
    if mask.dtype == dtype:
        return mask
    wide = mask if mask.dtype == torch.float64 else mask.float()
    return torch.where(wide == -torch.inf, wide, wide.clamp(min=torch.finfo(dtype).min)).to(dtype)


def _one_element(scale: Any) -> Any:
    return scale.reshape(()) if isinstance(scale, torch.Tensor) and scale.dim() else scale


def merge_masks(
    bias: Any, keep: Any, fill: Any, dtype: torch.dtype, *, hides_bias: bool = False
) -> torch.Tensor | None:
    """One additive mask from an additive mask and a boolean one, which may also hide elements of the additive one.

    A finite fill becomes the lowest number, which absorbs any score: a row without keys stays uniform, as in eager
    code, and in other rows the weight of hidden keys stays zero.
    """
    if keep is None:
        return bias
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    low = fill if fill == -float("inf") else torch.finfo(wide).min
    if bias is not None and hides_bias:
        return torch.where(keep, bias.to(torch.promote_types(bias.dtype, wide)), low)
    added = torch.where(keep, torch.zeros((), dtype=wide, device=keep.device), low)
    return added if bias is None else bias + added


def _four_dims(x: torch.Tensor, batch: Any) -> torch.Tensor:
    """``(*batch, rows, columns)`` as ``(outer, inner, rows, columns)``, with rows contiguous and apart.

    Kernels pass the stride of rows to library products, whose results are wrong for rows that overlap or repeat.
    """
    x = x.expand(*batch, *x.shape[-2:])
    if x.stride(-1) != 1 or x.stride(-2) < x.shape[-1]:
        # A single row counts as contiguous with any stride, but some kernels use the stride.
        x = x.clone(memory_format=torch.contiguous_format) if x.is_contiguous() else x.contiguous()
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x.flatten(0, -4) if x.dim() > 4 else x


def _mask_four_dims(mask: torch.Tensor, batch: Any) -> torch.Tensor:
    while mask.dim() < max(4, len(batch) + 2):
        mask = mask.unsqueeze(0)
    if mask.dim() == 4:
        return mask
    return mask.expand(*batch, *mask.shape[-2:]).flatten(0, -4)


def row_factor(query: torch.Tensor | None, mask: torch.Tensor | None, empty_rows: bool) -> torch.Tensor | None:
    """NaN for rows that are NaN in eager code, 1 for others: (..., rows or 1, 1); None if there are only others.

    Args:
        query: (..., rows, size), or None if the kernel propagates NaN in query.
        mask: additive, (..., rows or 1, columns).
        empty_rows: whether the mask could hold a row of -inf.
    """
    factor = None
    if query is not None:
        wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
        factor = query.sum(-1, keepdim=True, dtype=wide) * 0 + 1
    if mask is not None and empty_rows:
        dead = mask.amax(-1, keepdim=True) == -torch.inf
        alive = torch.where(dead, torch.nan, 1.0)
        factor = alive if factor is None else factor * alive
    return factor


def keep_nan(attention: AttentionOperands, out: torch.Tensor, heads: Heads, *, shows_nan: bool) -> torch.Tensor:
    """`out` with the NaN rows of eager code, if the policy requires them."""
    if attention.nan == "safe":
        return out
    mask, empty = heads.mask, attention.empty_rows and heads.dead is None
    if mask is not None and attention.sink is not None and empty:  # each row keeps its sink
        mask = torch.maximum(mask.amax(-1, keepdim=True), _sink_four_dims(attention, mask.dtype))
    factor = row_factor(None if shows_nan else heads.query, mask, empty)
    out = out if factor is None else out * factor.to(out.dtype)
    return out if heads.dead is None else with_dead_rows(out, heads.value, heads.dead)


def _sink_four_dims(attention: AttentionOperands, dtype: torch.dtype) -> torch.Tensor:
    assert attention.sink is not None
    return _mask_four_dims(attention.sink.to(dtype), attention.batch)


def share_sink(attention: AttentionOperands, out: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
    """The result with a sink beside the keys, computed from the result without it.

    Args:
        attention: the attention with the sink.
        out: (outer, inner, rows, width), the 4-D result of the kernel.
        log_sums: (outer, inner, rows), logarithms of the sums of exponentials of each row.

    The share of the keys is exp(log_sum) / (exp(log_sum) + exp(sink)). Rows without keys are 0 in `out` already.
    """
    if attention.sink is None:
        return out
    sink = _sink_four_dims(attention, log_sums.dtype)
    share = torch.sigmoid(log_sums.unsqueeze(-1) - sink)
    if attention.nan != "safe":
        share = torch.where(sink == torch.inf, torch.nan, share)
    return (out * share).to(out.dtype)


def _one_width(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Heads of one width: narrower heads are padded with zeros, which do not change scores."""
    width = max(x.shape[-1] for x in heads)
    return tuple(x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in heads)


def flash_cpu(*operands: Any, **derived: Any) -> torch.Tensor:
    """PyTorch's CPU flash kernel."""
    attention = AttentionOperands(*operands, **derived)
    heads = attention.heads()
    width = heads.value.shape[-1]
    out, log_sums = aten._scaled_dot_product_flash_attention_for_cpu(
        *_one_width(heads.query, heads.key, heads.value), 0.0, attention.causal, attn_mask=heads.mask,
        scale=heads.factor,
    )  # fmt: skip
    out = share_sink(attention, out if heads.query.shape[-1] <= width else out[..., :width], log_sums)
    return attention.restore(keep_nan(attention, out, heads, shows_nan=heads.mask is not None))


def math_kernel(*operands: Any, **derived: Any) -> torch.Tensor:
    """Two products and a softmax as in eager code, with dropout from eager's random stream."""
    attention = AttentionOperands(*operands, **derived)
    _, weights = _weights(attention)
    return torch.matmul(weights.to(attention.compute), attention.value.to(attention.compute)).to(attention.result)


def weights_kernel(*operands: Any, kept: tuple[str, torch.dtype], **derived: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`math_kernel`, and the weights that are returned besides its result, before or after dropout, in their dtype."""
    attention = AttentionOperands(*operands, **derived)
    which, dtype = kept
    whole, weights = _weights(attention, dtype)
    result = torch.matmul(weights.to(attention.compute), attention.value.to(attention.compute)).to(attention.result)
    return result, (whole if which == "whole" else weights).to(dtype)


def _weights(attention: AttentionOperands, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights before and after dropout, no narrower than `dtype` (default: in the dtype to compute in)."""
    query, factor = attention.scaled_query()
    scores = torch.matmul(query, attention.key_t.to(attention.compute))
    scores = scores if factor == 1.0 else scores * factor
    if attention.cap is not None:
        scores = torch.tanh(scores if attention.inner is None else scores + attention.inner) * attention.cap
    scores = _masked(attention, scores)
    scores = scores if dtype is None else scores.to(torch.promote_types(scores.dtype, dtype))
    weights = _softmax(scores, attention.sink)
    weights = weights if dtype is not None else weights.to(attention.compute)
    drawn = weights if attention.drawn is None else weights.to(attention.drawn)
    return weights, weights if attention.p is None else torch.dropout(drawn, attention.p, True)


def _softmax(scores: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    if sink is None:
        return torch.softmax(scores, -1)
    column = sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]


def _masked(attention: AttentionOperands, scores: torch.Tensor) -> torch.Tensor:
    """Scores with both masks, selected where eager code selects, so that hidden scores get no gradient."""
    keep, fill = attention.keep, attention.fill
    if attention.factor is not None:
        scores = scores * attention.factor
    if keep is None or not _is_selected(fill, scores.dtype):
        mask = attention.mask()
        return scores if mask is None else scores + mask
    if attention.added_last:  # the sum of low numbers in both masks is -inf
        return torch.where(keep, scores, fill) + attention.bias
    return torch.where(keep, scores if attention.bias is None else scores + attention.bias, fill)


def _is_selected(fill: Any, dtype: torch.dtype) -> bool:
    """Whether a fill can be selected unchanged: a tensor, or a number that `dtype` can represent."""
    return isinstance(fill, torch.Tensor) or fill == -float("inf") or fill >= torch.finfo(dtype).min


# -- conditions of kernels


def refused(kernel: str, why: str, match: Binding, *names: str) -> Reason:
    """The reason why a kernel is not a candidate for a match; `names` are the operands that cause it."""
    return Reason("kernel-unavailable", f"{kernel}: {why}", tuple(match.operands[n] for n in names or ("query",)))


_BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def not_allowed(kernel: str, match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """The reason not to use a kernel that the program excludes, by `sdpa_kernel` or by a global switch."""
    allowed = policy.get("backends")
    if allowed is None or _BACKENDS[kernel] in allowed.split(","):
        return None
    return refused(kernel, f"the program allows only {allowed or 'no kernel'} here", match)


def device_of(match: Binding) -> str:
    """The type of the device of the operands."""
    return str(val(match.operands["query"]).device.type)


def wants_mask_gradient(match: Binding) -> bool:
    """Whether gradients flow to the additive mask."""
    bias = match.operands.get("bias")
    return is_tensor(bias) and wants_gradient(bias)


def softmax_is_plain(kernel: str, match: Binding) -> Reason | None:
    """Kernels only scale scores and add a mask; gradients do not flow to sums of masks."""
    if "cap" in match.operands:
        return refused(kernel, "it takes no softcap", match)
    if is_tensor(match.operands.get("fill")):
        return refused(kernel, "masked scores become a tensor, of which no value is known", match, "fill")
    if "factor" in match.operands:
        return refused(kernel, "it multiplies no scores entry by entry", match, "factor")
    if "sink" in match.operands and any(wants_gradient(o) for o in match.operands.values() if is_tensor(o)):
        return refused(kernel, "a sink is shared out afterwards, by sums that pass no gradient on", match, "sink")
    if rows_lose_gradients(match):
        return refused(kernel, "rows that the mask may hide entirely would lose their gradients", match, "bias")
    return None


def sizes_positive(match: Binding) -> bool:
    """Whether all sizes are known to be positive."""
    return all(known(s >= 1) for n in ("query", "key_t", "value") for s in shape(match.operands[n]))


def head_size(match: Binding) -> Any:
    """The size of a head if query and value have the same, otherwise None."""
    size = shape(match.operands["query"])[-1]
    return size if known_equal(size, shape(match.operands["value"])[-1]) else None


def flash_cpu_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """The kernel divides by sizes, and has neither dropout, nor gradients of masks, nor values of another width."""
    name = "flash"
    if device_of(match) != "cpu":
        return refused(name, "not on a CPU", match)
    if not sizes_positive(match):
        return refused(name, "a size may be zero", match, "query", "key_t")
    if policy.get("nan", "eager") == "eager" and known_equal(shape(match.operands["key_t"])[-1], 1):
        return refused(name, "it hides NaN of a single key", match, "key_t")
    if head_size(match) is None and not all(isinstance(shape(match.operands[n])[-1], int) for n in ("query", "value")):
        return refused(name, "value may have another head size than query", match, "value")
    if "p" in match.operands:
        return refused(name, "no dropout", match)
    reason = not_allowed(name, match, policy) or softmax_is_plain(name, match)
    if reason is not None:
        return reason
    if wants_mask_gradient(match):
        return refused(name, "the mask needs gradients", match, "bias")
    return None


def weights_are_whole(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Weights by sums of exponents are NaN only where a score is infinite, those of a softmax in the whole row."""
    if policy.get("nan", "eager") == "safe" or not any(node.meta.get(BY_SUMS) for node in match.matched):
        return None
    return refused("math", "weights by sums of exponents are not NaN beside an infinite score", match)


def with_eagers_rows_of_nan(candidate: Candidate) -> Candidate:
    """A candidate, except where rows that are NaN in eager code would be numbers in it, or have other gradients.

    In training, a row of NaN that became 0 adds nothing to the gradient of value, and makes those of query and key NaN
    if a score is NaN or infinite or a sum hides the row. A kernel computes the weights again, and all gradients from
    NaN. Weights by sums of exponents are NaN in a row of low numbers, of which a softmax is uniform.
    """

    def applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
        if policy.get("nan", "eager") == "safe":
            return candidate.applies(match, policy)
        if any(node.meta.get(CLEARED) for node in match.matched):
            why = "rows of NaN that are set to 0 have other gradients in it (option nan='safe')"
            return refused(candidate.name, why, match)
        if any(node.meta.get(BY_SUMS) for node in match.matched) and hides_rows_by_numbers(match):
            why = "sums of exponents are 0 in rows that a low number hides (option nan='safe')"
            return refused(candidate.name, why, match)
        return candidate.applies(match, policy)

    return replace(candidate, applies=applies)


CPU_KERNELS = (Candidate("flash", flash_cpu, flash_cpu_applies),)
MATH_KERNEL = Candidate("math", math_kernel)
WEIGHTS_KERNEL = Candidate("math", weights_kernel, weights_are_whole)
