"""Einsum: a product of two operands is `matmul` between views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, rank, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal, product
from . import builders
from .analysis import is_float

aten = torch.ops.aten


@dataclass(frozen=True)
class Letters:
    """The letters of a product by role, each in the order of the output (contracted ones in the order of the left)."""

    batch: str
    left: str
    right: str
    contracted: str

    def swapped(self) -> Letters:
        """Those of the product with its operands exchanged."""
        return Letters(self.batch, self.right, self.left, self.contracted)


@respelling("aten.einsum")
def einsum_result(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("...ij,...jk", a, b)  ->  einsum("...ij,...jk->...ik", a, b): the letters that occur once, in order."""
    equation = node.args[0].replace(" ", "")  # type: ignore[union-attr]
    if "->" in equation:
        return None
    letters = equation.replace("...", "")
    once = sorted(c for c in letters if c != "," and letters.count(c) == 1)
    whole = f"{equation}->{'...' if '.' in equation else ''}{''.join(once)}"
    return edit.call(node.target, whole, *node.args[1:], **node.kwargs)


@respelling("aten.einsum")
def einsum_as_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("bqhd,bkhd->bhqk", q, k)  ->  matmul(permute(q, [0, 2, 1, 3]), permute(k, [0, 2, 3, 1])).

    einsum("bghqd,bgkd->bghqk", q, k)  ->  matmul(q, reshape(permute(k, [0, 1, 3, 2]), [b, g, 1, d, k]))
    einsum("qd,bkd->bqk", q, k)  ->  matmul(q, permute(k, [0, 2, 1]))
    einsum("bsd,bsd->bs", x, y)  ->  sum(mul(x, y), [2])
    """
    parsed = _parse(node)
    if parsed is None:
        return None
    (a, b), terms, out = node.args[1], parsed[0], parsed[1]
    roles = _roles(terms[0], terms[1], out)
    sizes = _sizes(zip(terms, (a, b), strict=True))
    if roles is None or sizes is None:
        return None
    if roles.batch and not roles.left and not roles.right:
        return _summed(node, edit, a, b, terms, out)
    if _is_shared(roles.swapped(), out):
        a, b, terms, roles = b, a, terms[::-1], roles.swapped()
    if _is_shared(roles, out):
        left = builders.permute(edit, node, a, [terms[0].index(c) for c in roles.left + roles.contracted])
        order = [*roles.right[:-1], *roles.contracted, roles.right[-1]]
        return edit.call(aten.matmul.default, left, builders.permute(edit, node, b, [terms[1].index(c) for c in order]))
    wider = _batched(node, edit, (a, b), terms, roles, out)
    if wider is not None:
        return wider
    if len(roles.left) < 2 <= len(roles.right):
        a, b, terms, roles = b, a, terms[::-1], roles.swapped()
    # Rows of several letters, as of queries in groups, are products side by side with the same right operand.
    spread = len(roles.right) <= 1 and (not roles.batch or len(roles.left) > 1)
    rows = _in_order(roles, terms[0])
    shared = [sizes[c] for c in roles.batch] + [1] * (len(rows) - 1 if spread and roles.batch else 0)
    left = _view(node, edit, a, terms[0], [roles.batch, rows, roles.contracted], sizes, spread=spread)
    right = _view(node, edit, b, terms[1], [roles.batch, roles.contracted, roles.right], sizes)
    right = builders.reshape(edit, node, right, [*shared, *shape(right)[len(roles.batch) :]])
    whole = roles.batch + rows + roles.right
    result = edit.call(aten.matmul.default, left, right)
    result = builders.reshape(edit, node, result, [sizes[c] for c in whole])
    return builders.permute(edit, node, result, [whole.index(c) for c in out])


def _summed(node: fx.Node, edit: Editor, a: fx.Node, b: fx.Node, terms: list[str], out: str) -> fx.Node | None:
    """The sum of the products of two tensors with the same letters, over those that the result does not have."""
    if not dtype(node).is_floating_point:
        return None
    first, kept = terms[0], [c for c in terms[0] if c in out]
    b = builders.permute(edit, node, b, [terms[1].index(c) for c in first])
    products = edit.call(aten.pow.Tensor_Scalar, a, 2) if a is b else edit.call(aten.mul.Tensor, a, b)
    total = edit.call(aten.sum.dim_IntList, products, [d for d, c in enumerate(first) if c not in out])
    return builders.permute(edit, node, total, [kept.index(c) for c in out])


def _batched(
    node: fx.Node, edit: Editor, operands: Sequence[fx.Node], terms: list[str], roles: Letters, out: str
) -> fx.Node | None:
    """The same product with the first letter among those of both operands, if only one of them has it.

    einsum("hqd,bhkd->bhqk", q, k)  ->  einsum("bhqd,bhkd->bhqk", reshape(q, [1, h, q, d]), k), as a `matmul`
    """
    first = out[0] if out else ""
    if not roles.batch or not any(first in own and len(own) > 1 for own in (roles.left, roles.right)):
        return None
    has = [t.startswith(first) for t in terms]
    if not any(has):
        return None
    left, right = (own.replace(first, "") for own in (roles.left, roles.right))
    batch, sides = roles.batch, []
    for x, term, own, given, order in zip(operands, terms, (left, right), has, (0, 1), strict=True):
        parts = (own, roles.contracted) if order == 0 else (roles.contracted, own)
        letters = (first if given else "") + batch + "".join(parts)
        sizes = dict(zip(term, shape(x), strict=True))
        target = [sizes[first] if given else 1, *(sizes[c] for c in batch)]
        target += [product(sizes[c] for c in part) for part in parts]
        permuted = builders.permute(edit, node, x, [term.index(c) for c in letters])
        sides.append(builders.reshape(edit, node, permuted, target))
    sizes = {c: n for t, x in zip(terms, operands, strict=True) for c, n in zip(t, shape(x), strict=True)}
    whole = first + batch + left + right
    result = builders.reshape(edit, node, edit.call(aten.matmul.default, *sides), [sizes[c] for c in whole])
    return builders.permute(edit, node, result, [whole.index(c) for c in out])


def _is_shared(roles: Letters, out: str) -> bool:
    """Whether the left operand is one matrix for a batch that only the right one has: "sd,ntd->nst"."""
    if roles.batch or (len(roles.left), len(roles.contracted)) != (1, 1) or len(roles.right) < 2:
        return False
    return out == roles.right[:-1] + roles.left + roles.right[-1]


def _in_order(roles: Letters, term: str) -> str:
    """The left letters as the left operand has them, where it lies as a product reads it, else as the output does."""
    rows = "".join(c for c in term if c in roles.left)
    return rows if term == roles.batch + rows + roles.contracted else roles.left


@respelling("aten.einsum")
def einsum_as_permute(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("ijbn->bnij", x)  ->  permute(x, [2, 3, 0, 1])."""
    equation, operands = node.args[0].replace(" ", ""), node.args[1]
    if len(operands) != 1 or equation.count("->") != 1 or "." in equation:
        return None
    term, out = equation.split("->")
    if sorted(term) != sorted(out) or len(set(term)) < len(term):
        return None
    return builders.permute(edit, node, operands[0], [term.index(c) for c in out])


@respelling("aten.einsum")
def einsum_as_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("bhsd,sd->bhsd", x, y)  ->  mul(x, y);  einsum("i,j->ij", x, y)  ->  mul(reshape(x, [i, 1]), y)."""
    parsed = _parse(node)
    if parsed is None or not is_float(node):
        return None
    (a, b), (terms, out) = node.args[1], parsed
    if set("".join(terms)) != set(out) or _sizes(zip(terms, (a, b), strict=True)) is None:
        return None
    return edit.call(aten.mul.Tensor, *(_aligned(node, edit, x, t, out) for x, t in zip((a, b), terms, strict=True)))


def _aligned(node: fx.Node, edit: Editor, x: fx.Node, term: str, out: str) -> fx.Node:
    """`x` with its letters in the order of the result, and ones for those that it lacks but the first."""
    ordered = builders.permute(edit, node, x, [term.index(c) for c in out if c in term])
    first = min(out.index(c) for c in term) if term else len(out)
    sizes = [shape(x)[term.index(c)] if c in term else 1 for c in out[first:]]
    return builders.reshape(edit, node, ordered, sizes)


def _parse(node: fx.Node) -> tuple[list[str], str] | None:
    """Letters of both operands and of the result, an ellipsis spelled out; None for other forms of einsum."""
    operands = node.args[1]
    equation = node.args[0].replace(" ", "")
    if len(operands) != 2 or equation.count("->") != 1 or not isinstance(equation, str):
        return None
    if dtype(operands[0]) != dtype(operands[1]):  # which eager refuses
        return None
    inputs, out = equation.split("->")
    terms = inputs.split(",")
    hidden = [rank(x) - len(t.replace("...", "")) for x, t in zip(operands, terms, strict=True) if "..." in t]
    if hidden and len(set(hidden)) > 1:
        return None
    spare = "".join(c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation)[: hidden[0] if hidden else 0]
    terms = [t.replace("...", spare) for t in terms]
    out = out.replace("...", spare)
    if any(len(set(t)) < len(t) for t in (*terms, out)):
        return None
    return terms, out


def _roles(a: str, b: str, out: str) -> Letters | None:
    """The role of each letter, or None where one is summed in a single operand or nothing is contracted."""
    contracted = "".join(c for c in a if c in b and c not in out)
    batch = "".join(c for c in out if c in a and c in b)
    left = "".join(c for c in out if c in a and c not in b)
    right = "".join(c for c in out if c in b and c not in a)
    if not contracted or len(a) != len(batch + left + contracted) or len(b) != len(batch + right + contracted):
        return None
    return Letters(batch, left, right, contracted)


def _sizes(operands: Any) -> dict[str, Any] | None:
    """The size of each letter; None where an operand broadcasts a size of 1."""
    sizes: dict[str, Any] = {}
    for term, x in operands:
        for letter, size in zip(term, shape(x), strict=True):
            if not known_equal(sizes.setdefault(letter, size), size):
                return None
    return sizes


def _view(
    node: fx.Node, edit: Editor, x: fx.Node, term: str, roles: list[str], sizes: dict[str, Any], spread: bool = False
) -> fx.Node:
    """`x` with its letters in the order of `roles`: batch letters apart, those of each other role as one dimension.

    With `spread`, the letters of the second role stay apart too.
    """
    order = [term.index(c) for c in "".join(roles)]
    permuted = builders.permute(edit, node, x, order)
    batch, first, second = roles
    apart = batch + first if spread and first else batch
    merged = [second] if spread and first else [first, second]
    target = [sizes[c] for c in apart] + [product(sizes[c] for c in letters) for letters in merged]
    return builders.reshape(edit, node, permuted, target)
