"""Scores of one query, or against weights: products of tensors and matrices or vectors that a softmax reads.

    softmax(linear(tanh(x), w), 1).mT @ x      as pooling by learned queries, and look-ups in learned memories
    linear(softmax(linear(x, k)), v)           as external attention

They become products of two tensors of equal rank, as all other scores are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, op_name, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import CHAIN, PRODUCTS, SOFTMAXES, holds_product, holds_softmax, is_float

aten = torch.ops.aten

_MOST_VISITED = 16  # nodes on the way from a product to its softmax, and from there to the values


@respelling("aten.linear", "aten.matmul")
def scores_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """softmax(linear(x, w, b), -1) @ v  ->  softmax(add(matmul(x, reshape(w.T, [1, D, T])), b), -1) @ v.

    softmax(matmul(x, w[D])) @ v  ->  softmax(reshape(matmul(x, reshape(w, [1, D, 1])), [B, S])) @ v
    """
    x, w = node.args[:2]
    if not is_tensor(x) or rank(w) > 2 or rank(x) < 2 or not is_float(node) or holds_softmax(x) or node.kwargs:
        return None
    by_rows, bias = op_name(node) == "aten.linear", node.args[2] if len(node.args) > 2 else None
    if (rank(x) == 2 and not by_rows) or (rank(w) == 1 and (rank(x) != 3 or bias is not None)):
        return None
    if dtype(x) != dtype(node) or dtype(w) != dtype(node) or not _weighs(node):
        return None
    columns = w if rank(w) == 1 or not by_rows else builders.permute(edit, node, w, [1, 0])
    ones, sizes = [1] * (rank(x) - 2), [*shape(columns), 1][:2]
    scores = edit.call(aten.matmul.default, x, builders.reshape(edit, node, columns, [*ones, *sizes]))
    scores = builders.reshape(edit, node, scores, shape(node))
    return scores if bias is None else edit.call(aten.add.Tensor, scores, bias)


def _weighs(node: fx.Node) -> bool:
    """Whether a softmax reads a value, perhaps scaled and masked, and a product reads its weights.

    A bias of other scores is none.
    """
    softmax = _read_by(node, lambda user: op_name(user) in SOFTMAXES)
    return (
        softmax is not None and _read_by(softmax, lambda user: op_name(user) in (*PRODUCTS, "aten.linear")) is not None
    )


def _read_by(node: fx.Node, found: Callable[[fx.Node], bool]) -> fx.Node | None:
    """A reader of a value, or of elementwise operations and views of it, that is what is looked for."""
    todo, seen = [node], 0
    while todo and seen < _MOST_VISITED:
        value = todo.pop()
        for user in value.users:
            seen += 1
            if "opaque" in user.meta:
                continue
            if found(user):
                return user
            if op_name(user) in CHAIN and not any(holds_product(a) for a in user.args if a is not value):
                todo.append(user)
    return None


@respelling("aten.linear")
def values_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """linear(softmax(x), w, b)  ->  add(matmul(softmax(x), permute(w, [1, 0])), b);  also linear(v, softmax(x))."""
    x, w = node.args[:2]
    if rank(w) != 2 or rank(x) < 2 or not is_float(node) or holds_softmax(x) == holds_softmax(w):
        return None
    result = edit.call(aten.matmul.default, x, builders.swap_last(edit, node, w))
    bias = node.args[2] if len(node.args) > 2 else None
    return result if bias is None else edit.call(aten.add.Tensor, result, bias)


@respelling("aten.reshape")
def column_as_row(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(matmul(k, q[B, D, 1]), [B, 1, T])  ->  matmul(permute(q), permute(k)): scores of one query."""
    inner = node.args[0]
    if not sees(node, inner, "aten.matmul") or rank(node) < 2 or holds_softmax(inner):
        return None
    (a, b), n = inner.args, rank(inner)
    if n < 3 or rank(a) != n or rank(b) != n or not known_equal(shape(b)[-1], 1) or known_equal(shape(a)[-2], 1):
        return None
    if not known_equal(shape(node)[-1], shape(a)[-2]):
        return None
    row, columns = builders.swap_last(edit, node, b), builders.swap_last(edit, node, a)
    return builders.reshape(edit, node, edit.call(aten.matmul.default, row, columns), shape(node))
