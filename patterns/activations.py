"""Activations written out by hand, as the one operator that they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from ..rewrites.graph import describe, dtype
from ..rewrites.pattern import choose
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
    replacement=lambda x: F.gelu(x, approximate="tanh"),
    samples=[Sample(x=T("B S N"), tags={"cube": cube}) for cube in ("pow", "product")],
    guards=(floating,),
    numerics=ROUNDING,
)
def gelu_tanh(x: Any) -> Any:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))"""
    cube = choose("cube", pow=lambda: torch.pow(x, 3.0), product=lambda: x * x * x)
    inner = (x + cube * 0.044715) * math.sqrt(2 / math.pi)
    return (x * 0.5) * (torch.tanh(inner) + 1.0)
