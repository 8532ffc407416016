"""Losses: element by element then reduced, and the negative log likelihood with its indirect loads.

    nll:  for n < 8: reduce of -weight[target[n]] * x[n, target[n]], where target[n] is not ignored

A target out of range raises eager's IndexError when run. `binary_cross_entropy` gives NaN where eager refuses an input
outside of [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...ir.index.index import Loaded
from ...ir.value import Guarded, Number, Value, compute_dtype
from ..arithmetic import minus, negated, op, over, plus, size_value, square, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers
from ..spaces import Space, fold, promised, stored, total
from .elementwise import broadcast, element, widened
from .reductions import average

NONE, MEAN, SUM = range(3)
Element = Callable[[Indices], Value]
Formula = Callable[[Value, Value], Value]


# -- element by element ------------------------------------------------------------------------------------------------


def _read(x: Tensor, i: Indices, dtype: torch.dtype) -> Value:
    """An element of an operand, which may be broadcast."""
    return cast(widened(element(x, i), x.dtype, dtype), compute_dtype(dtype))


def _space(*tensors: Tensor | None) -> Space:
    """Everything, over the sizes that operands broadcast to."""
    sizes = broadcast(t.sizes for t in tensors if t is not None)
    return Space(sizes, tuple(range(len(sizes))))


def _reduced(low: Lowering, of: Space, loss: Element, reduction: int) -> Tensor:
    """The loss of every element, their mean or their sum."""
    made = promised(low)
    if reduction == NONE:
        return low.pointwise(loss, of.sizes, made)
    return average(low, of, loss, made) if reduction == MEAN else total(low, of, loss, made)


def _loss(low: Lowering, x: Tensor, y: Tensor, formula: Formula, reduction: int) -> Tensor:
    made = promised(low)
    return _reduced(low, _space(x, y), lambda i: formula(_read(x, i, made), _read(y, i, made)), reduction)


def _gradient(
    low: Lowering, grad: Tensor, x: Tensor, y: Tensor, slope: Formula, reduction: int, factor: float = 1.0
) -> Tensor:
    """``factor * slope(x, y) * grad``; the factor is over the count of elements where the loss was their mean.

    The factor comes first, as in eager: slopes near the largest number do not overflow before they are divided.
    """
    of, made = _space(x, y), promised(low)

    def compute(i: Indices) -> Value:
        value = slope(_read(x, i, made), _read(y, i, made))
        if reduction == MEAN:
            value = times(value, _share(factor, of.count, value.dtype))
        elif factor != 1.0:
            value = times(value, factor)
        return times(value, _read(grad, i, made))

    return low.pointwise(compute, of.sizes, made)


def _share(factor: float, count: Any, dtype: torch.dtype) -> Any:
    if isinstance(count, int):
        return factor / count if count else math.nan  # there is no element to multiply by it
    return over(factor, size_value(count, dtype))


def _shared(value: Value, of: Space, reduction: int) -> Value:
    return over(value, size_value(of.count, value.dtype)) if reduction == MEAN else value


@lowers("aten.mse_loss")
def mse_loss(low: Lowering, x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    """(x - y)² of every element, their mean or their sum."""
    return _loss(low, x, y, lambda a, b: square(minus(a, b)), reduction)


@lowers("aten.mse_loss_backward")
def mse_loss_backward(low: Lowering, grad: Tensor, x: Tensor, y: Tensor, reduction: int) -> Tensor:
    """2 (x - y) grad."""
    return _gradient(low, grad, x, y, minus, reduction, 2.0)


def _of_half(low: Lowering, x: Tensor, number: Any) -> Any:
    """A number as eager's kernels for float16 on CPUs, which compute in float16, take it: 7e4 is infinite there."""
    known = isinstance(number, (int, float)) and low.device.type == "cpu" and x.dtype == torch.float16
    return float(torch.tensor(number, dtype=x.dtype)) if known else number


@lowers("aten.smooth_l1_loss")
def smooth_l1_loss(low: Lowering, x: Tensor, y: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """Half a square below `beta`, over it; from there on the distance, less half of `beta`."""
    beta = _of_half(low, x, beta)

    def formula(a: Value, b: Value) -> Value:
        z = op("abs", minus(a, b))
        return where(op("lt", z, beta), over(times(0.5, square(z)), beta), minus(z, 0.5 * beta))

    return _loss(low, x, y, formula, reduction)


@lowers("aten.smooth_l1_loss_backward")
def smooth_l1_loss_backward(low: Lowering, grad: Tensor, x: Tensor, y: Tensor, reduction: int, beta: float) -> Tensor:
    """The sign of x - y beyond `beta`, a line in between."""
    beta = _of_half(low, x, beta)

    def slope(a: Value, b: Value) -> Value:
        z = minus(a, b)
        return _clipped(z, over(z, beta), beta, 1.0)

    return _gradient(low, grad, x, y, slope, reduction)


def _clipped(z: Value, inner: Value, limit: float, outer: float) -> Value:
    """`inner` where ``|z| < limit``, else ``outer`` with the sign of `z` (minus at zero)."""
    return where(op("le", z, -limit), const(-outer, z.dtype), where(op("ge", z, limit), const(outer, z.dtype), inner))


@lowers("aten.huber_loss")
def huber_loss(low: Lowering, x: Tensor, y: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """Half a square up to `delta`, from there on a line."""

    def formula(a: Value, b: Value) -> Value:
        z = op("abs", minus(a, b))
        return where(op("le", z, delta), times(0.5, square(z)), times(delta, minus(z, 0.5 * delta)))

    return _loss(low, x, y, formula, reduction)


@lowers("aten.huber_loss_backward")
def huber_loss_backward(low: Lowering, grad: Tensor, x: Tensor, y: Tensor, reduction: int, delta: float) -> Tensor:
    """The difference x - y, clipped to `delta`."""

    def slope(a: Value, b: Value) -> Value:
        z = minus(a, b)
        return _clipped(z, z, delta, delta)

    return _gradient(low, grad, x, y, slope, reduction)


@lowers("aten.soft_margin_loss")
def soft_margin_loss(low: Lowering, x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(-x y))."""
    return _loss(low, x, y, lambda a, b: op("log1p", op("exp", times(negated(a), b))), reduction)


@lowers("aten.soft_margin_loss_backward")
def soft_margin_loss_backward(low: Lowering, grad: Tensor, x: Tensor, y: Tensor, reduction: int) -> Tensor:
    """-y exp(-x y) / (1 + exp(-x y)), which overflows where eager's does."""
    if y.dtype in (torch.bool, torch.uint8):  # of which eager takes the negative first
        raise Unlowered("arguments", f"targets of {y.dtype}, whose negatives eager refuses or wraps")

    def slope(a: Value, b: Value) -> Value:
        z = op("exp", times(negated(b), a))
        return over(times(negated(b), z), plus(z, 1.0))

    return _gradient(low, grad, x, y, slope, reduction)


# -- binary cross entropy ----------------------------------------------------------------------------------------------


def _times_weight(value: Value, weight: Tensor | None, i: Indices, dtype: torch.dtype) -> Value:
    return value if weight is None else times(value, _read(weight, i, dtype))


@lowers("aten.binary_cross_entropy")
def binary_cross_entropy(
    low: Lowering, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)), logarithms no less than -100."""
    made = promised(low)

    def loss(i: Indices) -> Value:
        a, b = _read(x, i, made), _read(y, i, made)
        absent = op("maximum", op("log1p", negated(a)), -100.0)
        value = minus(times(minus(b, 1.0), absent), times(b, op("maximum", op("log", a), -100.0)))
        return _times_weight(value, weight, i, made)

    return _reduced(low, _space(x, y, weight), loss, reduction)


@lowers("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    low: Lowering, grad: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(x - y) / (x (1 - x)), the divisor no less than 1e-12."""
    of, made = _space(x, y, weight), promised(low)

    def compute(i: Indices) -> Value:
        a = _read(x, i, made)
        spread = op("maximum", times(minus(1.0, a), a), 1e-12)
        value = over(times(_read(grad, i, made), minus(a, _read(y, i, made))), spread)
        return _shared(_times_weight(value, weight, i, made), of, reduction)

    return low.pointwise(compute, of.sizes, made)


@lowers("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    low: Lowering,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Binary cross entropy of sigmoid(x), without overflow."""
    made = promised(low)

    def loss(i: Indices) -> Value:
        a, b = _read(x, i, made), _read(y, i, made)
        likely = _log_sigmoid(a)
        if pos_weight is not None:
            likely = times(likely, plus(times(minus(_read(pos_weight, i, made), 1.0), b), 1.0))
        return _times_weight(minus(times(minus(1.0, b), a), likely), weight, i, made)

    return _reduced(low, _space(x, y, weight, pos_weight), loss, reduction)


def _log_sigmoid(a: Value) -> Value:
    """``log(sigmoid(a))``, exact at both ends."""
    return minus(op("minimum", a, 0.0), op("log1p", op("exp", negated(op("abs", a)))))


# -- negative log likelihood -------------------------------------------------------------------------------------------


class _Targets:
    """Classes chosen along dim 1 of `x` (dim 0 of a single sample), and their weights."""

    def __init__(self, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
        if len(target.sizes) != len(x.sizes) - 1:
            raise Unlowered("arguments", f"targets of shape {target.sizes} for an input of shape {x.sizes}")
        self.x, self.target, self._weight, self._ignore = x, target, weight, ignore_index
        self.axis = min(1, len(x.sizes) - 1)
        self.classes = x.sizes[self.axis]
        self.dtype = compute_dtype(x.dtype)

    def chosen(self, at: Indices) -> Value:
        return cast(self.target.at(at), torch.int64)

    def counts(self, at: Indices) -> Value:
        """Whether a sample is not ignored."""
        return op("ne", self.chosen(at), self._ignore)

    def weight_of(self, number: Any) -> Value:
        return const(1.0, self.dtype) if self._weight is None else cast(self._weight.at((number,)), self.dtype)

    def _if_counted(self, at: Indices, make: Callable[[Any], Value]) -> Value:
        number = Loaded(self.chosen(at), self.classes, False).index()
        return Guarded(self.counts(at), make(number), const(0.0, self.dtype), self.dtype)

    def weight(self, at: Indices) -> Value:
        return self._if_counted(at, self.weight_of)

    def loss(self, at: Indices) -> Value:
        before, after = at[: self.axis], at[self.axis :]
        return self._if_counted(
            at, lambda number: times(negated(self.x.at((*before, number, *after))), self.weight_of(number))
        )


@lowers("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(
    low: Lowering, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss, and the total weight of the samples that count (0 where a batch is not reduced)."""
    of, samples = Space(target.sizes, tuple(range(len(target.sizes)))), _Targets(x, target, weight, ignore_index)
    if reduction == NONE:
        losses = low.pointwise(samples.loss, target.sizes, x.dtype, output=0)
        weight_of_one = (lambda _: const(0.0, samples.dtype)) if target.sizes else samples.weight
        return losses, low.pointwise(weight_of_one, (), x.dtype, output=1)
    weights = total(low, of, samples.weight, samples.dtype, output=1)
    share = lambda s: over(s, weights.at(())) if reduction == MEAN else s  # noqa: E731
    loss = fold(low, of, "sum", samples.loss, lambda _, s: share(s), x.dtype, output=0)[0]
    return loss, stored(low, weights, 1)


@lowers("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    low: Lowering, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, *more: Any
) -> Tensor:
    """Minus the weight at each sample's class, 0 elsewhere: a comparison, so nothing is scattered."""
    reduction, ignore_index, weights = more
    samples, axis = _Targets(x, target, weight, ignore_index), min(1, len(x.sizes) - 1)

    def compute(i: Indices) -> Value:
        at = (*i[:axis], *i[axis + 1 :])
        value = times(negated(cast(element(grad, at), samples.dtype)), samples.weight_of(i[axis]))
        value = over(value, cast(weights.at(()), samples.dtype)) if reduction == MEAN else value
        hit = op("eq", samples.chosen(at), Number(i[axis], torch.int64))
        return where(op("logical_and", hit, samples.counts(at)), value, 0.0)

    return low.pointwise(compute, x.sizes, promised(low))
