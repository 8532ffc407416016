"""Batch normalization in evaluation, folded into the layer before it.

    y = batch_norm(convolution(x, weight, bias), gamma, beta, mean, variance)
        ->  scale = gamma / sqrt(variance + eps)
            convolution(x, weight * scale, (bias - mean) * scale + beta)

Linear layers are treated in the same way. A pass over the weights replaces a pass over the result. Frozen weights are
computed once, in float64, and rounded once. Other weights are computed at each call, on CPUs, if that is measured to be
faster, and unless gamma or the variance is trained: its gradient would be a sum over the weight's gradient, which is
less precise than one over the normalized result. For GPUs, see `cudnn_convolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import arguments, describe, dtype, nodes_in, op_name, rank, val
from ..rewrites.pattern import ANYTHING, Call, Term, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from .normalization_overlooked import overlooked_fixed_norms
from .packing import only_changing, only_frozen, prepared

# our name of a layer -> how many arguments follow its bias, and how a sample calls it
_CONVOLUTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "conv1d": (4, F.conv1d),
    "conv2d": (4, F.conv2d),
    "conv3d": (4, F.conv3d),
    "convolution": (6, lambda x, w, b: torch.convolution(x, w, b, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)),
}
_NORM = "aten.batch_norm"

Layer = tuple[Any, tuple[Any, ...]]  # the operator, and its arguments after input, weight and bias


def folded(  # noqa: PLR0913 - the pattern's operands
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, gamma: Any, beta: Any, eps: Any, *, layer: Layer
) -> torch.Tensor:
    """The layer with other weights, computed at every call."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    scaled = _scaled(weight, variance, gamma, eps, wide)
    return layer[0](x, scaled, _shifted(weight, bias, mean, variance, gamma, beta, eps, wide), *layer[1])


def folded_frozen(  # noqa: PLR0913 - the pattern's operands
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, gamma: Any, beta: Any, eps: Any, *, layer: Layer
) -> torch.Tensor:
    """The layer with other weights, computed once."""
    settings = (eps, torch.float64)
    scaled = prepared(_scaled, weight, variance, gamma, settings=settings)
    shifted = prepared(_shifted, weight, bias, mean, variance, gamma, beta, settings=settings)
    return layer[0](x, scaled, shifted, *layer[1])


def _scaled(weight: Any, variance: Any, gamma: Any, eps: float, wide: torch.dtype) -> torch.Tensor:
    scale = _scale(variance, gamma, eps, wide).reshape([-1] + [1] * (weight.dim() - 1))
    return (weight.to(wide) * scale).to(weight.dtype)


def _shifted(
    weight: Any, bias: Any, mean: Any, variance: Any, gamma: Any, beta: Any, eps: float, wide: torch.dtype
) -> torch.Tensor:
    shift = -mean.to(wide) if bias is None else bias.to(wide) - mean.to(wide)
    shift = shift * _scale(variance, gamma, eps, wide)
    return (shift if beta is None else shift + beta.to(wide)).to(weight.dtype)


def _scale(variance: Any, gamma: Any, eps: float, wide: torch.dtype) -> torch.Tensor:
    scale = torch.rsqrt(variance.to(wide) + eps)
    return scale if gamma is None else scale * gamma.to(wide)


_WEIGHTS = ("weight", "bias", "mean", "variance", "gamma", "beta")


def _frozen(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Weights and statistics are known at compile time."""
    return only_frozen(*(match.operands.get(n) for n in _WEIGHTS))


def _changing(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Not all are known, no scale is trained, and on GPUs the norm would be part of the next kernel anyway."""
    for name in ("gamma", "variance"):
        scale = match.operands.get(name)
        if scale is not None and wants_gradient(scale):
            message = f"{name} is trained, and its gradient is less precise by way of the weight's"
            return Reason("gradient-less-precise", message, (scale,), "no gradient", describe(scale))
    if val(match.operands["x"]).device.type == "cuda":
        message = "on GPUs the norm costs no pass of its own, and weights are not computed at every call for it"
        return Reason("fused-anyway", message, (match.operands["x"],))
    return only_changing(*(match.operands.get(n) for n in _WEIGHTS))


def _layer_node(match: Binding) -> fx.Node:
    return next(n for n in match.matched if op_name(n) != _NORM)


def layer_call(match: Binding, policy: Mapping[str, str]) -> Layer:
    """The operator of the layer, and its geometry."""
    node = _layer_node(match)
    return node.target, tuple(arguments(node).values())[3:]


def running_statistics(match: Binding) -> Reason | None:
    """The norm uses running statistics, not those of the batch."""
    node = next(n for n in match.matched if op_name(n) == _NORM)
    if arguments(node)["training"] is False:
        return None
    return Reason("batch-statistics", "the norm is in training mode", (node,), "training=False", "training=True")


def channels_second(match: Binding) -> Reason | None:
    """The norm normalizes the channels of the layer, the second dim of its result."""
    node, weight = _layer_node(match), match.operands["weight"]
    if rank(node) == rank(weight):
        return None
    message = f"the channels of {describe(node)} are not its second dim"
    return Reason("channels-elsewhere", message, (node,), f"{rank(weight)} dims", describe(node))


def forward_layer(match: Binding) -> Reason | None:
    """The layer is not a transposed convolution, whose weight has another order of dims, and its geometry is fixed."""
    node = _layer_node(match)
    values = arguments(node)
    if values.get("transposed", False) is False and not list(nodes_in(list(values.values())[3:])):
        return None
    return Reason("convolution-transposed", "it is a transposed convolution", (node,))


def floating(x: Any, weight: Any) -> Reason | None:
    """The operands are real floating-point tensors of one dtype."""
    if dtype(x).is_floating_point and dtype(x) == dtype(weight):
        return None
    return Reason("kernel-unavailable", f"not for {describe(x)}", (x, weight), "one floating-point dtype", describe(x))


def applied(x: Any, weight: Any, bias: Any) -> Any:
    """A convolution with any geometry, or a linear layer."""

    def convolution(name: str) -> Any:
        more, sample = _CONVOLUTIONS[name]
        if not isinstance(x, Term):
            return lambda: sample(x, weight, bias)
        return Call(f"aten.{name}", (x, weight, bias, *(ANYTHING for _ in range(more))))

    linear = Call("aten.linear", (x, weight, bias)) if isinstance(x, Term) else lambda: F.linear(x, weight, bias)
    return choose("layer", **{name: convolution(name) for name in _CONVOLUTIONS}, linear=linear)


def normalized(y: Any, gamma: Any, beta: Any, mean: Any, variance: Any, eps: Any) -> Any:
    """A batch norm; on tensors, in evaluation."""
    if isinstance(y, Term):
        return Call(_NORM, (y, gamma, beta, mean, variance, ANYTHING, ANYTHING, eps, ANYTHING))
    return torch.batch_norm(y, gamma, beta, mean, variance, False, 0.1, eps, False)


_X = {"conv1d": "B 4 9", "conv2d": "B 4 6 6", "conv3d": "B 2 5 4 4", "convolution": "B 4 6 6", "linear": "B 4"}
_W = {"conv1d": "N 4 3", "conv2d": "N 4 3 3", "conv3d": "N 2 2 2 2", "convolution": "N 4 3 3", "linear": "N 4"}


def _sample(layer: str, *, bias: bool = True, affine: bool = True, frozen: bool = False, **changes: Any) -> Sample:
    # Moderate: weights times gamma may overflow if the product with a small x does not.
    vector = T("N", values="moderate", frozen=frozen)
    given = {"x": T(_X[layer], values="moderate"), "weight": T(_W[layer], values="moderate", frozen=frozen)}
    given["mean"] = T("N", values="moderate", gradient=False, frozen=frozen)
    given["variance"] = T("N", values="positive", gradient=False, frozen=frozen)
    given |= {"bias": vector} if bias else {}
    given |= {"gamma": T("N", values="moderate", gradient=False, frozen=frozen), "beta": vector} if affine else {}
    tags = {"layer": layer, "bias": "yes" if bias else "no", "affine": "yes" if affine else "no"}
    return Sample(**(given | {"eps": 1e-3} | changes), tags=tags)


def _samples() -> Iterator[Sample]:
    for frozen in (True, False):
        yield from (_sample(layer, frozen=frozen) for layer in _X)
        yield _sample("conv2d", bias=False, affine=False, frozen=frozen)
    yield Sample(
        x=T("B N 4"), weight=T("N 4"), mean=T("N"), variance=T("N", values="positive"), eps=1e-3,
        tags={"layer": "linear", "bias": "no", "affine": "no"}, refused="channels-elsewhere",
    )  # fmt: skip


@register_pattern(
    "batch_norm",
    family="normalization",
    replacement=[
        Candidate("folded_frozen", folded_frozen, _frozen, profitable=True),
        Candidate("folded", folded, _changing),
    ],
    samples=list(_samples()),
    guards=(floating, running_statistics, channels_second, forward_layer),
    numbers=("eps",),
    derived={"layer": layer_call},
    numerics=Numerics(slack=4.0),
    overlooked=overlooked_fixed_norms,
)
def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, gamma: Any, beta: Any, eps: Any) -> Any:
    """batch_norm(layer(x, weight, bias), gamma, beta, mean, variance) in evaluation; bias, gamma and beta optional."""
    y = choose("bias", yes=lambda: applied(x, weight, bias), no=lambda: applied(x, weight, None))
    return choose(
        "affine",
        yes=lambda: normalized(y, gamma, beta, mean, variance, eps),
        no=lambda: normalized(y, None, None, mean, variance, eps),
    )
