"""Convolutions and their epilogues, by oneDNN in channels-last layout.

    activation(convolution(x, weight, bias) + other)   ->   one oneDNN call with sum and activation as post-ops

The result is channels-last, so that a network of such calls only converts its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import arguments, describe, dtype, nodes_in, op_name, rank, shape
from ..rewrites.pattern import ANYTHING, Call, Term, choose, optional
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known, same_shape
from .linear import ACTIVATION, POST_OPS, on_cpu, one_dtype
from .packing import (
    SPATIAL_FORMATS,
    channels_last,
    declare_results,
    dense,
    lies_channels_last,
    only_frozen,
    packed_convolution_weight,
)

# Without gelu by erf, which is NaN for infinities in oneDNN.
ACTIVATIONS = ("relu", "silu", "sigmoid", "tanh", "gelu_tanh", "hardswish")
_HIDING_NAN = ("relu",)
_DTYPES = (torch.float32, torch.bfloat16)
_RANKS = (4, 5)
_SAMPLED = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, transposed, its padding, groups

Geometry = tuple[list[int], list[int], list[int], int]


def convolved(x: Any, weight: Any, bias: Any) -> Any:
    """A convolution with any geometry; on tensors, with the geometry of the samples."""
    if isinstance(x, Term):
        return Call("aten.convolution", (x, weight, bias, *(ANYTHING for _ in _SAMPLED)))
    return torch.convolution(x, weight, bias, *_SAMPLED)


def _the_convolution(match: Binding) -> Any:
    return next(n for n in match.matched if op_name(n) == "aten.convolution")


def geometry(match: Binding, policy: Mapping[str, str]) -> Geometry:
    """Padding, stride, dilation and groups, in the order of oneDNN's operators."""
    values = arguments(_the_convolution(match))
    return (*(list(values[n]) for n in ("padding", "stride", "dilation")), values["groups"])  # type: ignore[return-value]


def epilogue(match: Binding, policy: Mapping[str, str]) -> str:
    """The activation in the match."""
    return dict(match.tags)[ACTIVATION]


def onednn(x: Any, weight: Any, bias: Any, other: Any, *, geometry: Geometry, activation: str) -> torch.Tensor:
    """One oneDNN call on plain weights; the strides of one operand must be channels-last."""
    x, weight = channels_last(x), channels_last(weight)
    if not (lies_channels_last(x) or lies_channels_last(weight)):
        weight = weight.clone(memory_format=SPATIAL_FORMATS[weight.dim()])
    return _call(x, weight, bias, other, geometry, activation)


def onednn_packed(x: Any, weight: Any, bias: Any, other: Any, *, geometry: Geometry, activation: str) -> torch.Tensor:
    """One oneDNN call on weights in its own layout."""
    sizes = list(x.shape) if all(type(s) is int for s in x.shape) else None
    return _call(x, packed_convolution_weight(weight, *geometry, sizes), bias, other, geometry, activation)


def _call(x: Any, weight: Any, bias: Any, other: Any, geometry: Geometry, activation: str) -> torch.Tensor:
    post_op, algorithm = POST_OPS[activation]
    bias = dense(bias)
    if other is None:
        return torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *geometry, post_op, [], algorithm)
    declare_results()
    after = None if activation == "none" else post_op
    return torch.ops.mkldnn._convolution_pointwise.binary(
        x, channels_last(other), weight, bias, *geometry, "add", 1.0, after, [], None
    )


def onednn_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """oneDNN: no activation that turns NaN into numbers, unless this is allowed; only relu after a sum."""
    x, activation = match.operands["x"], epilogue(match, policy)
    if activation in _HIDING_NAN and policy.get("nan", "eager") == "eager":
        return Reason("kernel-unavailable", "oneDNN: its relu turns NaN into 0 (option nan='safe' allows that)", (x,))
    if "other" in match.operands and activation not in ("none", "relu"):
        return Reason("kernel-unavailable", f"oneDNN: no {activation} after a sum", (x,))
    return None


def onednn_packed_applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Whether oneDNN applies, with a weight that is known at compile time."""
    return only_frozen(match.operands["weight"]) or onednn_applies(match, policy)


def spatial(x: Any) -> Reason | None:
    """Images or volumes of a dtype that oneDNN supports, none of them empty."""
    if rank(x) not in _RANKS or dtype(x) not in _DTYPES:
        wanted = "float32 or bfloat16, 2 or 3 dims in space"
        return Reason("kernel-unavailable", f"oneDNN: not for {describe(x)}", (x,), wanted, describe(x))
    if not all(known(s >= 1) for s in shape(x)):
        return Reason("kernel-unavailable", "oneDNN: a size may be zero", (x,))
    return None


def forward_convolution(match: Binding) -> Reason | None:
    """The convolution is not transposed, and its geometry consists of numbers."""
    node = _the_convolution(match)
    values = arguments(node)
    if values["transposed"] is not False:
        return Reason("convolution-transposed", "it is a transposed convolution", (node,))
    computed = list(nodes_in([values[n] for n in ("padding", "stride", "dilation", "groups")]))
    if computed:
        return Reason("size-symbolic", f"{describe(computed[0])} may differ from call to call", (node,))
    return None


def added_whole(match: Binding) -> Reason | None:
    """The summand has the shape, dtype and device of the result, so that it is not broadcast."""
    other, result = match.operands.get("other"), _the_convolution(match)
    if other is None or (same_shape(shape(other), shape(result)) and dtype(other) == dtype(result)):
        return None
    return Reason("sum-broadcasts", f"{describe(other)} is broadcast", (other,), describe(result), describe(other))


_X, _W, _B, _OTHER = T("2 4 6 6"), T("8 4 3 3", frozen=True), T("8"), T("2 8 3 3")
_BARE = {"bias": "no", "sum": "no", ACTIVATION: "none"}


_X_DOUBLE, _W_DOUBLE = T("2 4 6 6", dtype=torch.float64), T("8 4 3 3", dtype=torch.float64, frozen=True)
_NEAR_MISSES = [
    Sample(x=T("2 4 6 6", device="meta"), weight=T("8 4 3 3", device="meta"), tags=_BARE, refused="device-unsupported"),
    Sample(x=_X_DOUBLE, weight=_W_DOUBLE, tags=_BARE, refused="kernel-unavailable"),
    Sample(x=T("0 4 6 6"), weight=_W, tags=_BARE, refused="kernel-unavailable"),
    Sample(x=_X, weight=_W, other=T("8 1 1"), tags=_BARE | {"sum": "yes"}, refused="sum-broadcasts"),
    Sample(x=_X, weight=_W, tags=_BARE | {ACTIVATION: "relu"}, refused="kernel-unavailable"),  # for nan="eager"
]


@register_pattern(
    "convolution",
    family="convolution",
    stage="lowered",
    replacement=[
        Candidate("onednn_packed", onednn_packed, onednn_packed_applies),
        Candidate("onednn", onednn, onednn_applies),
    ],
    samples=[Sample(x=_X, weight=_W, bias=_B, tags=_BARE | {"bias": "yes", ACTIVATION: name}) for name in ACTIVATIONS]
    + [
        Sample(x=_X, weight=_W, tags=_BARE),
        Sample(x=_X, weight=_W, other=_OTHER, tags=_BARE | {"sum": "yes"}),
        Sample(x=_X, weight=_W, bias=_B, other=_OTHER, tags={"bias": "yes", "sum": "yes", ACTIVATION: "relu"}),
        *_NEAR_MISSES,
    ],
    guards=(on_cpu, spatial, one_dtype, forward_convolution, added_whole),
    derived={"geometry": geometry, "activation": epilogue},
    numerics=Numerics(slack=4.0),
)
def convolution(x: Any, weight: Any, bias: Any, other: Any) -> Any:
    """activation(convolution(x, weight, bias) + other), with all but the convolution optional."""
    y = choose("bias", yes=lambda: convolved(x, weight, bias), no=lambda: convolved(x, weight, None))
    y = optional("sum", y, lambda result: result + other)
    return choose(
        ACTIVATION,
        relu=lambda: torch.relu(y),
        silu=lambda: F.silu(y),
        sigmoid=lambda: torch.sigmoid(y),
        tanh=lambda: torch.tanh(y),
        gelu_tanh=lambda: F.gelu(y, approximate="tanh"),
        hardswish=lambda: F.hardswish(y),
        none=y,
    )
