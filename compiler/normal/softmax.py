"""Softmax: every spelling is `softmax(x, -1)`, over the last dimension, without a dtype of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...patterns.attention_guards import BY_SUMS
from ...patterns.masks import keeps_diagonal
from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees
from ...rewrites.respell import respelling
from . import builders
from .analysis import CASTS, is_float, is_literal, last, like, reduction, same_value, uniform
from .scale import scale_of

aten = torch.ops.aten

_SOFTMAX = ("aten.softmax", "aten._softmax", "aten.special_softmax")
_LOG_SOFTMAX = ("aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax")


@respelling(*_SOFTMAX, *_LOG_SOFTMAX)
def softmax_name(node: fx.Node, edit: Editor) -> fx.Node | None:
    """_softmax(x, 3, False), special.softmax(x, 3), softmax(x, 3, dtype=float32)  ->  softmax(to(x, float32), -1)."""
    x, dim = node.args[0], node.args[1]
    target = aten.softmax.int if op_name(node) in _SOFTMAX else aten.log_softmax.int
    if not isinstance(dim, int) or not is_float(x) or not -rank(x) <= dim < rank(x):  # eager refuses this
        return None
    if node.target is target and node.args[1:] == (-1,) and not node.kwargs:
        return None
    return _over(node, edit, builders.cast(edit, node, x, dtype(node)), dim, target)


def _over(node: fx.Node, edit: Editor, x: fx.Node, dim: int, target: compat.OpOverload) -> fx.Node:
    """softmax(x, d)  ->  permute(softmax(permute(x, d to the end), -1), back)."""
    if last(x, dim):
        return edit.call(target, x, -1)
    order = list(range(rank(x)))
    order[dim], order[-1] = order[-1], order[dim]
    inner = edit.call(target, builders.permute(edit, node, x, order), -1)
    return builders.permute(edit, node, inner, order)


@respelling("aten.exp")
def exponent_of_log_softmax(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(log_softmax(x, -1))  ->  softmax(x, -1)."""
    inner = node.args[0]
    if not sees(node, inner, "aten.log_softmax") or inner.args[1:] != (-1,):
        return None
    return edit.call(aten.softmax.int, inner.args[0], -1)


@respelling("aten.exp")
def exponent_over_logsumexp(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(x - logsumexp(x, [d], keepdim=True))  ->  softmax(x, d)."""
    x, total = difference(node, node.args[0])
    over = None if total is None else reduction(node, total, "aten.logsumexp")
    if over is None or not same_value(over[0], x) or not is_float(x) or _may_absorb_logarithm(node, x):
        return None
    return _by_sums(node, edit, x, over[1])


def _by_sums(node: fx.Node, edit: Editor, x: fx.Node, dim: int) -> fx.Node:
    """softmax(x, d), of which eager's weights by sums of exponents are known to differ in rows that hold infinity."""
    made = _over(node, edit, x, dim, aten.softmax.int)
    weights = made if op_name(made) == "aten.softmax" else made.args[0]
    weights.meta[BY_SUMS] = True  # type: ignore[union-attr]
    return made


def _may_absorb_logarithm(user: fx.Node, x: fx.Node) -> bool:
    """Whether a mask may fill rows with a number to which adding log(n) changes nothing: weights of 1 in eager."""
    masked = x.args[0] if sees(user, x, *CASTS) else x
    if sees(user, masked, "aten.add"):
        return any(is_tensor(term) and _may_absorb_logarithm(user, term) for term in masked.args[:2])
    if not sees(user, masked, "aten.where") or len(masked.args) != 3 or not is_tensor(masked.args[0]):
        return False
    fill = uniform(masked.args[2])
    absorbs = fill is not None and math.isfinite(fill) and abs(fill) * torch.finfo(dtype(masked)).eps > 1
    return absorbs and not keeps_diagonal(None, masked.args[0])


def difference(user: fx.Node, node: Any) -> tuple[fx.Node | None, fx.Node | None]:
    """(x, m) of `sub(x, m)` or `add(x, mul(m, -1))`."""
    if not sees(user, node, "aten.sub", "aten.add") or arguments(node).get("alpha", 1) != 1:
        return None, None
    x, term = node.args[:2]
    if op_name(node) == "aten.sub":
        return (x, term) if is_tensor(x) and is_tensor(term) else (None, None)
    negative = sees(user, term, "aten.mul") and term.args[1] == -1
    return (x, term.args[0]) if negative else (None, None)


def quotient(node: fx.Node) -> tuple[Any, Any]:
    """(a, b) of ``a / b`` or ``a * reciprocal(b)`` with the shape and type of a; otherwise (a, None)."""
    dividend, divisor = node.args[0], node.args[1]
    if op_name(node) == "aten.mul":
        if not sees(node, divisor, "aten.reciprocal"):
            return dividend, None
        divisor = divisor.args[0]
    if arguments(node).get("rounding_mode") or not like(node, dividend):
        return dividend, None
    return dividend, divisor


def _quotient_by_sum(node: fx.Node) -> tuple[Any, tuple[fx.Node, int] | None]:
    """(a, (x, dim)) of ``a / sum(x, [dim], keepdim=True)``; otherwise (a, None)."""
    dividend, total = quotient(node)
    return dividend, None if total is None else reduction(node, total, "aten.sum")


@respelling("aten.div", "aten.mul")
def exponents_over_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(x - m) / sum(exp(x - m), [d], keepdim=True)  ->  softmax(x, d), `m` a maximum along `d`, or missing."""
    exponents, over = _quotient_by_sum(node)
    if over is None or not same_value(over[0], exponents) or not _is_exponent(node, exponents):
        return None
    x = _unshifted(node, edit, exponents.args[0], over[1])
    if x is exponents.args[0]:
        return _by_sums(node, edit, x, over[1])
    return _over(node, edit, x, over[1], aten.softmax.int)


def _is_exponent(user: fx.Node, node: Any) -> bool:
    """Whether a value is `exp(x)` of floating-point numbers; for integers, the type differs."""
    return sees(user, node, "aten.exp") and is_float(node.args[0])


@respelling("aten.div", "aten.mul")
def product_over_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(exp(x - m), v) / sum(exp(x - m), [-1], keepdim=True)  ->  matmul(softmax(x, -1), v)."""
    weighted, over = _quotient_by_sum(node)
    if over is None or not sees(node, weighted, "aten.matmul"):
        return None
    exponents, values = weighted.args
    if not same_value(over[0], exponents) or not _is_exponent(node, exponents):
        return None
    dim = rank(exponents) - 1
    if over[1] != dim or rank(values) < 2 or rank(node) != rank(exponents):
        return None
    x = _unshifted(node, edit, exponents.args[0], dim)
    weights = edit.call(aten.softmax.int, x, -1)
    if x is exponents.args[0]:
        weights.meta[BY_SUMS] = True
    return edit.call(aten.matmul.default, weights, values)


def _unshifted(user: fx.Node, edit: Editor, x: fx.Node, dim: int) -> fx.Node:
    """`y` if `x` is `y - m` or `y + m * s`, where `m` is a maximum along `dim`; also below a mask of -inf.

    Other terms that are constant along `dim` may be so large that they absorb `y`, such as masks of whole rows.
    """
    if not sees(user, x, "aten.where") or x.target is not aten.where.ScalarOther or x.args[2] != -math.inf:
        return _without_maximum(user, x, dim)
    keep, shifted, fill = x.args
    y = _without_maximum(user, shifted, dim) if like(x, shifted) else shifted
    return x if y is shifted else edit.call(aten.where.ScalarOther, keep, y, fill)


def _without_maximum(user: fx.Node, x: fx.Node, dim: int) -> fx.Node:
    if not sees(user, x, "aten.sub", "aten.add") or not is_literal(arguments(x).get("alpha", 1)):
        return x
    y, shift = x.args[:2]
    while sees(user, shift, "aten.mul", "aten.detach", "aten.neg"):
        if op_name(shift) == "aten.mul" and not is_literal(scale_of(shift)):
            return x
        shift = shift.args[0]
    over = reduction(user, shift, "aten.amax", "aten.max") if is_tensor(shift) else None
    return y if over is not None and over[1] == dim and is_tensor(y) and like(x, y) else x


@respelling("aten.softmax")
def shifted_softmax(node: fx.Node, edit: Editor) -> fx.Node | None:
    """softmax((x - max(x, [-1], keepdim=True)) * s, -1)  ->  softmax(x * s, -1), with an optional scale."""
    if node.target is not aten.softmax.int or node.args[1:] != (-1,):
        return None
    shifted, factor = node.args[0], None
    if sees(node, shifted, "aten.mul") and is_literal(scale_of(shifted)):
        shifted, factor = shifted.args
    x = _unshifted(node, edit, shifted, rank(node) - 1)
    if x is shifted:
        return None
    return edit.call(aten.softmax.int, x if factor is None else builders.scaled(edit, x, factor), -1)


@respelling("aten._safe_softmax")
def safe_softmax(node: fx.Node, edit: Editor) -> fx.Node | None:
    """_safe_softmax(x, 3)  ->  _safe_softmax(x, -1); it is not softmax: fully masked rows give 0."""
    x, dim = node.args[0], node.args[1]
    if dim == -1 or not last(x, dim) or arguments(node).get("dtype") not in (None, dtype(x)):
        return None
    return edit.call(aten._safe_softmax.default, x, -1)
