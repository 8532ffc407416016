"""Products of elements, with the derivative that eager computes.

    prod([2, inf, 3])     by division where no element is 0              [inf, nan, inf]
    prod([0, inf, 3])     else by the products that leave one out        [inf, 0, nan]
    prod([0, 0, inf])     of all elements, two of which are 0: none      [0, 0, 0]

Tracing cannot look at elements, and always leaves one out. Here nothing is asked: all are computed, and one is chosen.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


class ProductOfElements(torch.autograd.Function):
    """The product of all elements, or of those along a dim."""

    @staticmethod
    def forward(x: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:  # type: ignore[override]
        """The operator itself."""
        return aten.prod.default(x) if dim is None else aten.prod.dim_int(x, dim, keepdim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, int | None, bool], output: torch.Tensor) -> None:
        """Keep what the derivative reads."""
        ctx.save_for_backward(inputs[0], output)
        ctx.over = inputs[1:]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """Eager's derivative."""
        (x, result), (dim, keepdim) = ctx.saved_tensors, ctx.over
        if dim is not None and x.dim() and not keepdim:
            gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
        return _derivative(gradient, x, result, dim) if x.dim() else gradient.clone(), None, None


def _derivative(gradient: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dim: int | None) -> torch.Tensor:
    row, along = (x.reshape(-1), 0) if dim is None else (x, dim)
    zeros = (x == 0).sum()
    others = _before(row, along) * _before(row.flip(along), along).flip(along)
    made = torch.where(zeros == 0, gradient * (result / x), gradient * others.reshape(x.shape))
    return made if dim is not None else torch.where(zeros > 1, 0, made)


def _before(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The products of all elements before each."""
    return torch.cat([torch.ones_like(x.sum(dim, keepdim=True)), x.cumprod(dim)], dim).narrow(dim, 0, x.shape[dim])


def product(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    """``prod(x)`` of real numbers."""
    return product_along(x, None, dtype=dtype)


def product_along(x: torch.Tensor, dim: int | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """``prod(x, dim)`` of real numbers."""
    x = x if dtype is None else x.to(dtype)
    return ProductOfElements.apply(x, dim, keepdim) if x.is_floating_point() else NotImplemented
