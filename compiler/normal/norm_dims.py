"""Norms over other dims than the last: channels that come second, and several dims at once.

    x * rsqrt(mean(x ** 2, [1], True) + eps)
        ->  permute(y * rsqrt(mean(y ** 2, [-1], True) + eps), back)   with y = permute(x, the normalized dim last)

Several dims are one: those of images, and of the channels of a group, which are side by side in a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, product, same_shape
from . import builders
from .analysis import CASTS, is_float, like, same_value
from .statistics import dims_of

aten = torch.ops.aten

View = Callable[[fx.Node], fx.Node]


@respelling("aten.mul")
def norm_of_other_dims(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(x, rsqrt(add(mean(pow(x, 2), [1], True), eps)))  ->  permute(mul(y, rsqrt(mean(pow(y, 2), [-1], True)))).

    Here y is permute(x), with the normalized dim last; also of centered values, and of several dims side by side.
    """
    for element, root in (node.args[:2], node.args[1::-1]):
        squares = _squares(node, root)
        if squares is None or not is_tensor(element) or not same_shape(shape(element), shape(node)):
            continue
        if not same_shape(shape(squares), shape(node)):
            continue
        dims = dims_of(arguments(root.args[0].args[0]), rank(node)) or []
        if not _is_other(dims, rank(node)):
            continue
        return _turned_norm(node, edit, element, root, squares, dims)
    return None


@respelling("aten.mul")
def weight_after_root(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(x, mul(rsqrt(mean(..., [1], True) + eps), weight))  ->  mul(mul(x, rsqrt(...)), weight), for other dims."""
    for element, scale in (node.args[:2], node.args[1::-1]):
        if not sees(node, scale, "aten.mul") or not is_tensor(element) or not like(node, element):
            continue
        for root, weight in (scale.args[:2], scale.args[1::-1]):
            squares = _squares(node, root)
            if squares is None or not same_shape(shape(squares), shape(node)):
                continue
            if _is_other(dims_of(arguments(root.args[0].args[0]), rank(node)) or [], rank(node)):
                return edit.call(aten.mul.Tensor, edit.call(aten.mul.Tensor, element, root), weight)
    return None


def _squares(user: fx.Node, root: Any) -> fx.Node | None:
    """The squares that are averaged in ``rsqrt(mean(x ** 2, dims, True) + eps)``: ``x ** 2``."""
    if not sees(user, root, "aten.rsqrt") or not sees(user, root.args[0], "aten.add"):
        return None
    mean = root.args[0].args[0]
    if not sees(user, mean, "aten.mean") or is_tensor(root.args[0].args[1]) or not arguments(mean).get("keepdim"):
        return None
    squares = mean.args[0]
    plain = arguments(mean).get("dtype") is None and sees(user, squares, "aten.pow") and is_float(squares.args[0])
    return squares if plain and squares.args[1] == 2 else None


def _is_other(dims: list[int], n: int) -> bool:
    """Whether dims lie side by side, and are not the last one alone."""
    return bool(dims) and dims != [n - 1] and dims == list(range(dims[0], dims[-1] + 1))


def _turned_norm(
    node: fx.Node, edit: Editor, element: fx.Node, root: fx.Node, squares: fx.Node, dims: list[int]
) -> fx.Node:
    n = rank(node)
    kept = [d for d in range(n) if d not in dims]
    order = [*kept, *dims]
    sizes = [shape(node)[d] for d in order]
    rows = [*sizes[: len(kept)], product(sizes[len(kept) :])]

    @cache  # the pattern compares what is centered and what is squared
    def view(x: fx.Node) -> fx.Node:
        return builders.reshape(edit, node, builders.permute(edit, node, x, order), rows)

    square = edit.call(aten.pow.Tensor_Scalar, _centered(node, edit, squares.args[0], dims, view), 2)
    eps = edit.call(aten.add.Tensor, edit.call(aten.mean.dim, square, [-1], True), *root.args[0].args[1:])
    normal = edit.call(aten.mul.Tensor, _centered(node, edit, element, dims, view), edit.call(aten.rsqrt.default, eps))
    apart = builders.reshape(edit, node, normal, sizes)
    return builders.permute(edit, node, apart, [order.index(d) for d in range(n)])


def _centered(user: fx.Node, edit: Editor, x: fx.Node, dims: list[int], view: View) -> fx.Node:
    """The view of a value: below its casts, and below the subtraction of its mean."""
    if sees(user, x, *CASTS) and is_float(x.args[0]):
        return builders.cast(edit, user, _centered(user, edit, x.args[0], dims, view), dtype(x))
    if not sees(user, x, "aten.sub") or not is_tensor(x.args[1]) or arguments(x).get("alpha", 1) != 1:
        return view(x)
    value, mean = x.args[:2]
    if not sees(user, mean, "aten.mean") or not arguments(mean).get("keepdim") or not like(x, value):
        return view(x)
    if dims_of(arguments(mean), rank(x)) != dims or not same_value(mean.args[0], value):
        return view(x)
    rows = view(value)
    return edit.call(aten.sub.Tensor, rows, edit.call(aten.mean.dim, rows, [-1], True))


@respelling("aten.mul", "aten.add")
def affine_of_turned_norm(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(permute(norm, back), reshape(weight, [C, 1, 1]))  ->  permute(mul(norm, weight), back); also a bias added."""
    if arguments(node).get("alpha", 1) != 1:
        return None
    for turned, row in (node.args[:2], node.args[1::-1]):
        if not sees(node, turned, "aten.permute") or not is_float(row) or not same_shape(shape(turned), shape(node)):
            continue
        order = [d % rank(node) for d in turned.args[1]]
        dim = order.index(rank(node) - 1)
        if not _is_normalized(node, turned.args[0]) or not _is_along(row, dim, node):
            continue
        row = builders.reshape(edit, node, row, [shape(node)[dim]])
        inner = edit.call(node.target, turned.args[0], row)
        return builders.permute(edit, node, inner, order)
    return None


def _is_along(row: fx.Node, dim: int, node: fx.Node) -> bool:
    """Whether a value has one element for each index of a dim of a node that it broadcasts to."""
    d = dim - (rank(node) - rank(row))
    others = [s for i, s in enumerate(shape(row)) if i != d]
    return d >= 0 and known_equal(shape(row)[d], shape(node)[dim]) and all(known_equal(s, 1) for s in others)


def _is_normalized(user: fx.Node, node: Any) -> bool:
    """Whether a value is a norm over the last dim, perhaps with a weight and a bias, and cast."""
    while sees(user, node, "aten.mul", "aten.add", *CASTS):
        root = node.args[1] if len(node.args) > 1 else None
        if sees(user, root, "aten.rsqrt"):
            return _squares(user, root) is not None and _dims_are_last(root)
        node = node.args[0]
    return False


def _dims_are_last(root: fx.Node) -> bool:
    mean = root.args[0].args[0]
    return dims_of(arguments(mean), rank(mean)) == [rank(mean) - 1]


NORM_DIMS: tuple[Respelling, ...] = (norm_of_other_dims, weight_after_root, affine_of_turned_norm)
