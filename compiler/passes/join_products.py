"""Computes the gradient of a weight that several calls share as one product.

    x1.t() @ y1 + x2.t() @ y2 + x3.t() @ y3    ->    cat([x1, x2, x3]).t() @ cat([y1, y2, y3])

Each step of a recurrent loop, and each layer of a model whose layers share weights, adds such a product. With few rows,
it costs more to write it, and to read it again for the sum, than to compute it; and all of them exist at the same time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, shape, val
from ...rewrites.symbolic import hint, same_shape
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten


@dataclass(frozen=True)
class RowProduct:
    """A product ``left.t() @ right``, whose sum runs over rows of both; `turned` if its transpose is added."""

    left: fx.Node
    right: fx.Node
    turned: bool


@replaces_calls(aten.add.Tensor, backwards=True, same_strides=True)
def join_products(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Replace a sum of products over few rows by one product over all rows."""
    if not node.users or not _is_plain_sum(node) or _only_summed(node):
        return None
    products, rest = _terms(node)
    if len(products) < 2 or len({one.turned for one in products}) > 1 or not all(map(_pays, products)):
        return None
    rows = [editor.call(aten.cat.default, list(side)) for side in _sides(products)]
    total = editor.call(aten.mm.default, editor.call(aten.t.default, rows[0]), rows[1])
    if products[0].turned:
        total = editor.call(aten.t.default, total)
    return functools.reduce(lambda a, b: editor.call(aten.add.Tensor, a, b), [*rest, total])


def _sides(products: Sequence[RowProduct]) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
    return tuple(one.left for one in products), tuple(one.right for one in products)


def _is_plain_sum(node: fx.Node) -> bool:
    """Whether a call adds two matrices of one shape and dtype, on a CPU."""
    given = arguments(node)
    if op_name(node) != "aten.add" or given["alpha"] != 1 or not all(map(is_tensor, (given["self"], given["other"]))):
        return False
    alike = all(
        same_shape(shape(x), shape(node)) and dtype(x) == dtype(node) and val(x).device.type == "cpu"
        for x in (given["self"], given["other"])
    )
    return alike and rank(node) == 2 and dtype(node).is_floating_point


def _only_summed(node: fx.Node) -> bool:
    """Whether a sum is only a part of another one, with which it is looked at."""
    return len(node.users) == 1 and all(op_name(u) == "aten.add" and _is_plain_sum(u) for u in node.users)


def _terms(node: fx.Node) -> tuple[list[RowProduct], list[fx.Node]]:
    """The terms of a sum, in its order: products over rows, and all others."""
    products: list[RowProduct] = []
    rest: list[fx.Node] = []
    left = [node]
    while left:
        one = left.pop()
        if one is node or (len(one.users) == 1 and op_name(one) == "aten.add" and _is_plain_sum(one)):
            left += [arguments(one)["other"], arguments(one)["self"]]
        elif found := _row_product(one):
            products.append(found)
        else:
            rest.append(one)
    return products, rest


def _row_product(node: fx.Node) -> RowProduct | None:
    """A product over rows, or its transpose, that nothing else reads."""
    turned = False
    while len(node.users) == 1 and op_name(node) == "aten.t":
        node, turned = node.args[0], not turned  # type: ignore[assignment]
    if len(node.users) != 1 or op_name(node) != "aten.mm":
        return None
    across, right = node.args
    if op_name(across) != "aten.t" or op_name(right) == "aten.t":
        return None
    return RowProduct(across.args[0], right, turned)  # type: ignore[union-attr, arg-type]


def _pays(product: RowProduct) -> bool:
    """Whether the rows that are to be kept and copied are no more than the product, which is not written."""
    rows, left = (hint(size) for size in shape(product.left))
    right = hint(shape(product.right)[1])
    return None not in (rows, left, right) and rows * (left + right) <= left * right
