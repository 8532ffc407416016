"""Products with weights after autograd: turns the results of decompositions back into `linear`."""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_number, op_name, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import same_shape
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
    if not same_shape([*shape(x)[:-1], shape(inner)[-1]], shape(node)):
        return None
    return edit.call(aten.linear.default, x, *inner.args[1:])
