"""Relations between curves: one spelling of sigmoid, tanh, error function and softplus where one gives another.

    1 - erf(-x)  ->  1 + erf(x);   2 * sigmoid(2 * x) - 1  ->  tanh(x);   -logsigmoid(-x)  ->  softplus(x)

Activations and caps of scores are written in these ways.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.effects import wants_gradient
from ...rewrites.graph import dtype, sees
from ...rewrites.respell import Respelling, respelling
from . import builders
from .analysis import is_float, is_literal, like, uniform
from .scale import scale_of

aten = torch.ops.aten


def _scaled(user: fx.Node, node: Any) -> tuple[Any, float]:
    """(x, s) of ``mul(x, s)`` for a number `s`; otherwise the value itself and 1."""
    factor = scale_of(node) if sees(user, node, "aten.mul") else None
    return (node.args[0], float(factor)) if is_literal(factor) else (node, 1.0)


@respelling("aten.erf", "aten.tanh")
def odd_curve(node: fx.Node, edit: Editor) -> fx.Node | None:
    """erf(mul(x, -s))  ->  mul(erf(mul(x, s)), -1); also tanh."""
    x, factor = _scaled(node, node.args[0])
    if factor >= 0 or not is_float(x) or sees(node, x, "aten.log_sigmoid"):  # see `logarithm_of_sigmoid`
        return None
    return builders.scaled(edit, edit.call(node.target, builders.scaled(edit, x, -factor)), -1)


@respelling("aten.add")
def curve_from_another(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(mul(sigmoid(x), 2), -1)  ->  tanh(mul(x, 0.5));  add(tanh(mul(x, 0.5)), 1)  ->  mul(sigmoid(x), 2).

    add(mul(sigmoid(mul(x, -1)), -1), 1)  ->  sigmoid(x);  add(mul(erfc(x), -1), 2)  ->  add(erf(x), 1)
    """
    number = node.args[1]
    if node.kwargs or not is_literal(number) or not is_float(node):
        return None
    curve, factor = _scaled(node, node.args[0])
    if not like(node, curve):
        return None
    if sees(node, curve, "aten.sigmoid") and (factor, number) == (2, -1):
        return edit.call(aten.tanh.default, builders.scaled(edit, curve.args[0], 0.5))
    if sees(node, curve, "aten.erfc") and (factor, number) == (-1, 2):
        return edit.call(aten.add.Tensor, edit.call(aten.erf.default, curve.args[0]), 1)
    x, slope = _scaled(node, curve.args[0]) if sees(node, curve, "aten.sigmoid", "aten.tanh") else (None, 0.0)
    if sees(node, curve, "aten.sigmoid") and (factor, number) == (-1, 1) and slope < 0:
        return edit.call(aten.sigmoid.default, builders.scaled(edit, x, -slope))
    if sees(node, curve, "aten.tanh") and (factor, number, slope) == (1, 1, 0.5):
        return builders.scaled(edit, edit.call(aten.sigmoid.default, x), 2)
    return None


@respelling("aten.exp", "aten.mul")
def logarithm_of_sigmoid(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(log_sigmoid(x))  ->  sigmoid(x);  mul(log_sigmoid(mul(x, -1)), -1)  ->  softplus(x)."""
    inner = node.args[0]
    if not sees(node, inner, "aten.log_sigmoid") or not is_float(inner.args[0]):
        return None
    if sees(None, node, "aten.exp"):
        return edit.call(aten.sigmoid.default, inner.args[0])
    return edit.call(aten.softplus.default, builders.scaled(edit, inner.args[0], -1)) if scale_of(node) == -1 else None


@respelling("aten.reciprocal", "aten.div")
def sigmoid_by_exponent(node: fx.Node, edit: Editor) -> fx.Node | None:
    """div(y, add(exp(mul(x, -1)), 1))  ->  mul(y, sigmoid(x)), if no gradient is wanted; also its reciprocal.

    The gradient of the exponent is NaN where it overflows.
    """
    by_number = sees(None, node, "aten.reciprocal")
    total = node.args[0] if by_number else node.args[1]
    if node.kwargs or not sees(node, total, "aten.add") or wants_gradient(total) or total.args[1] != 1:
        return None
    exponent = total.args[0]
    x, factor = _scaled(exponent, exponent.args[0]) if sees(node, exponent, "aten.exp") else (None, 0.0)
    if total.kwargs or factor >= 0 or not is_float(x) or dtype(x) != dtype(total):
        return None
    curve = edit.call(aten.sigmoid.default, builders.scaled(edit, x, -factor))
    return curve if by_number else edit.call(aten.mul.Tensor, node.args[0], curve)


@respelling("aten.log1p", "aten.log")
def softplus_by_exponent(node: fx.Node, edit: Editor) -> fx.Node | None:
    """tanh(log1p(exp(x)))  ->  tanh(softplus(x)), if no gradient is wanted; also tanh(log(exp(x) + 1)).

    The logarithm is infinite if the exponent overflows, and softplus is not; the tanh of both is 1.
    """
    total = node.args[0]
    if sees(None, node, "aten.log"):
        if not sees(node, total, "aten.add") or total.args[1] != 1 or total.kwargs:
            return None
        total = total.args[0]
    if not sees(node, total, "aten.exp") or wants_gradient(node) or not is_float(total.args[0]):
        return None
    if not all(sees(None, user, "aten.tanh") for user in node.users):
        return None
    return edit.call(aten.softplus.default, total.args[0])


@respelling("aten.add")
def softplus_of_amounts(node: fx.Node, edit: Editor) -> fx.Node | None:
    """tanh(add(relu(x), log1p(exp(mul(abs(x), -1)))))  ->  tanh(softplus(x)), if no gradient is wanted."""
    if node.kwargs or wants_gradient(node) or not all(sees(None, user, "aten.tanh") for user in node.users):
        return None
    for positive, rest in (node.args, node.args[::-1]):
        x = positive.args[0] if sees(node, positive, "aten.relu", "aten.clamp_min") else None
        if not is_float(x) or not like(node, x) or positive.args[1:] not in ((), (0,)):
            continue
        exponent: Any = rest.args[0] if sees(node, rest, "aten.log1p") else None
        amount, factor = _scaled(exponent, exponent.args[0]) if sees(node, exponent, "aten.exp") else (node, 0.0)
        if factor == -1 and sees(node, amount, "aten.abs") and amount.args[0] is x:
            return edit.call(aten.softplus.default, x)
    return None


@respelling("aten.logaddexp")
def sum_with_one(node: fx.Node, edit: Editor) -> fx.Node | None:
    """logaddexp(x, zeros)  ->  softplus(x)."""
    for x, other in (node.args[:2], node.args[1::-1]):
        if uniform(other) == 0 and is_float(x) and dtype(x) == dtype(node) and like(node, x):
            return edit.call(aten.softplus.default, x)
    return None


CURVES: tuple[Respelling, ...] = (
    odd_curve, curve_from_another, logarithm_of_sigmoid, sigmoid_by_exponent, softplus_by_exponent,
    softplus_of_amounts, sum_with_one,
)  # fmt: skip
