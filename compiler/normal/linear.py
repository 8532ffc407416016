"""Products with weights after autograd: turns the results of decompositions back into `linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_number, op_name, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders

aten = torch.ops.aten


@respelling("aten.addmm")
def addmm_as_linear(node: fx.Node, edit: Editor) -> fx.Node | None:
    """addmm(b, x, w)  ->  linear(x, permute(w, [1, 0]), b)."""
    values = arguments(node)
    bias, x, weight = node.args[:3]
    if node.target is not aten.addmm.default or rank(bias) == 0:
        return None
    if not is_number(values["beta"]) or values["beta"] != 1 or values["alpha"] != 1:
        return None
    return edit.call(aten.linear.default, x, builders.swap_last(edit, node, weight), bias)


@respelling("aten.mm")
def mm_as_linear(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mm(x, w)  ->  linear(x, permute(w, [1, 0]))."""
    x, weight = node.args[:2]
    if node.target is not aten.mm.default:
        return None
    return edit.call(aten.linear.default, x, builders.swap_last(edit, node, weight))


@respelling("aten.bmm", "aten.baddbmm")
def products_with_one_matrix(node: fx.Node, edit: Editor) -> fx.Node | None:
    """bmm(x, expand(w, [B, D, N]))  ->  linear(x, permute(w, [1, 0])); bmm(x, w) where B is 1; with a bias for columns.

    Products that `einsum` and `tensordot` make of a linear layer have a batch of one.
    """
    *bias, x, matrices = node.args
    values = arguments(node)
    if node.kwargs.get("out_dtype") or len(bias) > 1 or any(values.get(k, 1) != 1 for k in ("alpha", "beta")):
        return None
    matrix = _one_matrix(node, edit, matrices)
    added = [_of_columns(node, edit, one) for one in bias]
    if matrix is None or None in added:
        return None
    return edit.call(aten.linear.default, x, builders.swap_last(edit, node, matrix), *added)


def _one_matrix(node: fx.Node, edit: Editor, matrices: Any) -> fx.Node | None:
    """The matrix that all of a batch are."""
    sizes = list(shape(matrices))
    if known_equal(sizes[0], 1):
        return builders.reshape(edit, node, matrices, sizes[1:])
    source = matrices.args[0] if sees(node, matrices, "aten.expand") else None
    if source is None or not all(map(known_equal, shape(source)[-2:], sizes[1:])):
        return None
    if rank(source) == 3 and known_equal(shape(source)[0], 1):
        return builders.reshape(edit, node, source, sizes[1:])
    return source if rank(source) == 2 else None


def _of_columns(node: fx.Node, edit: Editor, bias: Any) -> fx.Node | None:
    """The vector that all rows of a bias are."""
    source = bias.args[0] if sees(node, bias, "aten.expand") else bias
    *ones, columns = shape(source) or (None,)
    if not known_equal(columns, shape(node)[-1]) or not all(known_equal(size, 1) for size in ones):
        return None
    return builders.reshape(edit, node, source, [columns])


@respelling("aten.reshape")
def linear_of_rows(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(linear(reshape(x, [B * S, D]), w, b), [B, S, N])  ->  linear(x, w, b).

    This is not done if the rows have other users (a backward saves them), since there would be two products, or if the
    bias differs between rows.
    """
    inner = node.args[0]
    if not sees(node, inner, "aten.linear") or not sees(node, inner.args[0], "aten.reshape"):
        return None
    x = inner.args[0].args[0]
    if any(rank(bias) != 1 for bias in inner.args[2:] if isinstance(bias, fx.Node)):
        return None
    if rank(inner) != 2 or any(op_name(user) != "aten.reshape" for user in inner.users):
        return None
    columns = shape(inner.args[0])[-1]  # of no elements, `x` may have any number of columns
    if not same_shape([*shape(node)[:-1], columns], shape(x)) or not known_equal(shape(node)[-1], shape(inner)[-1]):
        return None
    return edit.call(aten.linear.default, x, *inner.args[1:])
