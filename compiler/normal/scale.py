"""Scale: one multiplication by a scalar, `mul(x, factor)`, placed after the product.

A factor is a Python number if it is known, otherwise a symbolic number or a 0-d tensor.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import (
    CASTS,
    VIEWS,
    Factor,
    factor_of,
    holds_product,
    is_float,
    is_literal,
    is_scalar,
    is_scaled_product,
    like,
    reduction,
)

aten = torch.ops.aten


@respelling("aten.div", "aten.true_divide")
def division_as_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """div(x, 8.0)  ->  mul(x, 0.125), for any scalar divisor."""
    values = arguments(node)
    x, divisor = node.args[0], factor_of(node.args[1])
    if values.get("rounding_mode") or divisor is None or not is_float(x) or not like(node, x):
        return None
    if is_tensor(divisor) and not _inverts_as(divisor, x):
        return None
    factor = builders.inverse(edit, divisor)
    return None if factor is None else builders.scaled(edit, x, factor)


def _inverts_as(divisor: fx.Node, x: fx.Node) -> bool:
    """Whether the reciprocal of a tensor is as precise as `x`, and its product with `x` has the dtype of `x`."""
    kind = dtype(divisor) if is_float(divisor) else torch.get_default_dtype()
    if torch.finfo(kind).eps > torch.finfo(dtype(x)).eps:
        return False
    return rank(x) > rank(divisor) or torch.promote_types(kind, dtype(x)) == dtype(x)


@respelling("aten.mul", "aten.multiply")
def factor_last(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(s, x), mul.Scalar(x, s), mul(x, a known constant)  ->  mul(x, s) with `s` a number or 0-d."""
    x, other = node.args[0], node.args[1]
    if not (is_float(x) and like(node, x) and factor_of(other) is not None and not _both_scalars(x, other)):
        x, other = other, x
        if not (is_float(x) and like(node, x) and factor_of(other) is not None) or is_scalar(x):
            return None
    factor = factor_of(other)
    settled = node.target is aten.mul.Tensor and node.args == (x, factor)
    if settled and not (is_tensor(factor) and rank(factor) > 0):
        return None
    return builders.scaled(edit, x, factor)


def _both_scalars(x: fx.Node, other: object) -> bool:
    return is_scalar(x) and is_tensor(other) and not is_scalar(other)


@respelling("aten.mul")
def scale_of_scaled(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(mul(x, a), b)  ->  mul(x, a * b);  mul(to(mul(scores, a), wider), b)  ->  mul(to(scores, wider), a * b)."""
    inner, outer = node.args[0], scale_of(node)
    if outer is None:
        return None
    if sees(node, inner, "aten.to"):
        return _scaled_below_cast(node, edit, inner, outer)
    if not sees(node, inner, "aten.mul"):
        return None
    factor = scale_of(inner)
    if factor is None or not _combine(factor, outer, dtype(node)):
        return None
    return builders.scaled(edit, inner.args[0], builders.times(edit, factor, outer))


def _scaled_below_cast(node: fx.Node, edit: Editor, cast: fx.Node, outer: Factor) -> fx.Node | None:
    scaled = cast.args[0]
    if not sees(node, scaled, "aten.mul") or not holds_product(scaled) or not is_literal(outer):
        return None
    factor = scale_of(scaled)
    if not is_literal(factor) or not builders.widens(dtype(scaled), dtype(cast)):
        return None
    return builders.scaled(edit, builders.cast(edit, node, scaled.args[0], dtype(cast)), factor * outer)


@respelling("aten.mul")
def scale_beside_rows(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(mul(scores, s), t)  ->  mul(scores, mul(t, s)), for a temperature `t` that is constant along the keys.

    Also mul(mul(scores, t), s) for a number `s`, and mul(mul(scores, t1), t2).
    """
    inner, outer = node.args
    if not sees(node, inner, "aten.mul") or not like(node, inner) or not like(inner, inner.args[0]):
        return None
    scores, factor = inner.args
    given = [f for f in (factor, outer) if _is_temperature(node, f)]
    if not given or not is_scaled_product(scores) or not _combine(factor, outer, dtype(node)):
        return None
    if len(given) == 2:
        return edit.call(aten.mul.Tensor, scores, edit.call(aten.mul.Tensor, factor, outer))
    scale = factor_of(outer if given[0] is factor else factor)
    return None if scale is None else edit.call(aten.mul.Tensor, scores, builders.scaled(edit, given[0], scale))


def _is_temperature(node: fx.Node, factor: object) -> bool:
    """Whether a factor of scores is a tensor that is constant along the keys, with less than their elements."""
    if not is_float(factor) or is_scalar(factor) or holds_product(factor):
        return False
    return known_equal(shape(factor)[-1], 1) and dtype(factor) == dtype(node)


def _combine(a: Factor, b: Factor, result: torch.dtype) -> bool:
    """Numbers always combine. Tensors combine if they have one type, so that their product is only rounded once.

    The product of two factors is as precise as `result`, and has a type of large range: of two factors of float16, the
    product may be infinite where the result of scaling twice is not.
    """
    kinds = {dtype(f) for f in (a, b) if is_tensor(f)}
    if len(kinds) > 1 or torch.float16 in kinds:
        return False
    return all(kind == result or builders.widens(result, kind) for kind in kinds)


def scale_of(node: fx.Node) -> Factor | None:
    """`s` of a node `mul(x, s)` that keeps the type and shape of `x`; otherwise None."""
    if op_name(node) != "aten.mul" or not like(node, node.args[0]) or not is_float(node):
        return None
    return factor_of(node.args[1])


@respelling("aten.matmul")
def scale_after_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(mul(q, s), k), matmul(q, permute(mul(k, s))), neg for s = -1  ->  mul(matmul(q, k), s)."""
    for position in (0, 1):
        path = _path_to_scale(node, node.args[position])
        if path is None:
            continue
        factor = -1 if op_name(path[-1]) == "aten.neg" else scale_of(path[-1])
        args = list(node.args)
        args[position] = _rebuilt(node, edit, path)
        return builders.scaled(edit, edit.call(aten.matmul.default, *args), factor)
    return None


def _path_to_scale(user: fx.Node, node: fx.Node) -> list[fx.Node] | None:
    """Views and casts from `node` down to a multiplication by a scalar (last), or None."""
    path = [node]
    while sees(user, path[-1], *VIEWS, *CASTS):
        if not is_float(path[-1].args[0]):
            return None
        path.append(path[-1].args[0])
    end = path[-1]
    if not sees(user, end, "aten.mul", "aten.neg") or (op_name(end) == "aten.mul" and scale_of(end) is None):
        return None
    return path


def _rebuilt(user: fx.Node, edit: Editor, path: list[fx.Node]) -> fx.Node:
    """The views and casts of `path`, applied to the operand that its last node scales."""
    x = path[-1].args[0]
    for view in reversed(path[:-1]):
        name = op_name(view)
        if name == "aten.permute":
            x = builders.permute(edit, user, x, view.args[1])
        elif name == "aten.reshape":
            x = builders.reshape(edit, user, x, shape(view))
        elif name == "aten.expand":
            x = builders.expand(edit, user, x, shape(view))
        else:
            x = builders.cast(edit, user, x, dtype(view))
    return x


@respelling("aten.mul")
def scale_of_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(add(scores, m), s)  ->  add(mul(scores, s), mul(m, s)), if the sum is as wide as the scores or wider."""
    inner, factor = node.args[0], scale_of(node)
    if factor is None or not sees(node, inner, "aten.add") or arguments(inner).get("alpha", 1) != 1:
        return None
    scores, term = inner.args[:2]
    if not is_tensor(term) or not is_float(term) or not holds_product(scores) or not _as_wide(inner, scores):
        return None
    if is_literal(factor) and factor == 0:
        return None
    scores = builders.cast(edit, node, scores, dtype(inner))
    return edit.call(aten.add.Tensor, builders.scaled(edit, scores, factor), builders.scaled(edit, term, factor))


def _as_wide(total: fx.Node, scores: fx.Node) -> bool:
    """Whether a sum has the sizes of `scores`, and their dtype or a wider one, which it promotes them to."""
    if like(total, scores):
        return True
    a, b = val(total), val(scores)
    return a.device == b.device and same_shape(a.shape, b.shape) and builders.widens(b.dtype, a.dtype)


@respelling("aten.mul")
def scale_of_choice(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(where(keep, scores, fill), s)  ->  where(keep, mul(scores, s), fill * s), for numbers `fill` and `s`."""
    inner, factor = node.args[0], scale_of(node)
    if not is_literal(factor) or factor == 0 or not sees(node, inner, "aten.where"):
        return None
    if inner.target is not aten.where.ScalarOther:
        return None
    keep, scores, fill = inner.args
    if not is_literal(fill) or not holds_product(scores) or not like(inner, scores):
        return None
    low = fill * factor
    if abs(low) > torch.finfo(dtype(node)).max:  # rounded in the type of the scores
        low = math.copysign(math.inf, low)
    return edit.call(aten.where.ScalarOther, keep, builders.scaled(edit, scores, factor), low)


@respelling("aten.div")
def division_by_rows(node: fx.Node, edit: Editor) -> fx.Node | None:
    """div(scores, t)  ->  mul(scores, reciprocal(t)), for a temperature that is constant along the keys."""
    x, divisor = node.args[:2]
    if arguments(node).get("rounding_mode") or not is_float(divisor) or is_scalar(divisor) or not like(node, x):
        return None
    if not is_scaled_product(x) or not known_equal(shape(divisor)[-1], 1) or dtype(divisor) != dtype(x):
        return None
    if reduction(node, divisor, "aten.sum") is not None:  # exponentials divided by their sum are a softmax
        return None
    return edit.call(aten.mul.Tensor, x, edit.call(aten.reciprocal.default, divisor))


@respelling("aten.neg")
def negation_as_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """neg(x)  ->  mul(x, -1)."""
    return builders.scaled(edit, node.args[0], -1) if is_float(node) else None
