"""The error of reports and comparisons: relative to eager, in the 2-norm.

outputs      the worst tensor        gradients      all of them together: some consist of rounding errors only
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def worst_error(ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """The largest of the errors of single tensors; infinite where their number differs."""
    if len(ours) != len(eager):
        return float("inf")
    return max((total_error([a], [b]) for a, b in zip(ours, eager, strict=True)), default=0.0)


def total_error(ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """Relative error in the 2-norm over all tensors together; where both are NaN, or equal infinities, they agree."""
    difference = norm = 0.0
    for a, b in zip(ours, eager, strict=True):
        if a.shape != b.shape:
            return float("inf")
        wrong = ~((a == b) | (a.isnan() & b.isnan()))
        difference += (a.double() - b.double())[wrong].square().sum().item()
        norm += b.double()[b.isfinite()].square().sum().item()
    return (difference / norm) ** 0.5 if norm else difference**0.5
