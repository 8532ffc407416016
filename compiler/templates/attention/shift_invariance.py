"""Finds nodes to which a constant per row may be added, because softmax does not change.

softmax(x - max(x))                          x - max(x) is x
softmax(where(row, b - max(b), b) + s)       so is b - max(b)
softmax(tanh(x - max(x)))                    here it is not
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import CASTS
from ..common.formula import is_move, packet

_MOST = 200
_SUMS = ("aten.add", "aten.sub")
_PEAKS = ("aten.amax", "aten.max")


def shiftable(scores: Any) -> set[fx.Node]:
    """The nodes to whose value a constant per row may be added, wherever a formula of the scores reads it.

    Args:
        scores: the input of a softmax along the last dim, or a term of that input.
    """
    formula, queue = set[fx.Node](), [scores]
    for node in queue:
        if node not in formula:
            formula.add(node)
            queue.extend(node.all_input_nodes if _has_formula(node) else [])
        if len(formula) > _MOST:
            return set()
    found: set[fx.Node] = {scores}
    for node in sorted(formula - found, reverse=True):
        users = [user for user in node.users if user in formula and not _is_peak_of(user, node)]
        if users and all(user in found and node in _passed(user) for user in users):
            found.add(node)
    return found


def _has_formula(node: fx.Node) -> bool:
    if is_move(node) or node.target is operator.getitem or packet(node) in (*CASTS, *_PEAKS, "aten.cat"):
        return True
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _passed(node: fx.Node) -> tuple[Any, ...]:
    """The operands of a node that are shifted by the same constants as the node."""
    name = packet(node)
    if name in _SUMS and not node.kwargs:
        return tuple(x for x in node.args[:2] if isinstance(x, fx.Node) and _row(x) == _row(node))
    if name in CASTS or (is_move(node) and name and _keeps_rows(node)):
        return node.args[:1]
    if name == "aten.where":
        condition, a, b = node.args
        if _row(condition) == 1:
            return a, b
        return tuple(x for x, other in ((a, b), (b, a)) if _is_hiding(other))
    if name == "aten.masked_fill":
        return node.args[:1] if node.args[2] == -math.inf or _is_hiding(node.args[2]) else ()
    return ()


def _is_peak_of(node: fx.Node, x: fx.Node) -> bool:
    """Whether a node is the maximum of each row of another node, so that it shifts by the same constants."""
    return packet(node) in _PEAKS and node.args[0] is x


def _keeps_rows(node: fx.Node) -> bool:
    """Whether a move does not change rows."""
    name = packet(node)
    if name in ("aten.permute", "aten.transpose", "aten.t", "aten.slice", "aten.select", "aten.squeeze"):
        return False
    return isinstance(node.args[0], fx.Node) and _row(node.args[0]) == _row(node)


def _is_hiding(x: Any) -> bool:
    """Whether a value is -inf everywhere."""
    made = isinstance(x, fx.Node) and packet(x) in ("aten.scalar_tensor", "aten.full")
    return bool(made) and x.args[-1] == -math.inf


def _row(node: Any) -> float:
    """The length of rows; NaN, which equals nothing, if it is symbolic."""
    sizes = list(node.meta["val"].shape) if isinstance(node, fx.Node) else []
    size = sizes[-1] if sizes else 1
    return size if isinstance(size, int) else math.nan
