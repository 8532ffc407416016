"""Activations that are written out by hand, replaced by one operator.

    x/2 * (1 + erf(x / sqrt(2)))                              ->   gelu(x)
    x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))      ->   gelu(x, approximate="tanh")
    x * sigmoid(x)                                            ->   silu(x)
    x * tanh(softplus(x))                                     ->   mish(x)

If kernels are generated, the operator saves only `x` for its backward, and can be the epilogue of a product before it;
otherwise it is one kernel instead of two to eight. A gate, ``silu(gate) * up``, has no operator: the rules find its
activation, and generated code fuses both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.graph import describe, dtype, is_tensor, sees, shape, val, widens
from ..rewrites.pattern import choose
from ..rewrites.reason import Reason
from ..rewrites.rule import ROUNDING, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import hint, same_shape
from .activations_overlooked import overlooked_activations
from .dtypes import result_dtype

TANH_ROOT = math.sqrt(2 / math.pi)
ERF_ROOT = math.sqrt(0.5)
_ROUNDED = torch.finfo(torch.float32).eps  # of a square root that was computed in float32


def floating(x: Any) -> Reason | None:
    """x is a real floating tensor."""
    if dtype(x).is_floating_point:
        return None
    return Reason("dtype-not-floating", f"an activation of {describe(x)}", (x,), "float", describe(x))


def wide_is_x(x: Any, wide_x: Any) -> Reason | None:
    """wide_x is x in a wider dtype."""
    if widens(dtype(x), dtype(wide_x)) and same_shape(shape(x), shape(wide_x)) and _source(x) is _source(wide_x):
        return None
    message = f"the cube is of {describe(wide_x)}, which is not known to be the same value"
    return Reason("cube-of-another-value", message, (wide_x,), describe(x), describe(wide_x))


def _source(node: Any) -> Any:
    """The value before casts and reshapes, which keep the order of its elements."""
    while sees(None, node, "aten.reshape") or (sees(None, node, "aten.to") and _widens(node)):
        node = node.args[0]
    return node


def _widens(node: Any) -> bool:
    return widens(dtype(node.args[0]), dtype(node))


def is_root_of(expected: float) -> Callable[..., Reason | None]:
    """A guard: the inner constant is `expected`, up to rounding."""

    def root_is_exact(x: Any, root: Any) -> Reason | None:
        error = 1e-12 if dtype(x) == torch.float64 else _ROUNDED
        number = hint(val(root))  # of a symbolic number, which replacements guard
        if isinstance(number, float) and math.isclose(number, expected, rel_tol=error):
            return None
        nodes = (root,) if is_tensor(root) else ()
        return Reason("constant-differs", f"x is scaled by {describe(root)}", nodes, f"{expected:.10g}", describe(root))

    return root_is_exact


def _halved(x: Any, gate: Any) -> Any:
    """x * gate / 2, with the division in different places."""
    return choose("half", x=lambda: (x * 0.5) * gate, gate=lambda: x * (gate * 0.5), product=lambda: (x * gate) * 0.5)


def _gelu(x: torch.Tensor, root: float, approximate: str) -> torch.Tensor:
    float(root)  # reading a symbolic number guards it
    return F.gelu(x, approximate=approximate)


_COMPLEX = T("N", dtype=torch.complex64)


@register_pattern(
    "gelu_tanh",
    family="activation",
    replacement=lambda x, wide_x, root, *, result: _gelu(x.to(result), root, "tanh"),
    samples=[
        Sample(x=T("B S N"), root=TANH_ROOT, tags={"cube": "pow"}),
        *(Sample(x=T("N"), root=TANH_ROOT, tags={"half": half}) for half in ("gate", "product")),
        Sample(x=T("N"), root=0.8, refused="constant-differs"),
        Sample(x=_COMPLEX, root=TANH_ROOT, refused="dtype-not-floating"),
        Sample(x=T("N"), wide_x=T("N"), root=TANH_ROOT, tags={"cube": "wide"}, refused="cube-of-another-value"),
    ],
    guards=(floating, wide_is_x, is_root_of(TANH_ROOT)),
    numbers=("root",),
    derived={"result": result_dtype},
    numerics=ROUNDING,
    profitable=True,  # one pass over memory instead of eight
)
def gelu_tanh(x: Any, wide_x: Any, root: Any) -> Any:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))); under autocast the cube is in a wider dtype."""
    inner = choose(
        "cube",
        pow=lambda: (x + torch.pow(x, 3.0) * 0.044715) * root,
        wide=lambda: (x + torch.pow(wide_x, 3.0) * 0.044715) * root,
    )
    return _halved(x, torch.tanh(inner) + 1.0)


@register_pattern(
    "gelu",
    family="activation",
    replacement=lambda x, root: _gelu(x, root, "none"),
    samples=[  # moderate: on CPUs, torch's own kernel, which is compared, gives NaN or inf for inputs near infinity
        *(
            Sample(x=T("B S N", values="moderate"), root=ERF_ROOT, tags={"half": half})
            for half in ("x", "gate", "product")
        ),
        Sample(x=T("N"), root=0.7, refused="constant-differs"),
        Sample(x=T("N", dtype=torch.int64), root=ERF_ROOT, refused="dtype-not-floating"),
    ],
    guards=(floating, is_root_of(ERF_ROOT)),
    numbers=("root",),
    numerics=ROUNDING,
    profitable=True,  # one pass over memory instead of five
)
def gelu(x: Any, root: Any) -> Any:
    """x/2 * (1 + erf(x / sqrt(2)))  ->  gelu(x)."""
    return _halved(x, torch.erf(x * root) + 1.0)


@register_pattern(
    "silu",
    family="activation",
    replacement=lambda x: F.silu(x),  # noqa: PLW0108 - F.silu's own signature has `inplace`
    samples=[Sample(x=T("B S N")), Sample(x=_COMPLEX, refused="dtype-not-floating")],
    guards=(floating,),
    numerics=ROUNDING,
    profitable=True,  # one pass over memory instead of two, and only x is saved for the backward
    overlooked=overlooked_activations,
)
def silu(x: Any) -> Any:
    """x * sigmoid(x)  ->  silu(x). x / (1 + exp(-x)) only without gradients, which are NaN if exp(-x) is inf."""
    return torch.sigmoid(x) * x


@register_pattern(
    "mish",
    family="activation",
    replacement=lambda x: F.mish(x),  # noqa: PLW0108
    samples=[Sample(x=T("B S N"))],
    numerics=ROUNDING,
    profitable=True,  # one pass over memory instead of three, and only x is saved for the backward
)
def mish(x: Any) -> Any:
    """x * tanh(softplus(x))  ->  mish(x)."""
    return torch.tanh(torch.ops.aten.softplus.default(x)) * x
