"""Derivatives that ask for numbers which only the data says.

    cumsum(x[mask])               torch's derivative asks whether there is more than one element
    std(x[mask])                  torch's derivative divides by a number, which is 0 for one element
    add(x, y, alpha=t.item())     torch's derivative asks whether `alpha` is 1

Torch raises there. Here these calls have derivatives that ask nothing, or are made of calls that have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...rewrites.symbolic import SYMBOLIC, hint
from ...rewrites.walk import recompiles
from .changing_numbers import as_tensor, by_tensors
from .products import product, product_along

aten = torch.ops.aten


@recompiles
def ask_nothing(graph_module: fx.GraphModule) -> int:
    """Replace such calls of a program before autograd, in place; returns how many."""
    sized, numbered = _sized(), {**by_tensors(), **_NUMBERED}
    count = 0
    for node in graph_module.graph.nodes:
        by = sized.get(node.target) if _has_late_size(node) else None
        by = numbered.get(node.target) if by is None and _has_late_number(node) else by
        if by is not None:
            node.target = named(by, node.target)
            count += 1
    return count


def _has_late_size(node: fx.Node) -> bool:
    x = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    return isinstance(x, torch.Tensor) and any(hint(size) is None for size in x.shape)


def _has_late_number(node: fx.Node) -> bool:
    values = [given.meta.get("val") for given in node.all_input_nodes]
    return any(isinstance(value, torch.SymFloat) and hint(value) is None for value in values)


def named(function: Callable[..., Any], target: Any) -> Callable[..., Any]:
    """A call of `function`, and of the operator where it leaves that as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return target(*args, **kwargs) if made is NotImplemented else made

    call.__name__ = call.__qualname__ = target.overloadpacket.__name__  # nodes are named after it
    return call


def _with_derivative(operator: Any, derivative: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The operator over a dim, with a derivative of its own: of the gradient, the operand, the result and the dim."""

    class Along(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor, dim: int) -> torch.Tensor:  # type: ignore[override]
            return operator(x, dim)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[torch.Tensor, int], output: torch.Tensor) -> None:
            ctx.save_for_backward(inputs[0], output)
            ctx.dim = inputs[1]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            return derivative(gradient, *ctx.saved_tensors, ctx.dim), None

    def call(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        if not x.is_floating_point():
            return NotImplemented
        return Along.apply(x if dtype is None else x.to(dtype), dim)

    return call


def _from_the_end(function: Callable[..., torch.Tensor], x: torch.Tensor, dim: int) -> torch.Tensor:
    return function(x.flip(dim), dim).flip(dim)


def _of_sums(gradient: torch.Tensor, _x: torch.Tensor, _result: torch.Tensor, dim: int) -> torch.Tensor:
    return _from_the_end(torch.cumsum, gradient, dim)


def _of_products(gradient: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    """Up to the first zero along `dim` by division, and at the zero by the products that leave it out."""
    zero = x == 0
    zeros = zero.cumsum(dim)
    before, first = zeros == 0, zero & (zeros == 1)
    sums = _from_the_end(torch.cumsum, torch.where(before, gradient * result, 0), dim)
    without = torch.where(first, 1, x).cumprod(dim)
    at_zero = torch.where(before, 0, gradient * without).sum(dim, keepdim=True)
    return torch.where(before, sums / torch.where(before, x, 1), torch.where(first, at_zero, 0))


def _of_log_sums(gradient: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    lowest = torch.finfo(x.dtype).min

    def part(kept: torch.Tensor) -> torch.Tensor:
        logs = torch.where(kept, gradient.abs().log(), lowest) - result
        return (_from_the_end(torch.logcumsumexp, logs, dim) + x).exp()

    return part(gradient > 0) - part(gradient < 0)


def _deviation_over(over: Any = None, unbiased: bool = True, keepdim: bool = False) -> tuple[list[int], bool, bool]:
    """The dims (none: all) that three forms of deviations give by position, `unbiased` and `keepdim`."""
    return ([], over, False) if isinstance(over, bool) else ([*(over or ())], unbiased, keepdim)


def _deviation(operator: Any, derivative: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A variance or standard deviation with a derivative that divides by a tensor: a number may be 0."""
    along = _with_derivative(lambda x, how: operator(x, how[0], correction=how[1], keepdim=True), derivative)

    def compute(x: torch.Tensor, *over: Any, correction: Any = None, keepdim: bool = False) -> Any:
        dims, unbiased, kept = _deviation_over(*over)
        dims = dims or [*range(x.dim())]
        made = along(x, (dims, int(unbiased) if correction is None else correction))
        return made if made is NotImplemented or kept or keepdim else made.squeeze(dims)

    return compute


def _of_variance(gradient: torch.Tensor, x: torch.Tensor, _result: torch.Tensor, how: Any) -> torch.Tensor:
    dims, correction = how
    freedom = torch.ones_like(x).sum(dims, keepdim=True) - correction
    return 2 / freedom * gradient * (x - x.mean(dims, keepdim=True))


def _of_deviation(gradient: torch.Tensor, x: torch.Tensor, result: torch.Tensor, how: Any) -> torch.Tensor:
    return _of_variance((gradient / (result * 2)).masked_fill(result == 0, 0), x, result, how)


def _with_mean(deviation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: torch.Tensor, *over: Any, correction: Any = None, keepdim: bool = False) -> Any:
        made = deviation(x, *over, correction=correction, keepdim=keepdim)
        dims, _, kept = _deviation_over(*over)
        return made if made is NotImplemented else (made, x.mean(dims, keepdim=kept or keepdim))

    return compute


def _sized() -> dict[Any, Callable[..., Any]]:
    return {
        aten.cumsum.default: _with_derivative(aten.cumsum.default, _of_sums),
        aten.cumprod.default: _with_derivative(aten.cumprod.default, _of_products),
        aten.logcumsumexp.default: _with_derivative(aten.logcumsumexp.default, _of_log_sums),
        aten.prod.default: product,
        aten.prod.dim_int: product_along,
        **{
            overload: by
            for packet, by in _DEVIATIONS.items()
            for overload in (packet.default, packet.dim, packet.correction)
        },
    }


_VARIANCE = _deviation(aten.var.correction, _of_variance)
_DEVIATION = _deviation(aten.std.correction, _of_deviation)
_DEVIATIONS = {
    aten.var: _VARIANCE,
    aten.std: _DEVIATION,
    aten.var_mean: _with_mean(_VARIANCE),
    aten.std_mean: _with_mean(_DEVIATION),
}


def _rsub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return aten.sub.Tensor(y, x * alpha) if isinstance(y, torch.Tensor) else NotImplemented


def _pow(x: Any, exponent: Any) -> Any:
    return torch.pow(x, as_tensor(exponent, x)) if x.is_floating_point() else NotImplemented


def _xlogy(x: Any, y: Any) -> Any:
    return torch.xlogy(x, as_tensor(y, x)) if x.is_floating_point() else NotImplemented


def _celu(x: Any, alpha: Any = 1.0) -> Any:
    return aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


def _scaled_sum(product: Callable[..., Any]) -> Callable[..., Any]:
    def compute(added: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not any(isinstance(number, SYMBOLIC) for number in (alpha, beta)):
            return NotImplemented
        return added * beta + product(a, b) * alpha

    return compute


_NUMBERED: dict[Any, Callable[..., Any]] = {
    aten.rsub.Tensor: _rsub,
    aten.pow.Tensor_Scalar: _pow,
    aten.xlogy.Scalar_Other: _xlogy,
    aten.celu.default: _celu,
    aten.addmm.default: _scaled_sum(torch.mm),
    aten.addmv.default: _scaled_sum(torch.mv),
    aten.baddbmm.default: _scaled_sum(torch.bmm),
    aten.addbmm.default: _scaled_sum(lambda a, b: torch.bmm(a, b).sum(0)),
    aten.addr.default: _scaled_sum(torch.outer),
}
