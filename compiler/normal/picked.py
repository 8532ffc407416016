"""One number of each row, picked by a class, and its logarithm among all of the row.

x[arange(n), t]                              ->   reshape(gather(x, -1, t[:, None]), [n])
gather(z - logsumexp(z, [-1], True), -1, t)  ->   gather(z, -1, t) - logsumexp(z, [-1], True)
logsumexp(z, [-1]) - gather(z, -1, t)        ->   neg(gather(z, -1, t) - logsumexp(z, [-1], True))

The last one is not ``gather(log_softmax(z, -1), -1, t)``: of a row that holds infinity, it is -inf for other classes,
and `log_softmax` is NaN. A logarithm of a sum by hand, less a maximum, is NaN there, and does become `log_softmax`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import is_float, last, reduction
from .exponent_sums import SHIFTED

aten = torch.ops.aten


@respelling("aten.index")
def element_of_each_row(node: fx.Node, edit: Editor) -> fx.Node | None:
    """x[arange(n), t]  ->  reshape(gather(x, -1, where(t < 0, t + columns, t)[:, None]), [n])."""
    x, indices = node.args
    if len(indices) != 2 or not is_float(x) or rank(x) != 2:  # type: ignore[arg-type]
        return None
    rows, chosen = indices  # type: ignore[misc]
    if not is_tensor(chosen) or rank(chosen) != 1 or dtype(chosen) != torch.int64:
        return None
    if val(chosen).device != val(x).device:  # of `index` it may be on the CPU
        return None
    if not _counts(node, rows, shape(x)[0]) or not known_equal(shape(chosen)[0], shape(x)[0]):
        return None
    from_end = edit.call(aten.add.Tensor, chosen, shape(x)[1])
    place = edit.call(aten.where.self, edit.call(aten.lt.Scalar, chosen, 0), from_end, chosen)
    column = builders.reshape(edit, node, place, [shape(x)[0], 1])
    return builders.reshape(edit, node, edit.call(aten.gather.default, x, -1, column), shape(node))


def _counts(node: fx.Node, rows: Any, size: Any) -> bool:
    """Whether indices are 0, 1, 2, ..., one for each row."""
    if not sees(node, rows, "aten.arange"):
        return False
    given = arguments(rows)
    start, end, step = given.get("start", 0), given["end"], given.get("step", 1)
    end = end.meta.get("val") if isinstance(end, fx.Node) else end
    return start == 0 and step == 1 and bool(known_equal(end, size))


@respelling("aten.gather")
def choice_of_logarithms(node: fx.Node, edit: Editor) -> fx.Node | None:
    """gather(z - logsumexp(z, [-1], True), -1, t)  ->  gather(z, -1, t) - logsumexp(z, [-1], True), one class a row."""
    logs, dim, index = node.args[:3]
    if not sees(node, logs, "aten.sub") or arguments(logs).get("alpha", 1) != 1 or not last(node, dim):
        return None
    z, total = logs.args[:2]
    found = reduction(node, total, "aten.logsumexp") if is_tensor(total) and is_float(z) else None
    if found is None or found[0] is not z or found[1] != rank(z) - 1 or not _is_one_a_row(z, index):
        return None
    return edit.call(aten.sub.Tensor, edit.call(aten.gather.default, z, -1, index), total)


def _is_one_a_row(z: fx.Node, index: Any) -> bool:
    return rank(z) == rank(index) and same_shape(shape(index), (*shape(z)[:-1], 1))


@respelling("aten.sub")
def logarithm_of_choice(node: fx.Node, edit: Editor) -> fx.Node | None:
    """gather(z, -1, t) - logsumexp(z, [-1])  ->  gather(z, -1, t) - logsumexp(z, [-1], True), for one class a row."""
    a, b = node.args[:2]
    if arguments(node).get("alpha", 1) != 1 or not is_tensor(a) or not is_tensor(b):
        return None
    if not same_shape(shape(a), shape(b)):
        return None
    for picked, total, turned in ((a, b, False), (b, a, True)):
        choice, log = _unshaped(node, picked), _unshaped(node, total)
        if not sees(node, choice, "aten.gather") or not sees(node, log, "aten.logsumexp"):
            continue
        z, index = choice.args[0], choice.args[2]
        dims = log.args[1] if isinstance(log.args[1], (list, tuple)) else [log.args[1]]
        if (
            log.args[0] is z
            and is_float(z)
            and _is_one_a_row(z, index)
            and len(dims) == 1
            and last(z, dims[0])
            and last(z, choice.args[1])
        ):
            made = _logarithm(edit, node, z, index, log)
            if made is node:
                return None
            made = builders.reshape(edit, node, made, shape(node))
            return edit.call(aten.neg.default, made) if turned else made
    return None


def _logarithm(edit: Editor, node: fx.Node, z: fx.Node, index: fx.Node, log: fx.Node) -> fx.Node:
    """The logarithm of the probability of one class of each row; `node` if it is spelled so already."""
    if log.meta.get(SHIFTED):
        return edit.call(aten.gather.default, edit.call(aten.log_softmax.int, z, -1), -1, index)
    choice, kept = node.args[:2]
    if sees(node, choice, "aten.gather") and kept is log and log.args[1:] == ([-1], True):
        return node
    choice = edit.call(aten.gather.default, z, -1, index)
    return edit.call(aten.sub.Tensor, choice, edit.call(aten.logsumexp.default, z, [-1], True))


def _unshaped(node: fx.Node, value: Any) -> Any:
    return value.args[0] if op_name(value) == "aten.reshape" and sees(node, value, "aten.reshape") else value


PICKED: tuple[Respelling, ...] = (element_of_each_row, choice_of_logarithms, logarithm_of_choice)

__all__ = ["PICKED"]
