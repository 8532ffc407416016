"""Batch norms with fixed statistics: those by hand become the operator, and rows of a linear layer are in two dims.

    (y - mean) / sqrt(variance + eps) * gamma + beta,  y * scale + (beta - mean * scale)   ->   batch_norm(y, ...)

Only of the results of layers, which fold the norm into their weights. DETR and its relatives freeze norms in this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, product, same_shape
from . import builders
from .analysis import is_float, is_literal, like, same_value

aten = torch.ops.aten

_LAYERS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten.linear")


@respelling("aten.add")
def batch_norm_by_hand(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(mul(mul(sub(conv2d(x), m), rsqrt(add(v, eps))), g), b)  ->  batch_norm(conv2d(x), g, b, m, v, False, ...).

    Also add(mul(conv2d(x), scale), sub(b, mul(m, scale))), with scale = mul(g, rsqrt(add(v, eps))); factors and the
    shift may be computed as vectors, and reshaped to [1, C, 1, 1] at last.
    """
    if not is_float(node) or rank(node) < 2 or arguments(node).get("alpha", 1) != 1:
        return None
    for scaled, shift in (node.args[:2], node.args[1::-1]):
        factors = _factors(node, scaled)
        large = [f for f in factors if is_tensor(f) and same_shape(shape(f), shape(node))]
        if len(large) != 1 or not is_tensor(shift):
            continue
        factors.remove(large[0])
        scale = [(f, x is not factor) for factor in factors for x in [_vector(node, factor)] for f in _factors(node, x)]
        found = _statistics(node, large[0], scale, shift) if len(scale) == 2 else None
        if found is not None:
            return _normalized(node, edit, *found)
    return None


def _vector(user: fx.Node, value: Any) -> Any:
    """The computed vector that is reshaped to one number for each channel; otherwise the value itself."""
    if not sees(user, value, "aten.reshape") or not _is_of_channels(user, value) or rank(value.args[0]) != 1:
        return value
    return value.args[0] if sees(user, value.args[0], "aten.mul", "aten.sub", "aten.add", "aten.rsqrt") else value


def _factors(user: fx.Node, node: Any) -> list[Any]:
    """The factors of a product."""
    if not sees(user, node, "aten.mul"):
        return [node]
    return [f for part in node.args for f in _factors(user, part)]


def _statistics(
    user: fx.Node, large: fx.Node, scale: list[tuple[Any, bool]], shift: fx.Node
) -> tuple[fx.Node, list[Any], float] | None:
    """(y, [gamma, beta, mean, variance], eps) of ``large * scale + shift``.

    With each factor goes whether it is a vector that is reshaped later.
    """
    roots = [f for f in scale if sees(user, f[0], "aten.rsqrt") and sees(user, f[0].args[0], "aten.add")]
    if len(roots) != 1 or not is_literal(roots[0][0].args[0].args[1]):
        return None
    (root, flat), gamma = roots[0], scale[1] if scale[0] is roots[0] else scale[0]
    y, beta, mean, moved = large, (shift, False), (None, False), _vector(user, shift)
    if sees(user, large, "aten.sub"):
        y, mean = large.args[0], (large.args[1], False)
    elif (parts := _difference(user, moved)) is not None:
        apart, factors = moved is not shift, parts[1]
        beta = (parts[0], apart)
        others = [f for f in factors if not any(same_value(f, s) for s, vector in scale if vector == apart)]
        mean = (others[0], apart) if len(others) == 1 and len(factors) == 3 else mean
    variance, eps = root.args[0].args[:2]
    statistics = [gamma, beta, mean, (variance, flat)]
    if not sees(user, y, *_LAYERS) or not like(user, y):
        return None
    if not all(_is_vector(user, s) if vector else _is_of_channels(user, s) for s, vector in statistics):
        return None
    return y, [s for s, _ in statistics], eps


def _difference(user: fx.Node, value: Any) -> tuple[Any, list[Any]] | None:
    """(a, factors of b) of ``a - b``, or of ``b * -1 + a``."""
    if sees(user, value, "aten.sub"):
        return value.args[0], _factors(user, value.args[1])
    for subtracted, a in (value.args, value.args[::-1]) if sees(user, value, "aten.add") else ():
        factors = _factors(user, subtracted)
        if -1 in factors and is_tensor(a):
            factors.remove(-1)
            return a, factors
    return None


def _is_of_channels(node: fx.Node, value: Any) -> bool:
    """Whether a value has one element for each index of the second dim of a node that it broadcasts to."""
    if not is_tensor(value) or dtype(value) != dtype(node):
        return False
    dim = 1 - (rank(node) - rank(value))
    others = [s for d, s in enumerate(shape(value)) if d != dim]
    return dim >= 0 and known_equal(shape(value)[dim], shape(node)[1]) and all(known_equal(s, 1) for s in others)


def _is_vector(node: fx.Node, value: Any) -> bool:
    """Whether a value is a vector with one element for each index of the second dim of a node."""
    return is_tensor(value) and dtype(value) == dtype(node) and same_shape(shape(value), [shape(node)[1]])


def _normalized(node: fx.Node, edit: Editor, y: fx.Node, statistics: list[fx.Node], eps: float) -> fx.Node:
    rows = [builders.reshape(edit, node, s, [shape(node)[1]]) for s in statistics]
    return edit.call(aten.batch_norm.default, y, *rows, False, 0.1, eps, False)


@respelling("aten.sub")
def scaled_apart(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(mul(conv2d(x), s), mul(m, s))  ->  mul(sub(conv2d(x), m), s), for vectors `m` and `s` of channels."""
    if node.kwargs or rank(node) < 2 or not all(sees(node, a, "aten.mul") and len(a.args) == 2 for a in node.args):
        return None
    scaled, shift = node.args
    for y, scale in (scaled.args, scaled.args[::-1]):
        if not sees(node, y, *_LAYERS) or not like(node, y) or not _is_of_channels(node, scale):
            continue
        for mean, same in (shift.args, shift.args[::-1]):
            if _is_of_channels(node, mean) and is_tensor(same) and same_value(same, scale):
                return edit.call(aten.mul.Tensor, edit.call(aten.sub.Tensor, y, mean), scale)
    return None


@respelling("aten.mul")
def centered_by_hand(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(sub(conv2d(x), m), rsqrt(add(v, eps)))  ->  batch_norm(conv2d(x), None, None, m, v, False, ...)."""
    for centered, factor in (node.args, node.args[::-1]):
        if not sees(node, centered, "aten.sub") or not sees(node, centered.args[0], *_LAYERS) or rank(node) < 2:
            continue
        y, mean, root = centered.args[0], centered.args[1], _vector(node, factor)
        if not sees(node, root, "aten.rsqrt") or not sees(node, root.args[0], "aten.add") or centered.kwargs:
            continue
        variance, eps = root.args[0].args[:2]
        fits = (_is_of_channels if root is factor else _is_vector)(node, variance) and _is_of_channels(node, mean)
        if not fits or not is_literal(eps) or root.args[0].kwargs or not like(node, y) or not is_float(node):
            continue
        rows = [builders.reshape(edit, node, s, [shape(node)[1]]) for s in (mean, variance)]
        return edit.call(aten.batch_norm.default, y, None, None, *rows, False, 0.1, eps, False)
    return None


@respelling("aten.add")
def affine_after_norm(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(mul(batch_norm(y, None, None, m, v, False, ...), g), b)  ->  batch_norm(y, g, b, m, v, False, ...)."""
    if node.kwargs or rank(node) < 2:
        return None
    for scaled, beta in (node.args, node.args[::-1]):
        for norm, gamma in (scaled.args, scaled.args[::-1]) if sees(node, scaled, "aten.mul") else ():
            if not sees(node, norm, "aten.batch_norm") or norm.args[1:3] != (None, None) or norm.args[5] is not False:
                continue
            if like(node, norm) and _is_of_channels(node, gamma) and _is_of_channels(node, beta):
                rows = [builders.reshape(edit, node, s, [shape(node)[1]]) for s in (gamma, beta)]
                return edit.call(aten.batch_norm.default, norm.args[0], *rows, *norm.args[3:])
    return None


@respelling("aten.batch_norm")
def norm_of_rows(node: fx.Node, edit: Editor) -> fx.Node | None:
    """batch_norm(reshape(linear(x), [B*T, C]), ...)  ->  batch_norm(linear(reshape(x, [B*T, D])), ...).

    batch_norm(permute(linear(x), [0, 2, 1]), ...)  ->  permute(reshape(batch_norm(...), [B, T, C]), [0, 2, 1])
    """
    moved, rest = node.args[0], node.args[1:]
    if not sees(node, moved, "aten.reshape", "aten.permute") or not sees(node, moved.args[0], "aten.linear"):
        return None
    layer = moved.args[0]
    (x, *weights), full = layer.args, shape(layer)
    rows = product(full[:-1])
    if sees(node, moved, "aten.permute"):
        if list(moved.args[1]) != [0, 2, 1]:
            return None
    elif not same_shape(shape(moved), [rows, full[-1]]):
        return None
    flat = edit.call(aten.linear.default, builders.reshape(edit, node, x, [rows, shape(x)[-1]]), *weights)
    result = edit.call(aten.batch_norm.default, flat, *rest)
    if sees(node, moved, "aten.reshape"):
        return result
    return builders.permute(edit, node, builders.reshape(edit, node, result, full), [0, 2, 1])


FIXED_NORMS: tuple[Respelling, ...] = (
    batch_norm_by_hand, scaled_apart, centered_by_hand, affine_after_norm, norm_of_rows,
)  # fmt: skip
