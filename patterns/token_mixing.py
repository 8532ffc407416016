"""Linear layers over the second to last dim, as MLP-Mixer, gMLP and ResMLP mix tokens.

    linear(x.mT, weight, bias).mT                       ->  weight @ x + bias[:, None]

    linear(activation(linear(x.mT, w1, b1)), w2, b2).mT ->  w2 @ activation(w1 @ x + b1[:, None]) + b2[:, None]

As it is written, the input is copied in another order of dims, and so is what reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import describe, dtype, rank, shape
from ..rewrites.pattern import choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known_equal

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "relu": torch.relu,
    "silu": F.silu,
}


def mixed(x: Any, weight: Any, bias: Any, last: Any, last_bias: Any, *, activation: str) -> torch.Tensor:
    """One product or two, each of a weight and the tokens as they lie in memory."""
    y = _product(weight, x, bias)
    return y if last is None else _product(last, _ACTIVATIONS[activation](y), last_bias)


def _product(weight: Any, x: Any, bias: Any) -> torch.Tensor:
    y = torch.matmul(weight, x)
    return y if bias is None else y + bias[:, None]


def activation_between(match: Binding, policy: Mapping[str, str]) -> str:
    """The name of the activation between two layers; that of none if there is one layer."""
    return dict(match.tags).get("activation", "gelu")


def batches_of_rows(x: Any) -> Reason | None:
    """The input has batches: a single matrix is read in either order by one product."""
    if rank(x) >= 3 and dtype(x).is_floating_point:
        return None
    return Reason("rank-too-low", "no tokens in batches are mixed", (x,), "three or more dims of floats", describe(x))


def matrices(match: Binding) -> Reason | None:
    """Weights are matrices of the input's dtype, and a bias has one number for each of their rows."""
    x = match.operands["x"]
    for weight, bias in _layers(match):
        if rank(weight) != 2 or dtype(weight) != dtype(x):
            return Reason("weight-no-matrix", f"{describe(weight)} is no weight", (weight,), "a matrix")
        if bias is not None and not (rank(bias) == 1 and known_equal(shape(bias)[0], shape(weight)[0])):
            message, wanted = f"{describe(bias)} is broadcast", "one number for each column"
            return Reason("bias-broadcasts", message, (bias,), wanted, describe(bias))
    return None


def not_trained(match: Binding) -> Reason | None:
    """No gradient flows to the weights: those of batches would be kept apart, and summed afterwards."""
    given = [tensor for layer in _layers(match) for tensor in layer if tensor is not None]
    trained = next(filter(wants_gradient, given), None)
    if trained is None:
        return None
    message = f"{describe(trained)} is trained: each batch would have a gradient of its own"
    return Reason("weight-trained", message, (trained,), "weights without gradients", describe(trained))


def _layers(match: Binding) -> list[tuple[fx.Node, fx.Node | None]]:
    operands = match.operands
    pairs = [(operands["weight"], operands.get("bias")), (operands.get("last"), operands.get("last_bias"))]
    return [(weight, bias) for weight, bias in pairs if weight is not None]


_X = T("B K D")
_ONE: dict[str, Any] = {"weight": T("N K", gradient=False)}
_TWO: dict[str, Any] = {"last": T("M N", gradient=False)}
_BIASES: dict[str, Any] = {"bias": T("N", gradient=False)}
_BOTH = _BIASES | {"last_bias": T("M", gradient=False)}


@register_pattern(
    "token_mixing",
    family="product",
    replacement=mixed,
    samples=[
        Sample(x=_X, **_ONE, tags={"layers": "one", "bias": "no"}),
        Sample(x=T("B H K D"), **_ONE, **_BIASES, tags={"layers": "one", "bias": "yes"}),
        *(
            Sample(x=_X, **_ONE, **_TWO, **_BOTH, tags={"layers": "two", "bias": "yes", "activation": name})
            for name in _ACTIVATIONS
        ),
        Sample(x=_X, **_ONE, **_TWO, tags={"layers": "two", "bias": "no", "activation": "gelu"}),
        Sample(x=T("K D"), **_ONE, tags={"layers": "one", "bias": "no"}, refused="rank-too-low"),
        Sample(x=_X, **_ONE, bias=T("1", gradient=False), tags={"layers": "one", "bias": "yes"},
               refused="bias-broadcasts"),
    ],
    guards=(batches_of_rows, matrices, not_trained),
    derived={"activation": activation_between},
    numerics=Numerics(slack=4.0),
    advice={"weight-trained": "it is for inference: turn gradients of the weights off"},
)  # fmt: skip
def token_mixing(x: Any, weight: Any, bias: Any, last: Any, last_bias: Any) -> Any:
    """linear(x.mT, weight, bias).mT, or two layers with an activation between; biases are optional."""

    def layer(value: Any, w: Any, b: Any) -> Any:
        return choose("bias", yes=lambda: F.linear(value, w, b), no=lambda: F.linear(value, w))

    def one() -> Any:
        return layer(x.transpose(-2, -1), weight, bias)

    def two() -> Any:
        between = {name: lambda f=f: f(one()) for name, f in _ACTIVATIONS.items()}
        return layer(choose("activation", **between), last, last_bias)

    return choose("layers", one=one, two=two).transpose(-2, -1)
