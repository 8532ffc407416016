"""Products: every batched product is `matmul`, and probabilities are always its left operand."""

from __future__ import annotations

from functools import partial, reduce

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, rank, sees, shape, val
from ...rewrites.respell import respelling
from . import builders
from .analysis import holds_softmax

aten = torch.ops.aten


@respelling("aten.bmm", "aten.mm", "aten.mv")
def product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """bmm(a, b), mm(a, b), mv(a, b)  ->  matmul(a, b)."""
    if node.target not in (aten.bmm.default, aten.mm.default, aten.mv.default):
        return None
    return edit.call(aten.matmul.default, *node.args)


@respelling("aten.linalg_multi_dot", "aten.chain_matmul")
def product_of_several(node: fx.Node, edit: Editor) -> fx.Node | None:
    """linalg.multi_dot([a, b, c])  ->  matmul(matmul(a, b), c)."""
    factors = node.args[0]
    if not all(rank(x) == 2 for x in factors) or len(factors) < 2:
        return None
    return reduce(partial(edit.call, aten.matmul.default), factors)


@respelling("aten.baddbmm", "aten.addmm")
def product_with_bias(node: fx.Node, edit: Editor) -> fx.Node | None:
    """baddbmm(m, a, b, beta, alpha), addmm  ->  add(mul(matmul(a, b), alpha), mul(m, beta))."""
    if node.target not in (aten.baddbmm.default, aten.addmm.default) or not val(node).dtype.is_floating_point:
        return None  # for integers, eager accepts floats as factors and drops their fractions
    bias, a, b, beta, alpha = arguments(node).values()
    result = builders.scaled(edit, edit.call(aten.matmul.default, a, b), alpha)
    if beta == 0 and not isinstance(beta, fx.Node):
        return result
    return edit.call(aten.add.Tensor, result, builders.scaled(edit, bias, beta))


@respelling("aten.permute")
def transposed_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """permute(matmul(a, b), [..., -1, -2])  ->  matmul(permute(b), permute(a)), unless `a` holds probabilities."""
    inner, order = node.args
    n = rank(node)
    if not sees(node, inner, "aten.matmul") or n < 3 or list(order[-2:]) != [n - 1, n - 2]:
        return None
    a, b = inner.args
    if any(rank(x) != n for x in (a, b)) or (holds_softmax(a) and not holds_softmax(b)):
        return None
    first, second = builders.permute(edit, node, b, order), builders.permute(edit, node, a, order)
    return edit.call(aten.matmul.default, first, second)


@respelling("aten.matmul")
def probabilities_left(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(v, p) with probabilities on the right  ->  permute(matmul(permute(p), permute(v)), [..., -1, -2])."""
    a, b = node.args
    if min(rank(a), rank(b)) < 2 or not holds_softmax(b) or holds_softmax(a):
        return None
    swapped = edit.call(aten.matmul.default, builders.swap_last(edit, node, b), builders.swap_last(edit, node, a))
    return builders.swap_last(edit, node, swapped)


@respelling("aten.matmul")
def equal_ranks(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(a[B, H, S, D], b[H, D, T])  ->  matmul(a, reshape(b, [1, H, D, T])); 2-D weights stay."""
    a, b = node.args
    low, high = sorted((a, b), key=rank)
    if rank(low) == rank(high) or rank(low) < 3:
        return None
    padded = builders.reshape(edit, node, low, [1] * (rank(high) - rank(low)) + list(shape(low)))
    return edit.call(aten.matmul.default, *((padded, b) if low is a else (a, padded)))
