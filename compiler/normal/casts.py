"""Casts: a single `to(x, dtype)`, and no cast around a softmax, which computes in a wider dtype by itself."""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, sees, shape, val
from ...rewrites.respell import respelling
from ...rewrites.symbolic import same_shape
from . import builders
from .analysis import holds_product, holds_softmax, is_float, is_literal

aten = torch.ops.aten


@respelling("aten.to", "aten._to_copy", "aten.type_as", "aten.float", "aten.half", "aten.bfloat16", "aten.double")
def cast_name(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(x, device, dtype), _to_copy(x, dtype), type_as(x, y)  ->  to(x, dtype), where only the dtype changes."""
    x = node.args[0]
    if not is_tensor(x) or val(x).device != val(node).device or val(x).layout != val(node).layout:
        return None
    if node.target is aten.to.dtype and node.args == (x, dtype(node)) and not node.kwargs:
        return None
    return builders.cast(edit, node, x, dtype(node))


@respelling("aten.to")
def cast_there_and_back(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(to(x, wider), dtype)  ->  to(x, dtype), which is `x` where that is its own type."""
    inner = node.args[0]
    if node.target is not aten.to.dtype or not sees(node, inner, "aten.to") or not is_tensor(inner.args[0]):
        return None
    if not builders.widens(dtype(inner.args[0]), dtype(inner)) or val(inner).device != val(inner.args[0]).device:
        return None
    return builders.cast(edit, node, inner.args[0], dtype(node))


@respelling("aten.to")
def softmax_in_own_type(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(softmax(to(x, float32), -1), x's dtype)  ->  softmax(x, -1), which computes in float32 anyway.

    This is not done if the wide result has other users, since there would be two softmaxes.
    """
    soft = node.args[0]
    if node.target is not aten.to.dtype or not sees(node, soft, "aten.softmax") or len(soft.users) > 1:
        return None
    wide = soft.args[0]
    if not sees(soft, wide, "aten.to") or not is_float(wide.args[0]) or dtype(wide.args[0]) != dtype(node):
        return None
    if not builders.widens(dtype(node), dtype(soft)):
        return None
    return edit.call(aten.softmax.int, wide.args[0], -1)


@respelling("aten.to")
def sum_in_own_type(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(add(scores, wider), scores' dtype)  ->  add(scores, to(wider, scores' dtype)), as for ``scores += wider``.

    The added value is rounded as the sum was, and overflows if the sum did.
    """
    total = node.args[0]
    if node.target is not aten.to.dtype or not sees(node, total, "aten.add") or len(total.args) != 2 or total.kwargs:
        return None
    for scores, term in (total.args, total.args[::-1]):
        if not is_tensor(term) or not is_float(scores) or not holds_product(scores) or holds_product(term):
            continue
        if dtype(scores) == dtype(node) and same_shape(shape(scores), shape(node)) and dtype(term) == dtype(total):
            return edit.call(aten.add.Tensor, scores, edit.call(aten.to.dtype, term, dtype(node)))
    return None


@respelling("aten.to")
def choice_in_own_type(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(where(keep, to(scores, wider), fill), scores' dtype)  ->  where(keep, scores, fill), too low a fill -inf."""
    choice = node.args[0]
    if node.target is not aten.to.dtype or not sees(node, choice, "aten.where"):
        return None
    if choice.target is not aten.where.ScalarOther:
        return None
    keep, wide, fill = choice.args
    if not sees(node, wide, "aten.to") or not is_tensor(wide.args[0]) or not is_literal(fill):
        return None
    scores = wide.args[0]
    if dtype(scores) != dtype(node) or not builders.widens(dtype(scores), dtype(wide)) or not holds_product(scores):
        return None
    if not same_shape(shape(scores), shape(node)):
        return None
    rounded = torch.tensor(fill, dtype=torch.float64).to(dtype(node)).item()
    return edit.call(aten.where.ScalarOther, keep, scores, rounded)


@respelling("aten.to")
def cast_below_views(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(reshape(x), dtype)  ->  reshape(to(x, dtype)); also permute. For scores, `head_layout.py` decides."""
    view = node.args[0]
    if node.target is not aten.to.dtype or not sees(node, view, "aten.reshape", "aten.permute"):
        return None
    if not is_float(view) or not is_float(node) or holds_product(view) or holds_softmax(view):
        return None
    inner = builders.cast(edit, node, view.args[0], dtype(node))
    if view.target is aten.permute.default:
        return builders.permute(edit, node, inner, view.args[1])
    return builders.reshape(edit, node, inner, shape(node))
