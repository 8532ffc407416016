"""Activations written out by hand, as the one operator that they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.graph import describe, dtype, sees, shape
from ..rewrites.pattern import choose
from ..rewrites.reason import Reason
from ..rewrites.rule import ROUNDING, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import same_shape


def floating(x: Any) -> Reason | None:
    """x is a real floating tensor."""
    if dtype(x).is_floating_point:
        return None
    return Reason("dtype-not-floating", f"gelu of {describe(x)}", (x,), "float", describe(x))


def wide_is_x(x: Any, wide_x: Any) -> Reason | None:
    """wide_x is x in a wider dtype."""
    widens = torch.promote_types(dtype(x), dtype(wide_x)) == dtype(wide_x)
    if widens and same_shape(shape(x), shape(wide_x)) and _source(x) is _source(wide_x):
        return None
    message = f"the cube is of {describe(wide_x)}, which is not known to be the same value"
    return Reason("cube-of-another-value", message, (wide_x,), describe(x), describe(wide_x))


def _source(node: Any) -> Any:
    """What a value was made of by casts and regroupings, which keep the order of its entries."""
    while sees(None, node, "aten.reshape") or (sees(None, node, "aten.to") and _widens(node)):
        node = node.args[0]
    return node


def _widens(node: Any) -> bool:
    return torch.promote_types(dtype(node.args[0]), dtype(node)) == dtype(node)


@register_pattern(
    "gelu_tanh",
    family="activation",
    replacement=lambda x, wide_x, *, result: F.gelu(x.to(result), approximate="tanh"),
    samples=[Sample(x=T("B S N"), tags={"cube": cube}) for cube in ("pow", "product", "scaled")],
    guards=(floating, wide_is_x),
    derived={"result": lambda match, policy: dtype(match.matched[0])},
    numerics=ROUNDING,
    profitable=True,  # one pass over memory instead of eight
)
def gelu_tanh(x: Any, wide_x: Any) -> Any:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))); under autocast the cube is in a wider dtype."""
    cube = choose(
        "cube",
        pow=lambda: torch.pow(x, 3.0) * 0.044715,
        product=lambda: x * x * x * 0.044715,
        scaled=lambda: x * 0.044715 * x * x,
        wide=lambda: torch.pow(wide_x, 3.0) * 0.044715,
    )
    inner = (x + cube) * math.sqrt(2 / math.pi)
    return (x * 0.5) * (torch.tanh(inner) + 1.0)
