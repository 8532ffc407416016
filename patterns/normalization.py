"""Normalization that is written out by hand, replaced by one operator.

    weight * (x * rsqrt(mean(x ** 2) + eps))                      ->   rms_norm(x, [D], weight, eps)
    weight * ((x - m) * rsqrt(mean((x - m) ** 2) + eps)) + bias   ->   layer_norm(x, [D], weight, bias, eps)
    x * rsqrt(sum(x ** 2) + eps)                                  ->   rms_norm(x, [D], eps=eps / D) / sqrt(D)
    (x - m) * rsqrt(var(x) + eps), of the unbiased variance       ->   likewise, with (D - 1) / D

Operands that are cast to a wider type are computed in it in both forms; the product with the weight is rounded once
less. Generated kernels are the same for both forms. A layer norm becomes the RMS norm of centered rows, as the program
computes it. ATen's layer norm for CPUs subtracts the mean last, which loses digits of rows that hardly vary; the one
for GPUs gives NaN for rows whose variance overflows, for which the program gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, is_tensor, op_name, shape, val
from ..rewrites.pattern import cast, choose, optional
from ..rewrites.reason import Reason
from ..rewrites.rule import ROUNDING, register_pattern
from ..rewrites.sample import Sample, T
from .dtypes import result_dtype
from .normalization_overlooked import overlooked_norms


def floating(x: Any) -> Reason | None:
    """x is a real floating tensor."""
    if dtype(x).is_floating_point:
        return None
    return Reason("dtype-not-floating", f"a norm of {describe(x)}", (x,), "float", describe(x))


def eps_is_a_number(eps: Any) -> Reason | None:
    """The number that is added under the square root is known at compile time."""
    if type(eps) in (int, float) or isinstance(val(eps), torch.SymFloat):  # a symbolic one gets a guard
        return None
    nodes = (eps,) if is_tensor(eps) else ()
    return Reason("eps-not-a-number", "the epsilon under the root is computed", nodes, "a number", describe(eps))


def row_is_known(match: Binding) -> Reason | None:
    """Sums and unbiased variances become means, with another epsilon: of rows whose size is a number."""
    x = match.operands["x"]
    if _statistic(match, {}) == "mean" or isinstance(shape(x)[-1], int):
        return None
    message = f"the statistics are no means, and the rows of {describe(x)} have a symbolic size"
    return Reason("rows-of-symbolic-size", message, (x,), "a number", str(shape(x)[-1]))


def _statistic(match: Binding, policy: Mapping[str, str]) -> str:
    """The statistic under the root: a mean, a sum, or an unbiased variance."""
    return dict(match.tags).get("statistic", "mean")


def casts_keep_values(match: Binding) -> Reason | None:
    """x is only cast to wider types, and the result to a floating type."""
    x = match.operands["x"]
    for node in match.matched:
        if op_name(node) != "aten.to":
            continue
        if not dtype(node).is_floating_point:
            message = f"{describe(node)} is not a floating-point dtype"
            return Reason("cast-not-floating", message, (node,), "float", describe(node))
        if node.args[0] is x and torch.promote_types(dtype(x), dtype(node)) != dtype(node):
            message = f"{describe(node)} rounds what is normalized"
            return Reason("statistics-rounded", message, (node,), f"wider than {describe(x)}", describe(node))
    return None


def compute_dtype(match: Binding, policy: Mapping[str, str]) -> torch.dtype:
    """The narrowest dtype that holds operands and result: operators compute in a wider one."""
    tensors = [dtype(o) for o in match.operands.values() if is_tensor(o)]
    return reduce(torch.promote_types, tensors, result_dtype(match, policy))


def _of_row(x: Any) -> Any:
    """The operand of the mean: x, or x in a wider dtype."""
    return choose("upcast", yes=lambda: cast(x), statistics=lambda: cast(x), no=x)


def _of_element(x: Any) -> Any:
    """The value that is normalized: T5 casts only for the statistics."""
    return choose("upcast", yes=lambda: cast(x), statistics=x, no=x)


def _normalized(mean_square: Any, eps: Any, element: Callable[[], Any], weight: Any) -> Any:
    """element / sqrt(mean_square + eps) * weight."""
    root = torch.rsqrt(mean_square + eps)
    return choose(
        "weight",
        last=lambda: optional("downcast", root * element(), cast) * weight,
        first=lambda: root * (element() * weight),
        scale=lambda: (root * weight) * element(),
        no=lambda: root * element(),
    )


_PLAIN = {"recast": "no", "weight": "last", "downcast": "no", "upcast": "no"}


def _sample(**given: Any) -> Sample:
    tags = {k: v for k, v in given.items() if isinstance(v, str) and k != "refused"}
    operands: dict[str, Any] = {"x": T("B S 16"), "eps": 1e-6} | {k: v for k, v in given.items() if k not in tags}
    if tags.get("weight") != "no":
        operands.setdefault("weight", T("16"))
    return Sample(tags=_PLAIN | tags, **operands)


_SHORT = T("B D", gradient=False)  # with two elements in a row, the gradients of a norm are only rounding errors


_COMPLEX: dict[str, Any] = {"x": T("B 16", dtype=torch.complex64), "refused": "dtype-not-floating"}
_COMPUTED_EPS: dict[str, Any] = {"eps": T("1", values="positive"), "refused": "eps-not-a-number"}


@register_pattern(
    "rms_norm",
    family="normalization",
    replacement=lambda x, weight, eps, *, result, compute, statistic: _as(
        _rms_norm(_as(x, compute), weight, eps, statistic), result
    ),
    samples=[
        _sample(),
        _sample(x=T("B 16"), weight="first"),
        _sample(x=T("1 16")),
        _sample(x=_SHORT, weight="no", eps=0.01),
        _sample(weight="no", statistic="sum", eps=0.01),
        _sample(**_COMPLEX),
        _sample(**_COMPUTED_EPS),
    ],
    guards=(floating, eps_is_a_number, row_is_known, casts_keep_values),
    dims={"x": "... D", "weight": "D"},
    numbers=("eps",),
    derived={"result": result_dtype, "compute": compute_dtype, "statistic": _statistic},
    numerics=ROUNDING,
    profitable=True,  # the same generated kernels, or one library call instead of six
    overlooked=overlooked_norms,
)
def rms_norm(x: Any, weight: Any, eps: Any) -> Any:
    """weight * x / sqrt(mean(x ** 2) + eps)  ->  rms_norm(x, [D], weight, eps), with the casts that models have."""
    mean_square = choose(
        "statistic",
        mean=lambda: torch.mean(torch.pow(_of_row(x), 2.0), [-1], True),
        sum=lambda: torch.sum(torch.pow(_of_row(x), 2.0), [-1], True),
    )
    return optional("recast", _normalized(mean_square, eps, lambda: _of_element(x), weight), cast)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, statistic: str) -> torch.Tensor:
    """The norm with statistics that are `count` times a mean: count * mean + eps = count * (mean + eps / count)."""
    n, weight = x.shape[-1:], _as(weight, x.dtype)
    if statistic == "mean":
        return F.rms_norm(x, n, weight, float(eps))
    count = float(n[0]) if statistic == "sum" else n[0] / (n[0] - 1)
    return F.rms_norm(x, n, weight, float(eps) / count) * count**-0.5


def _as(x: Any, to: torch.dtype) -> Any:
    """x in the dtype `to`; x itself if it already has this dtype, or is None."""
    return x if x is None or x.dtype == to else x.to(to)


def _layer_norm(
    x: torch.Tensor, weight: Any, bias: Any, eps: float, compute: torch.dtype, statistic: str
) -> torch.Tensor:
    """In parts, which generated code fuses, and at least in float32, so that rounding comes last."""
    wide = _as(x, torch.promote_types(compute, torch.float32))
    normal = _rms_norm(wide - wide.mean(-1, keepdim=True), weight, eps, statistic)
    return normal if bias is None else normal + bias


@register_pattern(
    "layer_norm",
    family="normalization",
    replacement=lambda x, weight, bias, eps, *, result, compute, statistic: _as(
        _layer_norm(x, weight, bias, eps, compute, statistic), result
    ),
    samples=[
        _sample(bias=T("16")),
        _sample(weight=T("16", values="moderate"), bias=T("16"), shift="folded"),  # inf - inf is NaN in this form
        _sample(x=T("B 16"), weight="scale", shift="no"),
        _sample(x=T("B 16"), square="product", weight="first", shift="no"),
        _sample(x=T("1 16"), shift="no"),
        _sample(x=_SHORT, weight="no", shift="no", eps=0.01),
        _sample(weight="no", bias=T("16")),
        _sample(bias=T("16"), statistic="variance", eps=0.01),
        _sample(bias=T("16"), **_COMPLEX),
        _sample(bias=T("16"), **_COMPUTED_EPS),
    ],
    guards=(floating, eps_is_a_number, row_is_known, casts_keep_values),
    dims={"x": "... D", "weight": "D", "bias": "D"},
    numbers=("eps",),
    derived={"result": result_dtype, "compute": compute_dtype, "statistic": _statistic},
    numerics=ROUNDING,
    profitable=True,  # the same generated kernels
)
def layer_norm(x: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """weight * (x - mean(x)) / sqrt(var(x) + eps) + bias  ->  layer_norm(x, [D], weight, bias, eps)."""

    def centered() -> Any:  # the mean may be computed twice
        return _of_element(x) - torch.mean(_of_row(x), [-1], True)

    squared = choose("square", pow=lambda: torch.pow(centered(), 2.0), product=lambda: centered() * centered())
    variance = choose(
        "statistic",
        mean=lambda: torch.mean(squared, [-1], True),
        variance=lambda: torch.var(_of_row(x), [-1], keepdim=True),
    )
    weighted = _normalized(variance, eps, centered, weight)

    def folded() -> Any:
        scale = torch.rsqrt(variance + eps) * weight
        return _of_element(x) * scale + (bias - torch.mean(_of_row(x), [-1], True) * scale)

    return optional("recast", choose("shift", yes=lambda: weighted + bias, folded=folded, no=weighted), cast)
