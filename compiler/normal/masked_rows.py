"""Attention weights that are masked again: rows without kept keys are zero. The weighted sum is masked instead.

    where(keep, softmax(where(keep, s, low)), 0) @ v   ->   where(any(keep), softmax(where(keep, s, low)) @ v, 0)

    nan_to_num(softmax(s)) @ v                         ->   where(isnan(o), 0 * v, o) with o = softmax(s) @ v

In every other row the weights of dropped keys are zero already. DeBERTa, Conformer and CPM-Ant do this. If `low` is
-inf, a row without kept keys would be NaN inside, and so would its gradients, which are zero in the original program;
such a row keeps all keys instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.effects import wants_gradient
from ...rewrites.graph import arguments, dtype, op_name, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import CASTS, holds_softmax, is_bool, is_float, like, same_value, uniform
from .masks import MASKED
from .random_calls import moved_dropout

aten = torch.ops.aten


@respelling("aten.where")
def weights_masked_again(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(keep, softmax(where(keep, s, low)), 0)  ->  where(any(keep, [-1], True), softmax(...), 0)."""
    if node.target is not aten.where.ScalarOther or node.args[2] != 0 or not is_bool(node.args[0]):
        return None
    keep, weights = node.args[:2]
    if rank(keep) == 0 or known_equal(shape(keep)[-1], 1) or not like(node, weights):
        return None
    soft = weights.args[0] if sees(node, weights, "aten.to") else weights
    if not sees(node, soft, "aten.softmax") or soft.args[1:] != (-1,):
        return None
    scores = _masked_by(node, soft.args[0], keep)
    if scores is None:
        return None
    rows = edit.call(aten.any.dim, keep, -1, True)
    if uniform(scores.args[2]) == -math.inf:
        opened = edit.call(aten.logical_or.default, keep, edit.call(aten.logical_not.default, rows))
        masked = edit.call(scores.target, opened, *scores.args[1:])
        inner = edit.call(aten.softmax.int, builders.cast(edit, node, masked, dtype(soft.args[0])), -1)
        weights = builders.cast(edit, node, inner, dtype(weights))
    return edit.call(aten.where.ScalarOther, rows, weights, 0)


def _masked_by(user: fx.Node, scores: Any, keep: fx.Node) -> fx.Node | None:
    """`where(keep, ., low)` of scores that are this, perhaps cast."""
    if sees(user, scores, "aten.to"):
        scores = scores.args[0]
    if not sees(user, scores, "aten.where") or len(scores.args) != 3:
        return None
    fill = uniform(scores.args[2])
    low = fill is not None and fill <= MASKED
    return scores if low and same_value(scores.args[0], keep) else None


def _empties_rows(user: fx.Node, node: Any) -> bool:
    """Whether a value is `where(rows, weights, 0)` with one condition a row."""
    if not sees(user, node, "aten.where") or node.target is not aten.where.ScalarOther or node.args[2] != 0:
        return False
    rows, weights = node.args[:2]
    return known_equal(shape(rows)[-1] if rank(rows) else 1, 1) and like(node, weights) and holds_softmax(weights)


@respelling("aten.matmul")
def empty_rows_of_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(where(rows, weights, 0), v)  ->  where(rows, matmul(weights, v), 0)."""
    emptied, value = node.args
    if not _empties_rows(node, emptied) or rank(value) < 2 or rank(emptied) != rank(node):
        return None
    rows, weights = emptied.args[:2]
    return edit.call(aten.where.ScalarOther, rows, edit.call(aten.matmul.default, weights, value), 0)


@respelling("aten.dropout", "aten.to")
def empty_rows_last(node: fx.Node, edit: Editor) -> fx.Node | None:
    """dropout(where(rows, weights, 0))  ->  where(rows, dropout(weights), 0); also a cast."""
    emptied = node.args[0]
    if not _empties_rows(node, emptied) or not same_shape(shape(node), shape(emptied)):
        return None
    rows, weights = emptied.args[:2]
    if op_name(node) == "aten.dropout":
        inner = moved_dropout(edit, node, weights)
    elif node.target is aten.to.dtype:
        inner = builders.cast(edit, node, weights, node.args[1])
    else:
        return None
    return edit.call(aten.where.ScalarOther, rows, inner, 0)


@respelling("aten.matmul")
def nan_rows_of_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(nan_to_num(weights), v)  ->  where(isnan(o), sum(v * 0, [-2], True), o) with o = matmul(weights, v).

    Also where(isnan(weights), 0, weights). Either all weights of a row are NaN, or none. Where `v` is NaN or infinite,
    so is the sum of ``v * 0``, as eager's. Not in training: a row of NaN would give all of `v` a gradient of NaN.
    """
    cleared, value = node.args
    path = cleared.args[0] if sees(node, cleared, *CASTS) and is_float(cleared) else cleared
    weights = _cleared(node, path)
    if weights is None or min(rank(value), rank(cleared)) < 2 or wants_gradient(node) or rank(value) != rank(node):
        return None
    total = edit.call(aten.matmul.default, builders.cast(edit, node, weights, dtype(cleared)), value)
    nothing = edit.call(aten.sum.dim_IntList, edit.call(aten.mul.Tensor, value, 0), [-2], True)
    return edit.call(aten.where.self, edit.call(aten.isnan.default, total), nothing, total)


def _cleared(user: fx.Node, node: Any) -> fx.Node | None:
    """The weights of which NaN became 0: a softmax along the last dim, perhaps cast."""
    if sees(user, node, "aten.nan_to_num"):
        if arguments(node).get("nan") not in (None, 0):
            return None
        weights = node.args[0]
    elif sees(user, node, "aten.where") and node.target is aten.where.ScalarOther and node.args[2] == 0:
        kept, weights = node.args[:2]
        if not sees(user, kept, "aten.logical_not") or not sees(user, kept.args[0], "aten.isnan"):
            return None
        if kept.args[0].args[0] is not weights:
            return None
    else:
        return None
    soft = weights.args[0] if sees(user, weights, *CASTS) and is_float(weights) else weights
    return weights if sees(user, soft, "aten.softmax") and soft.args[1:] == (-1,) else None


ROWS: tuple[Respelling, ...] = (weights_masked_again, nan_rows_of_sum, empty_rows_of_sum, empty_rows_last)
