"""Softmax and its logarithm, forward and backward.

    peak[i]  = max over j of x[i, j]
    power    = exp(x - peak)                        softmax = power / total
    total[i] = sum over j of power[i, j]            log_softmax = x - peak - log(total)

Rows too long for the cache find peak and total in one pass (online softmax), and pay an exponential more an element.
A fully masked row, all -inf, gives NaN as in eager; `_safe_softmax` gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir.value import Value, compute_dtype
from ..arithmetic import element, minus, op, over, times, where
from ..core import Indices, Lowering, Tensor, lowers
from ..spaces import Space, fold, promised, space, total

Element = Callable[[Indices], Value]


def _online(of: Space) -> bool:
    return isinstance(of.count, int) and not of.cached


def _peak(low: Lowering, x: Tensor, of: Space, made: torch.dtype, output: int | None = None) -> Tensor:
    compute = lambda i: element(x, i, made)  # noqa: E731
    return fold(low, of, "max", compute, lambda _, top: top, compute_dtype(made), output=output)[0]


def _peak_and_total(low: Lowering, x: Tensor, of: Space, made: torch.dtype) -> tuple[Tensor, ...]:
    dtype = compute_dtype(made)
    return fold(low, of, "softmax", lambda i: element(x, i, made), lambda _, *both: both, dtype, dtype)


def _parts(low: Lowering, x: Tensor, of: Space, made: torch.dtype) -> tuple[Element, Tensor, Tensor]:
    """``exp(x - peak)`` of an element, peak and total of each row."""
    dtype = compute_dtype(made)

    def power(i: Indices) -> Value:
        return op("exp", minus(element(x, i, made), peak.at(of.result(i))))

    if _online(of):
        peak, sums = _peak_and_total(low, x, of, made)
        return power, peak, sums
    peak = _peak(low, x, of, made)
    powers = low.pointwise(power, x.sizes, dtype)
    return powers.at, peak, total(low, of, powers.at, dtype)


def _softmax(low: Lowering, x: Tensor, dim: int, masked: bool) -> Tensor:
    of, made = space(x, dim, keepdim=True), promised(low)
    power, peak, sums = _parts(low, x, of, made)

    def share(i: Indices) -> Value:
        row = of.result(i)
        part = over(power(i), sums.at(row))
        return where(op("eq", peak.at(row), float("-inf")), 0.0, part) if masked else part

    return low.pointwise(share, x.sizes, made)


@lowers("aten._softmax")
def softmax(low: Lowering, x: Tensor, dim: int, _half_to_float: bool) -> Tensor:
    """Softmax along a dim."""
    return _softmax(low, x, dim, masked=False)


@lowers("aten._safe_softmax")
def safe_softmax(low: Lowering, x: Tensor, dim: int, _dtype: Any = None) -> Tensor:
    """Softmax along a dim; rows that are all -inf give 0."""
    return _softmax(low, x, dim, masked=True)


@lowers("aten._log_softmax")
def log_softmax(low: Lowering, x: Tensor, dim: int, _half_to_float: bool) -> Tensor:
    """The logarithm of softmax; ``x - peak`` comes first, which is exact for large x."""
    of, made = space(x, dim, keepdim=True), promised(low)
    peak, logs = _peak_and_log(low, x, of, made)
    return low.pointwise(
        lambda i: minus(element(x, i, made), peak.at(of.result(i)), logs.at(of.result(i))), x.sizes, made
    )


def _peak_and_log(
    low: Lowering, x: Tensor, of: Space, made: torch.dtype, outputs: tuple[int | None, int | None] = (None, None)
) -> tuple[Tensor, Tensor]:
    """The largest element of each row, and the logarithm of the sum of ``exp(x - largest)``."""
    dtype = compute_dtype(made)
    if _online(of):
        finish = lambda _, top, sums: (top, op("log", sums))  # noqa: E731
        peak, logs = fold(low, of, "softmax", lambda i: element(x, i, made), finish, dtype, dtype, output=outputs[0])
        return peak, logs
    peak = _peak(low, x, of, made, outputs[0])
    power = lambda i: op("exp", minus(element(x, i, made), peak.at(of.result(i))))  # noqa: E731
    return peak, fold(low, of, "sum", power, lambda _, s: op("log", s), dtype, output=outputs[1])[0]


@lowers("regraft.log_softmax_rows")
def log_softmax_rows(low: Lowering, x: Tensor, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The two numbers a row that log-softmax subtracts."""
    return _peak_and_log(low, x, space(x, dim, keepdim=True), dtype, (0, 1))


@lowers("aten._softmax_backward_data")
def softmax_backward(low: Lowering, grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """(grad - sum of grad y) y."""
    of = space(grad, dim, keepdim=True)
    sums = total(low, of, lambda i: times(grad.at(i), y.at(i)), compute_dtype(y.dtype))
    return low.pointwise(lambda i: times(minus(grad.at(i), sums.at(of.result(i))), y.at(i)), grad.sizes, input_dtype)


@lowers("aten._log_softmax_backward_data")
def log_softmax_backward(low: Lowering, grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """Grad - exp(y) times the sum of grad."""
    of = space(grad, dim, keepdim=True)
    sums = total(low, of, grad.at, compute_dtype(y.dtype))
    return low.pointwise(
        lambda i: minus(grad.at(i), times(op("exp", y.at(i)), sums.at(of.result(i)))), grad.sizes, input_dtype
    )
