"""Activations and their derivatives, by eager's formulas, in the order of eager's operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.value import HALVES, Value
from ..arithmetic import minus, negated, op, over, plus, square, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, const, lowers
from ..positions import swapped
from ..scalars import literal
from .elementwise import at_least, at_most, elementwise
from .views import narrowed, wrapped

BETA, KAPPA = math.sqrt(2 / math.pi), 0.044715
_SIXTH = 0.1666666716337204  # in float32, in which eager rounds it, also for float64


def _sigmoid(a: Value) -> Value:
    return op("sigmoid", a)


# -- rectifiers -----------------------------------------------------------------------------------------------------


@lowers("aten.relu")
def _relu(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: at_least(a, 0))


@lowers("aten.relu6")
def _relu6(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: at_most(at_least(a, 0), 6))


@lowers("aten.threshold")
def _threshold(low: Lowering, x: Tensor, threshold: Any, value: Any) -> Tensor:
    return elementwise(low, [x], lambda a: where(op("le", a, threshold), value, a))


@lowers("aten.threshold_backward")
def _threshold_backward(low: Lowering, g: Tensor, x: Tensor, threshold: Any) -> Tensor:
    return elementwise(low, [g, x], lambda g, a: where(op("le", a, threshold), 0, g))


@lowers("aten.leaky_relu")
def _leaky_relu(low: Lowering, x: Tensor, slope: Any = 0.01) -> Tensor:
    return elementwise(low, [x], lambda a: where(op("gt", a, 0), a, times(a, slope)))


@lowers("aten.leaky_relu_backward")
def _leaky_relu_backward(low: Lowering, g: Tensor, x: Tensor, slope: Any, _: bool) -> Tensor:
    """The gradient by the sign of the input or of the result, which are the same."""
    return elementwise(low, [g, x], lambda g, a: where(op("gt", a, 0), g, times(g, slope)))


@lowers("aten._prelu_kernel")
def _prelu(low: Lowering, x: Tensor, weight: Tensor) -> Tensor:
    return elementwise(low, [x, weight], lambda a, w: where(op("gt", a, 0), a, times(w, a)))


@lowers("aten._prelu_kernel_backward")
def _prelu_backward(low: Lowering, g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    by_input = elementwise(low, [g, x, weight], lambda g, a, w: where(op("gt", a, 0), g, times(w, g)))
    return by_input, elementwise(low, [g, x], lambda g, a: where(op("gt", a, 0), 0, times(a, g)))


# -- exponential units ----------------------------------------------------------------------------------------------


@lowers("aten.elu")
def _elu(low: Lowering, x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    def compute(a: Value) -> Value:
        negative = times(op("expm1", times(a, input_scale)), alpha * scale)
        return where(op("lt", a, 0), negative, times(a, scale))

    return elementwise(low, [x], compute)


@lowers("aten.elu_backward")
def _elu_backward(
    low: Lowering, g: Tensor, alpha: Any, scale: Any, input_scale: Any, of_result: bool, x: Tensor
) -> Tensor:
    negative, positive = alpha * scale, scale

    def compute(g: Value, a: Value) -> Value:
        if of_result:
            small = times(times(g, input_scale), plus(a, negative))
        else:
            small = times(times(g, input_scale * negative), op("exp", times(a, input_scale)))
        return where(op("le", a, 0), small, times(g, positive))

    return elementwise(low, [g, x], compute)


@lowers("aten.celu")
def _celu(low: Lowering, x: Tensor, alpha: Any = 1.0) -> Tensor:
    if alpha == 0:
        raise Unlowered("arguments", "eager refuses an alpha of 0")
    return _elu(low, x, alpha, 1.0, 1.0 / alpha)


@lowers("aten.selu")
def _selu(low: Lowering, x: Tensor) -> Tensor:
    return _elu(low, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


# -- smooth units ---------------------------------------------------------------------------------------------------


@lowers("aten.gelu")
def _gelu(low: Lowering, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return elementwise(low, [x], lambda a: times(a, _sigmoid(_gelu_exponent(a))))
    return elementwise(low, [x], lambda a: times(a, op("normal_cdf", a)))


def _gelu_exponent(a: Value) -> Value:
    """Twice what eager takes the tanh of: (1 + tanh(u)) / 2 is sigmoid(2 u), in which nothing cancels."""
    return times(2 * BETA, plus(a, times(KAPPA, times(times(a, a), a))))


@lowers("aten.gelu_backward")
def _gelu_backward(low: Lowering, g: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    slope = _gelu_tanh_slope if approximate == "tanh" else _gelu_slope
    return elementwise(low, [g, x], lambda g, a: times(g, slope(a)))


def _gelu_slope(a: Value) -> Value:
    return plus(op("normal_cdf", a), times(a, op("normal_pdf", a)))


def _gelu_tanh_slope(a: Value) -> Value:
    """By s + x s (1 - s) times the slope of the exponent; s and 1 - s come from the smaller power, neither from 1."""
    exponent = _gelu_exponent(a)
    size = op("abs", exponent)
    larger = _sigmoid(size)
    smaller = times(op("exp", negated(size)), larger)
    share = where(op("gt", exponent, 0), larger, smaller)
    inner = times(2 * BETA, plus(1, times(3 * KAPPA, square(a))))
    return plus(share, times(times(a, times(smaller, larger)), inner))


@lowers("aten.silu")
def _silu(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: over(a, plus(1, op("exp", negated(a)))))


@lowers("aten.silu_backward")
def _silu_backward(low: Lowering, g: Tensor, x: Tensor) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        gate = _sigmoid(a)
        return times(times(g, gate), plus(1, times(a, minus(1, gate))))

    return elementwise(low, [g, x], compute)


@lowers("aten.mish")
def _mish(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: times(a, op("tanh", op("log1p", op("exp", a)))))


@lowers("aten.mish_backward")
def _mish_backward(low: Lowering, g: Tensor, x: Tensor) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        gate, bent = _sigmoid(a), op("tanh", op("log1p", op("exp", a)))
        return times(g, plus(bent, times(times(a, gate), minus(1, square(bent)))))

    return elementwise(low, [g, x], compute)


@lowers("aten.softplus")
def _softplus(low: Lowering, x: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    def compute(a: Value) -> Value:
        scaled = times(a, beta)
        return where(op("gt", scaled, threshold), a, over(op("log1p", op("exp", scaled)), beta))

    return elementwise(low, [x], compute)


@lowers("aten.softplus_backward")
def _softplus_backward(low: Lowering, g: Tensor, x: Tensor, beta: Any, threshold: Any) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        scaled = times(a, beta)
        grown = op("exp", scaled)
        return where(op("gt", scaled, threshold), g, over(times(g, grown), plus(grown, 1)))

    return elementwise(low, [g, x], compute)


@lowers("aten.log_sigmoid_forward")
def _log_sigmoid(low: Lowering, x: Tensor) -> tuple[Tensor, ...]:
    """With the buffer that eager keeps for the backward on CPUs: ``exp(-|x|)``; on GPUs it is empty."""
    result = elementwise(low, [x], lambda a: minus(at_most(a, 0), op("log1p", op("exp", negated(op("abs", a))))))
    if low.device.type != "cpu":
        return result, low.pointwise(lambda i: x.at((0,) * len(x.sizes)), (0,), x.dtype)
    return result, elementwise(low, [x], lambda a: op("exp", negated(op("abs", a))))


@lowers("aten.log_sigmoid_backward")
def _log_sigmoid_backward(low: Lowering, g: Tensor, x: Tensor, _: Tensor) -> Tensor:
    """What the forward kept is computed again."""

    def compute(g: Value, a: Value) -> Value:
        small = op("exp", negated(op("abs", a)))
        negative, one = op("lt", a, 0), const(1, a.dtype)
        share = times(where(negative, one, -1), over(small, plus(1, small)))
        return times(g, minus(where(negative, one, 0), share))

    return elementwise(low, [g, x], compute)


# -- of the result --------------------------------------------------------------------------------------------------


@lowers("aten.sigmoid_backward")
def _sigmoid_backward(low: Lowering, g: Tensor, y: Tensor) -> Tensor:
    return elementwise(low, [g, y], lambda g, y: times(times(g, minus(1, y)), y))


@lowers("aten.tanh_backward")
def _tanh_backward(low: Lowering, g: Tensor, y: Tensor) -> Tensor:
    return elementwise(low, [g, y], lambda g, y: times(g, minus(1, times(y, y))))


@lowers("aten.logit")
def _logit(low: Lowering, x: Tensor, eps: float | None = None) -> Tensor:
    limits = None if eps is None else _logit_limits(low, x, eps)

    def compute(a: Value) -> Value:
        if limits is not None:
            a = where(op("lt", a, limits[0]), limits[0], where(op("gt", a, limits[1]), limits[1], a))
        return op("log", over(a, minus(1, a)))

    return elementwise(low, [x], compute, "int_to_float")


def _logit_limits(low: Lowering, x: Tensor, eps: Any) -> tuple[Any, Any]:
    """``eps`` and ``1 - eps``, which eager rounds to numbers of 16 bits on CPUs: 1 - 0.001 is 1 in bfloat16."""
    if low.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16) or not isinstance(eps, float):
        return eps, 1 - eps
    least = torch.tensor(eps, dtype=x.dtype)
    return least.item(), (1 - least).item()


@lowers("aten.logit_backward")
def _logit_backward(low: Lowering, g: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    least, most = (0.0, 1.0) if eps is None else _logit_limits(low, x, eps)
    outside = math.nan if eps is None else 0.0

    def compute(g: Value, a: Value) -> Value:
        out = op("logical_or", op("lt", a, least), op("gt", a, most))
        return where(out, outside, over(g, times(a, minus(1, a))))

    return elementwise(low, [g, x], compute)


# -- hard and shrinking ---------------------------------------------------------------------------------------------


@lowers("aten.hardtanh")
def _hardtanh(low: Lowering, x: Tensor, least: Any = -1, most: Any = 1) -> Tensor:
    return elementwise(low, [x], lambda a: at_most(at_least(a, least), most))


@lowers("aten.hardtanh_backward")
def _hardtanh_backward(low: Lowering, g: Tensor, x: Tensor, least: Any, most: Any) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        return where(op("logical_or", op("le", a, least), op("ge", a, most)), 0, g)

    return elementwise(low, [g, x], compute)


def _gate(a: Value) -> Value:
    return at_most(at_least(plus(a, 3), 0), 6)


@lowers("aten.hardsigmoid")
def _hardsigmoid(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: _sixth(low, _gate(a)))


def _sixth(low: Lowering, a: Value) -> Value:
    """A sixth, as eager takes it: on GPUs by a product."""
    return over(a, 6) if low.device.type == "cpu" else times(a, _SIXTH)


@lowers("aten.hardsigmoid_backward")
def _hardsigmoid_backward(low: Lowering, g: Tensor, x: Tensor) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        inside = op("logical_and", op("gt", a, -3), op("lt", a, 3))
        return where(inside, times(g, _SIXTH), 0)

    return elementwise(low, [g, x], compute)


@lowers("aten.hardswish")
def _hardswish(low: Lowering, x: Tensor) -> Tensor:
    return elementwise(low, [x], lambda a: _sixth(low, times(a, _gate(a))))


@lowers("aten.hardswish_backward")
def _hardswish_backward(low: Lowering, g: Tensor, x: Tensor) -> Tensor:
    def compute(g: Value, a: Value) -> Value:
        inside = times(g, plus(over(a, 3), 0.5))
        return where(op("le", a, -3), 0, where(op("lt", a, 3), inside, g))

    return elementwise(low, [g, x], compute)


@lowers("aten.hardshrink")
def _hardshrink(low: Lowering, x: Tensor, limit: Any = 0.5) -> Tensor:
    limit = _as_element(limit, x)
    return elementwise(low, [x], lambda a: where(_within(a, limit), 0, a))


@lowers("aten.hardshrink_backward", "aten.softshrink_backward")
def _shrink_backward(low: Lowering, g: Tensor, x: Tensor, limit: Any) -> Tensor:
    limit = _as_element(limit, x)
    return elementwise(low, [g, x], lambda g, a: where(_within(a, limit), 0, g))


def _within(a: Value, limit: Any) -> Value:
    return op("logical_and", op("ge", a, -limit), op("le", a, limit))


def _as_element(number: Any, x: Tensor) -> Any:
    """A number as an element of a tensor has it: rounded to 16 bits."""
    known = isinstance(number, (int, float)) and x.dtype in HALVES
    return float(torch.tensor(number, dtype=x.dtype)) if known else number


@lowers("aten.softshrink")
def _softshrink(low: Lowering, x: Tensor, limit: Any = 0.5) -> Tensor:
    """Eager rounds the limit to 16 bits on GPUs, and in the backward."""
    limit = limit if low.device.type == "cpu" else _as_element(limit, x)

    def compute(a: Value) -> Value:
        below = where(op("lt", a, -limit), plus(a, limit), times(a, 0))
        return where(op("gt", a, limit), minus(a, limit), below)

    return elementwise(low, [x], compute)


# -- gated ----------------------------------------------------------------------------------------------------------


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    dim = wrapped(dim, len(x.sizes))
    half = x.sizes[dim] // 2
    return narrowed(x, dim, 0, half), narrowed(x, dim, half, half)


@lowers("aten.glu")
def _glu(low: Lowering, x: Tensor, dim: int = -1) -> Tensor:
    a, b = _halves(x, dim)
    return elementwise(low, [a, b], lambda a, b: times(a, _sigmoid(b)))


@lowers("aten.glu_backward")
def _glu_backward(low: Lowering, g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Both halves in one definition."""
    dim = wrapped(dim, len(x.sizes))
    half = x.sizes[dim] // 2

    def value(i: Indices) -> Value:
        first, second = swapped(i, dim, i[dim] % half), swapped(i, dim, i[dim] % half + half)
        gate = _sigmoid(x.at(second))
        slope = times(g.at(first), gate)
        in_first = op("lt", literal(i[dim], torch.int64), literal(half, torch.int64))
        return where(in_first, slope, times(slope, minus(1, gate), x.at(first)))

    return low.pointwise(value, x.sizes, x.dtype)
