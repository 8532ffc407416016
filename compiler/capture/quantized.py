"""Decomposes the operators of `quantized_decomposed`, which quantized programs of PT2E consist of.

    dequantize_per_tensor(x, 0.05, 3, ...)   ->   (x.to(float32) - 3) * 0.05
    quantize_per_tensor(x, s, z, ...)        ->   clamp(round(x * (1 / s)) + z, 0, 255).to(uint8)        s, z tensors

Torch registers each of them as one operator with an implementation in Python. Rules would find no bytes in it, and each
would be a call of its own. Tensors of scales and zero points are read in the graph, where torch's implementation would
wait for their numbers. Calls with gradients are kept, since torch has no derivatives for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...rewrites.compat.operators import quantized_formula

_ARGUMENTS, _TENSORS = 6, 3  # of a call with tensors for scale and zero point; bounds are numbers
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def quantized(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function of operators that computes what a call computes; None for calls that are kept."""
    found = quantized_formula(target)
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if found is None or (torch.is_grad_enabled() and any(x.requires_grad for x in given)):
        return None
    name, formula = found
    if "per_tensor" not in name or len(given) == 1:
        return formula
    legal = not kwargs and len(args) == _ARGUMENTS and len(given) == _TENSORS
    of, to = (_FLOATS, _quantize) if name == "quantize_per_tensor" else ((args[-1],), _dequantize)
    return to if legal and args[0].dtype in of else None


def _quantize(x: Any, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> Any:
    """The reciprocal is rounded twice, as that of a Python number."""
    inverse = scale.reshape(()).to(torch.float64).reciprocal().to(torch.float32)
    moved = torch.round(x.to(torch.float32) * inverse) + zero.reshape(()).to(torch.float32)
    return torch.clamp(moved, low, high).to(dtype)


def _dequantize(x: Any, scale: Any, zero: Any, _low: int, _high: int, _dtype: torch.dtype) -> Any:
    zero, scale = (number.reshape(()).to(torch.float32) for number in (zero, scale))
    return (x.to(torch.float32) - zero) * scale
