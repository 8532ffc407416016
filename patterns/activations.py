"""Activations written out by hand, as the one operator that they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.graph import describe, dtype
from ..rewrites.pattern import cast, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import ROUNDING, register_pattern
from ..rewrites.sample import Sample, T


def floating(x: Any) -> Reason | None:
    """x is a real floating tensor."""
    if dtype(x).is_floating_point:
        return None
    return Reason("dtype-not-floating", f"gelu of {describe(x)}", (x,), "float", describe(x))


@register_pattern(
    "gelu_tanh",
    family="activation",
    replacement=lambda x, *, result: F.gelu(x.to(result), approximate="tanh"),
    samples=[Sample(x=T("B S N"), tags={"cube": cube}) for cube in ("pow", "product", "scaled")],
    guards=(floating,),
    derived={"result": lambda match, policy: dtype(match.matched[0])},
    numerics=ROUNDING,
)
def gelu_tanh(x: Any) -> Any:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))); under autocast the cube is in a wider dtype."""
    cube = choose(
        "cube",
        pow=lambda: torch.pow(x, 3.0) * 0.044715,
        product=lambda: x * x * x * 0.044715,
        scaled=lambda: x * 0.044715 * x * x,
        wide=lambda: torch.pow(cast(x), 3.0) * 0.044715,
    )
    inner = (x + cube) * math.sqrt(2 / math.pi)
    return (x * 0.5) * (torch.tanh(inner) + 1.0)
