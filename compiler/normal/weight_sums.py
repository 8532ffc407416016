"""Sums of the weights of several attentions, and weights of some heads: each attention has its own product.

    (softmax(s1) - c * softmax(s2)) @ v       ->   softmax(s1) @ v + (softmax(s2) @ v) * -c
    softmax(q @ k)[:, ::2]                    ->   softmax(q[:, ::2] @ k[:, ::2])

Differential attention is written in this way, and mixtures of content and position. Nobody reads the other heads: the
parts are all readers of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import POINTWISE, Factor, factor_of, holds_product, holds_softmax, is_float, is_literal, like

aten = torch.ops.aten

_MOST_TERMS = 4  # attentions of one sum: each gets a product of its own
_CUTS = ("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.tensor_split")
_SOFTMAX = "aten.softmax"

_Term = tuple[fx.Node, list[Factor]]  # weights, what they are multiplied by


@respelling("aten.matmul")
def sum_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(sub(w1, mul(w2, c)), v)  ->  add(matmul(w1, v), mul(matmul(w2, v), -c)), `c` constant along the keys."""
    weights, value = node.args
    if not sees(node, weights, "aten.add", "aten.sub") or rank(weights) < 3 or rank(value) < 3:
        return None
    terms = _terms(node, weights)
    if terms is None or not 2 <= len(terms) <= _MOST_TERMS:
        return None
    products = []
    for term, factors in terms:
        product = edit.call(aten.matmul.default, term, value)
        for factor in factors:
            product = _multiplied(edit, product, factor)
        products.append(product)
    if not all(like(node, product) for product in products):
        return None
    total = products[0]
    for product in products[1:]:
        total = edit.call(aten.add.Tensor, total, product)
    return total


def _multiplied(edit: Editor, x: fx.Node, factor: Factor) -> fx.Node:
    known = factor_of(factor)
    return edit.call(aten.mul.Tensor, x, factor) if known is None else builders.scaled(edit, x, known)


def _terms(user: fx.Node, node: Any) -> list[_Term] | None:
    """The weights in a sum of them, each with its factors; None for other sums."""
    if not holds_softmax(node) or dtype(node) != dtype(user):
        return None
    if sees(user, node, "aten.add", "aten.sub"):
        a, b = node.args[:2]
        if arguments(node).get("alpha", 1) != 1 or not like(node, a) or not is_tensor(b) or not like(node, b):
            return None
        first, second = _terms(user, a), _terms(user, b)
        if first is None or second is None:
            return None
        sign = [-1] if op_name(node) == "aten.sub" else []
        return first + [(weights, factors + sign) for weights, factors in second]
    factors: list[Factor] = []
    while sees(user, node, "aten.mul"):
        found = next(((x, f) for x, f in (node.args, node.args[::-1]) if _is_factor(node, x, f)), None)
        if found is None:
            return None
        node = found[0]
        factors.append(found[1])
    return [(node, factors)]


def _is_factor(node: fx.Node, weights: Any, factor: Any) -> bool:
    """Whether weights are multiplied by a number, or by a tensor that is constant along the keys."""
    if not holds_softmax(weights) or not like(node, weights):
        return False
    if is_literal(factor) or factor_of(factor) is not None:
        return True
    if not is_float(factor) or holds_softmax(factor) or rank(factor) == 0 or rank(factor) > rank(node):
        return False
    return known_equal(shape(factor)[-1], 1) and dtype(factor) == dtype(node)


@dataclass(frozen=True)
class _Part:
    """``select(x, dim, index)`` or ``slice(x, dim, start, end, step)``, which other tensors have like parts of."""

    x: fx.Node
    dim: int
    target: Any
    rest: tuple[Any, ...]

    def of(self, edit: Editor, broadcast: fx.Node, operand: fx.Node) -> fx.Node:
        """The part of an operand that broadcasts to `broadcast`: all of it if it has no such dim."""
        dim = self.dim - (rank(broadcast) - rank(operand))
        if dim < 0:
            return operand
        if not known_equal(shape(operand)[dim], 1):
            return edit.call(self.target, operand, dim, *self.rest)
        return edit.call(self.target, operand, dim, 0) if self.target is aten.select.int else operand


@respelling("aten.select", "aten.slice", "getitem")
def heads_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """slice(softmax(matmul(q, k), -1), 1, 0, END, 2)  ->  softmax(matmul(slice(q), slice(k)), -1); also select, chunk.

    This is done if all that reads the weights are parts along this dim, which is one of the batch.
    """
    part = _part(node)
    if part is None or not holds_softmax(part.x) or not 0 <= part.dim < rank(part.x) - 2:
        return None
    return _taken(node, edit, part.x, part) if _only_parts(part) else None


def _part(node: fx.Node) -> _Part | None:
    if op_name(node) == "getitem":
        return _piece(node)
    if node.target not in (aten.select.int, aten.slice.Tensor):
        return None
    values = arguments(node)
    x, dim = values["self"], values["dim"]
    if not is_tensor(x) or not isinstance(dim, int) or "opaque" in node.meta:
        return None
    rest = tuple(value for name, value in values.items() if name not in ("self", "dim"))
    return _Part(x, dim % rank(x), node.target, rest)


def _piece(node: fx.Node) -> _Part | None:
    call, index = node.args
    if not sees(node, call, *_CUTS) or not isinstance(index, int) or not is_tensor(call.args[0]):
        return None
    x, dim = call.args[0], arguments(call).get("dim", 0)
    if not isinstance(dim, int):
        return None
    sizes = [part.shape[dim % rank(x)] for part in val(call)]
    start = sum(sizes[:index])
    return _Part(x, dim % rank(x), aten.slice.Tensor, (start, builders.end_of(start + sizes[index], shape(x)[dim])))


def _only_parts(part: _Part) -> bool:
    """Whether all readers of weights take parts along one dim."""
    for user in part.x.users:
        for reader in user.users if op_name(user) in _CUTS else [user]:
            other = _part(reader) if op_name(reader) in ("getitem", "aten.select", "aten.slice") else None
            if other is None or (other.x, other.dim) != (part.x, part.dim):
                return False
    return True


def _taken(user: fx.Node, edit: Editor, node: fx.Node, part: _Part) -> fx.Node | None:
    """A part of weights or scores, from like parts of query and key; None if no product of these is found."""
    if sees(user, node, "aten.matmul") and holds_product(node) and not holds_softmax(node.args[0]):
        return edit.call(aten.matmul.default, *(part.of(edit, node, x) for x in node.args))
    if not sees(user, node, *POINTWISE) and not (sees(user, node, _SOFTMAX) and node.args[1:] == (-1,)):
        return None
    args, found = list(node.args), False
    for i, x in enumerate(args):
        if is_tensor(x):
            chain = rank(x) == rank(node) and (holds_product(x) or holds_softmax(x))
            inner = (
                _taken(user, edit, x, part)
                if chain and known_equal(shape(x)[part.dim], shape(node)[part.dim])
                else None
            )
            args[i], found = (part.of(edit, node, x), found) if inner is None else (inner, True)
    return edit.call(node.target, *args, **node.kwargs) if found else None


SUMS_OF_WEIGHTS: tuple[Respelling, ...] = (heads_of_weights, sum_of_weights)
