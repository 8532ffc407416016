"""Attention weights that are masked again: rows without kept keys are zero. The weighted sum is masked instead.

    where(keep, softmax(where(keep, s, low)), 0) @ v   ->   where(any(keep), softmax(where(keep, s, low)) @ v, 0)

    softmax(where(keep, s, low)) * keep                ->   the same, or softmax(where(keep, s, low)) for -inf

    nan_to_num(softmax(s)) @ v                         ->   where(isnan(o), 0 * v, o) with o = softmax(s) @ v

In every other row the weights of dropped keys are zero already. DeBERTa, Conformer and CPM-Ant do this. If `low` is
-inf, a row without kept keys would be NaN inside, and so would its gradients, which are zero in the original program;
such a row keeps all keys instead.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from ...patterns.attention_guards import BY_SUMS, CLEARED
from ...rewrites.editor import Editor
from ...rewrites.effects import wants_gradient
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import (
    CASTS,
    holds_softmax,
    is_bool,
    is_float,
    is_literal,
    is_scaled_product,
    like,
    same_value,
    uniform,
)  # fmt: skip
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


@respelling("aten.mul")
def weights_times_mask(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(softmax(where(keep, s, low)), to(keep))  ->  where(keep, softmax(...), 0); softmax(...) itself for -inf.

    Rows that keep nothing are NaN for -inf, and so they are times zero.
    """
    for weights, factor in (node.args, node.args[::-1]):
        keep = factor.args[0] if sees(node, factor, *CASTS) else factor
        if not is_bool(keep) or not like(node, weights) or rank(keep) == 0:
            continue
        soft = weights.args[0] if sees(node, weights, "aten.to") else weights
        if not sees(node, soft, "aten.softmax") or soft.args[1:] != (-1,):
            continue
        scores = _masked_by(node, soft.args[0], keep)
        if scores is not None and uniform(scores.args[2]) == -math.inf:
            return weights
        if scores is not None:
            return edit.call(aten.where.ScalarOther, keep, weights, 0)
    return None


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

    Also where(isnan(weights), 0, weights). Either all weights of a row are NaN, or none. The sum of ``v * 0`` is
    NaN if `v` is NaN or infinite, as eager's is. In training, a row of NaN would give all of `v` a gradient of NaN:
    rows that masks empty keep all keys instead, and `o` is 0 there. Gradients of other rows of NaN, and those that sums
    hide, differ from eager's: no rule but with ``nan="safe"``.
    """
    value = node.args[1]
    path = _path_to_cleared(node, node.args[0])
    weights = _cleared(node, path[-1])
    if weights is None or min(rank(value), rank(path[0])) < 2 or rank(value) != rank(node):
        return None
    rows = None
    if wants_gradient(node):
        opened = _opened(node, edit, weights)
        if opened is None:
            return None
        weights, rows = opened
    for call in reversed(path[:-1]):
        dropped = op_name(call) == "aten.dropout"
        weights = moved_dropout(edit, call, weights) if dropped else builders.cast(edit, node, weights, dtype(call))
    weights = builders.cast(edit, node, weights, dtype(path[0]))
    total = edit.call(aten.matmul.default, weights, value)
    if wants_gradient(node):
        total.meta[CLEARED] = True
    total = total if rows is None else edit.call(aten.where.ScalarOther, rows, total, 0)
    nothing = edit.call(aten.sum.dim_IntList, edit.call(aten.mul.Tensor, value, 0), [-2], True)
    return edit.call(aten.where.self, edit.call(aten.isnan.default, total), nothing, total)


def _path_to_cleared(user: fx.Node, node: fx.Node) -> list[fx.Node]:
    """Dropout and casts from the weights that are multiplied to those that were cleared (last)."""
    path = [node]
    while (sees(user, path[-1], *CASTS) and is_float(path[-1])) or sees(user, path[-1], "aten.dropout"):
        path.append(path[-1].args[0])
    return path


def _opened(user: fx.Node, edit: Editor, weights: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """The weights with all keys in rows that masks empty, and which rows have keys; None if that is not known.

    softmax(where(keep, s + b, -inf))  ->  softmax(where(keep | ~rows, s + where(rows, b, 0), -inf))
    """
    soft = weights.args[0] if sees(user, weights, *CASTS) else weights
    masks, keeps = _masks(user, soft.args[0])
    if masks is None or any(wants_gradient(m.args[1]) for m in masks if op_name(m) == "aten.add"):
        return None
    if not keeps:
        return weights, None
    kept = [edit.call(aten.ne.Scalar, k, -math.inf) if is_float(k) else k for k in keeps]
    rows = edit.call(aten.any.dim, reduce(partial(edit.call, aten.logical_and.default), kept), -1, True)
    scores = masks[-1].args[1 if op_name(masks[-1]) == "aten.where" else 0]
    for mask in reversed(masks):
        if op_name(mask) == "aten.add":
            scores = edit.call(aten.add.Tensor, scores, edit.call(aten.where.ScalarOther, rows, mask.args[1], 0))
        elif op_name(mask) == "aten.where":
            opened = edit.call(aten.logical_or.default, mask.args[0], edit.call(aten.logical_not.default, rows))
            scores = edit.call(mask.target, opened, scores, *mask.args[2:])
        else:
            scores = builders.cast(edit, user, scores, dtype(mask))
    inner = edit.call(aten.softmax.int, scores, -1)
    return builders.cast(edit, user, inner, dtype(weights)), rows


def _masks(user: fx.Node, scores: Any) -> tuple[list[fx.Node] | None, list[fx.Node]]:
    """The masks and casts of a scaled product, the last one first, and which of them may empty rows; None for others.

    Masks by finite numbers empty no row.
    """
    masks: list[fx.Node] = []
    keeps: list[fx.Node] = []
    while not is_scaled_product(scores):
        if sees(user, scores, "aten.add") and len(scores.args) == 2 and is_tensor(scores.args[1]):
            inner, bias = scores.args
            if not is_float(bias) or rank(bias) == 0 or known_equal(shape(bias)[-1], 1) or not like(scores, inner):
                return None, []
            keeps.append(bias)
        elif sees(user, scores, "aten.where") and scores.target is aten.where.ScalarOther:
            keep, inner, fill = scores.args
            if not is_literal(fill) or rank(keep) == 0 or not like(scores, inner):
                return None, []
            if fill == -math.inf:
                keeps.append(keep)
        elif sees(user, scores, *CASTS) and is_float(scores.args[0]):
            inner = scores.args[0]
        else:
            return None, []
        masks.append(scores)
        scores = inner
    return masks, keeps


def _cleared(user: fx.Node, node: Any) -> fx.Node | None:
    """The weights of which NaN became 0: a softmax along the last dim, perhaps cast.

    Not one by sums of exponents, which underflow or overflow: those of a row of low numbers are 0 / 0, and cleared.
    """
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
    whole = sees(user, soft, "aten.softmax") and soft.args[1:] == (-1,) and not soft.meta.get(BY_SUMS)
    return weights if whole else None


ROWS: tuple[Respelling, ...] = (
    weights_masked_again, weights_times_mask, nan_rows_of_sum, empty_rows_of_sum, empty_rows_last,
)  # fmt: skip
