"""Weights of which a mask drops some before they are divided by their sum: the mask hides scores instead.

    exp(x) * keep                                        ->   exp(where(keep, x, -inf))
    (softmax(x) * keep) / sum(softmax(x) * keep)         ->   softmax(where(keep, x, -inf))

In both forms, rows that keep nothing are NaN after the division.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, op_name, rank, sees, val
from ...rewrites.respell import Respelling, respelling
from .analysis import is_bool, is_float, like, reduction, same_value, uniform
from .softmax import quotient

aten = torch.ops.aten


@respelling("aten.mul", "aten.where")
def masked_exponents(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(x) * keep, where(keep, exp(x), 0)  ->  exp(where(keep, x, -inf)), for a boolean `keep`."""
    kept, keep = _kept(node)
    if keep is None or not sees(node, kept, "aten.exp") or not is_float(kept.args[0]) or not like(node, kept):
        return None
    return edit.call(aten.exp.default, _hidden(edit, keep, kept.args[0]))


@respelling("aten.div", "aten.mul")
def masked_weights_over_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """w / sum(w, [-1], True) of w = softmax(x, -1) * keep  ->  softmax(where(keep, x, -inf), -1)."""
    weights, divisor = quotient(node)
    over = reduction(node, divisor, "aten.sum") if is_tensor(divisor) and is_tensor(weights) else None
    if over is None or over[1] != rank(weights) - 1 or not same_value(over[0], weights):
        return None
    if not sees(node, weights, "aten.mul", "aten.where"):
        return None
    soft, keep = _kept(weights)
    if keep is None or not sees(node, soft, "aten.softmax") or soft.args[1:] != (-1,) or not like(node, soft):
        return None
    return edit.call(aten.softmax.int, _hidden(edit, keep, soft.args[0]), -1)


def _kept(node: fx.Node) -> tuple[Any, fx.Node | None]:
    """(x, keep) of ``x * keep`` and ``where(keep, x, 0)``, for a boolean `keep`; otherwise (None, None)."""
    if op_name(node) == "aten.where":
        if len(node.args) == 3 and uniform(node.args[2]) == 0 and is_bool(node.args[0]):
            return node.args[1], node.args[0]
        return None, None
    for x, factor in (node.args[:2], node.args[1::-1]):
        keep = factor.args[0] if sees(node, factor, "aten.to") else factor
        if is_bool(keep) and val(keep).device == val(node).device:
            return x, keep
    return None, None


def _hidden(edit: Editor, keep: fx.Node, x: fx.Node) -> fx.Node:
    return edit.call(aten.where.ScalarOther, keep, x, -math.inf)


MASKED_EXPONENTS: tuple[Respelling, ...] = (masked_exponents, masked_weights_over_sum)
