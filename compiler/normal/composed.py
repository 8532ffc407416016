"""Composite operators and other names of operators: rules see the operators that they consist of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import CASTS, holds_product, is_bool, is_float, is_literal, like, uniform

aten = torch.ops.aten

_NAMES = {
    "special_expit": "sigmoid", "special_erf": "erf", "special_erfc": "erfc", "special_exp2": "exp2",
    "special_expm1": "expm1", "special_log1p": "log1p", "special_logsumexp": "logsumexp", "special_i0": "i0",
    "special_gammainc": "igamma", "special_gammaincc": "igammac", "special_multigammaln": "mvlgamma",
    "special_round": "round", "special_sinc": "sinc", "special_xlogy": "xlogy", "special_psi": "digamma",
    "special_digamma": "digamma", "special_erfinv": "erfinv", "special_gammaln": "lgamma", "special_logit": "logit",
    "special_log_softmax": "log_softmax", "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div",
    "concat": "cat", "concatenate": "cat", "absolute": "abs", "negative": "neg", "fix": "trunc", "clip": "clamp",
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift", "ger": "outer", "row_stack": "vstack", "det": "linalg_det",
    "inverse": "linalg_inv", "matrix_power": "linalg_matrix_power", "linalg_matrix_exp": "matrix_exp",
    "linalg_matmul": "matmul", "orgqr": "linalg_householder_product",
}  # fmt: skip
_OVERLOADS = {
    "special_xlogy": {"default": "Tensor", "other_scalar": "Scalar_Other", "self_scalar": "Scalar_Self"},
    "special_log_softmax": {"default": "int"},
    "__lshift__": {"Scalar": "Tensor_Scalar"}, "__rshift__": {"Scalar": "Tensor_Scalar"},
}  # fmt: skip


@respelling(*(f"aten.{name}" for name in _NAMES))
def other_name(node: fx.Node, edit: Editor) -> fx.Node | None:
    """multiply(x, y), special.expit(x), concat([x, y]), arctan2(x, y)  ->  mul, sigmoid, cat, atan2."""
    name, overload = op_name(node).removeprefix("aten."), compat.overload_name(node.target)
    packet = getattr(aten, _NAMES[name])
    if name == "special_round" and node.kwargs:
        overload = "decimals"
    target = getattr(packet, _OVERLOADS.get(name, {}).get(overload, overload), None)
    return None if target is None else edit.call(target, *node.args, **node.kwargs)


@respelling("aten.addcmul", "aten.addcdiv")
def product_added(node: fx.Node, edit: Editor) -> fx.Node | None:
    """addcmul(x, a, b, value=v)  ->  add(x, mul(mul(a, b), v)); addcdiv likewise."""
    values = arguments(node)
    x, a, b, factor = values["self"], values["tensor1"], values["tensor2"], values.get("value", 1)
    if not all(is_float(t) and (dtype(t) == dtype(node) or rank(t) == 0) for t in (x, a, b)) or dtype(a) != dtype(node):
        return None
    joined = edit.call(aten.mul.Tensor if op_name(node) == "aten.addcmul" else aten.div.Tensor, a, b)
    return edit.call(aten.add.Tensor, x, builders.scaled(edit, joined, factor))


@respelling("aten.exp2", "aten.pow")
def power_of_number(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp2(x)  ->  exp(mul(x, log(2)));  pow(b, scores)  ->  exp(mul(scores, log(b))), for a number `b` above 1."""
    base, x = (2.0, node.args[0]) if op_name(node) == "aten.exp2" else node.args
    if op_name(node) == "aten.pow" and not holds_product(x):
        return None
    base = uniform(base)
    if base is None or not 1 < base < math.inf or not is_float(x) or dtype(x) != dtype(node) or not like(node, x):
        return None
    return edit.call(aten.exp.default, builders.scaled(edit, x, math.log(base)))


@respelling("aten.inner")
def inner_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """inner(x, w)  ->  matmul(x, permute(w, [1, 0])), for a matrix `w`."""
    x, w = node.args
    if min(rank(x), rank(w)) < 2 or rank(w) != 2:
        return None
    return edit.call(aten.matmul.default, x, builders.swap_last(edit, node, w))


@respelling("aten.tensordot")
def tensor_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """tensordot(a, b, [1, 2], [0, 1])  ->  einsum("abc,bcd->ad", a, b)."""
    if node.target is not aten.tensordot.default:
        return None
    a, b, dims_a, dims_b = node.args
    if len(dims_a) != len(dims_b) or not dims_a or dtype(a) != dtype(b):
        return None
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first, second = [next(letters) for _ in shape(a)], [next(letters) for _ in shape(b)]
    for i, j in zip(dims_a, dims_b, strict=True):
        second[j] = first[i]
    summed = {first[i] for i in dims_a}
    out = [c for c in (*first, *second) if c not in summed]
    return _einsum(edit, [first, second], out, [a, b])


@respelling("aten.sum")
def sum_of_products(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sum(mul(q[B, S, 1, D], k[B, 1, T, D]), [-1])  ->  einsum("bsd,btd->bst", q, k).

    Each operand is broadcast along a dim of the other: a product of matrices whose summands are all in memory. Or one
    is, in a batch that both have, as the only query of each head: sum(mul(q[H, 1, D], k[H, T, D]), [-1]).
    """
    inner, values = node.args[0], arguments(node)
    dims = values.get("dim")
    if not sees(node, inner, "aten.mul") or not dims or values.get("dtype") not in (None, dtype(node)):
        return None
    if not rank(inner):  # a number, whose sum along dim 0 is itself
        return None
    a, b = inner.args[:2]
    if not all(is_float(t) and dtype(t) == dtype(node) and rank(t) == rank(inner) for t in (a, b)):
        return None
    summed = {d % rank(inner) for d in dims}
    own = [[not known_equal(size, 1) for size in shape(t)] for t in (a, b)]
    if any(not (own[0][d] and own[1][d]) for d in summed):
        return None
    if not _outer(own[0], own[1]) and (not _vectors(own[0], own[1], summed) or _is_mask(node, a) or _is_mask(node, b)):
        return None
    letters = "abcdefghijklmnopqrstuvwxyz"[: rank(inner)]
    parts = []
    for t, has in zip((a, b), own, strict=True):
        flat = builders.reshape(edit, node, t, [s for s, here in zip(shape(t), has, strict=True) if here])
        parts.append(([c for c, here in zip(letters, has, strict=True) if here], flat))
    kept = [c for d, c in enumerate(letters) if d not in summed and (own[0][d] or own[1][d])]
    result = _einsum(edit, [letters for letters, _ in parts], kept, [x for _, x in parts])
    return builders.reshape(edit, node, result, shape(node))


def _outer(a: Sequence[bool], b: Sequence[bool]) -> bool:
    """Whether each of two operands has a dim that the other lacks."""
    return any(x and not y for x, y in zip(a, b, strict=True)) and any(y and not x for x, y in zip(a, b, strict=True))


def _vectors(a: Sequence[bool], b: Sequence[bool], summed: set[int]) -> bool:
    """Whether one operand lacks a dim, and both have one that is kept."""
    return list(a) != list(b) and any(x and y for d, (x, y) in enumerate(zip(a, b, strict=True)) if d not in summed)


def _is_mask(user: fx.Node, node: fx.Node) -> bool:
    """Whether a value is a cast of truth values: a sum of products with it counts what it keeps."""
    while sees(user, node, "aten.reshape", "aten.unsqueeze", "aten.expand"):
        node = node.args[0]
    return sees(user, node, *CASTS) and is_bool(node.args[0])


@respelling("aten.einsum")
def two_at_a_time(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("bqd,de,bke->bqk", q, w, k)  ->  einsum("bqe,bke->bqk", einsum("bqd,de->bqe", q, w), k).

    A path, which torch gives where opt_einsum is installed, names the operands of each product among those that are
    left, of which earlier results are the last.
    """
    parsed = _terms(node)
    if parsed is None or len(parsed[0]) < 3:
        return None
    terms, out = parsed
    path = arguments(node).get("path")
    pair = sorted(path[:2]) if path else [0, 1]
    rest = [k for k in range(len(terms)) if k not in pair]
    operands = list(node.args[1])  # type: ignore[arg-type]
    needed = {c for k in rest for c in terms[k]} | set(out)
    kept = [c for c in dict.fromkeys(terms[pair[0]] + terms[pair[1]]) if c in needed]
    product = _einsum(edit, [terms[k] for k in pair], kept, [operands[k] for k in pair])
    others, left = [terms[k] for k in rest], [operands[k] for k in rest]
    if not path:
        return _einsum(edit, ["".join(kept), *others], out, [product, *left])
    return _einsum(edit, [*others, "".join(kept)], out, [*left, product], path[2:])


@respelling("aten.einsum")
def einsum_as_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """einsum("bst->bs", x)  ->  sum(x, [2])."""
    parsed = _terms(node)
    if parsed is None or len(parsed[0]) != 1:
        return None
    (term,), out = parsed
    (x,) = node.args[1]  # type: ignore[misc]
    summed = [d for d, c in enumerate(term) if c not in out]
    if not summed or not is_float(x):
        return None
    left = [c for c in term if c in out]
    return builders.permute(edit, node, edit.call(aten.sum.dim_IntList, x, summed), [left.index(c) for c in out])


def _terms(node: fx.Node) -> tuple[list[str], str] | None:
    """The letters of the operands and of the result of an einsum without ellipses, repeated letters and diagonals."""
    equation = node.args[0].replace(" ", "")  # type: ignore[union-attr]
    if equation.count("->") != 1 or "." in equation:
        return None
    inputs, out = equation.split("->")
    terms = inputs.split(",")
    if any(len(set(t)) < len(t) for t in (*terms, out)) or len(terms) != len(node.args[1]):  # type: ignore[arg-type]
        return None
    return terms, out


def _einsum(
    edit: Editor, terms: Sequence[Any], out: Sequence[str], operands: Sequence[fx.Node], path: Sequence[int] = ()
) -> fx.Node:
    equation = ",".join("".join(t) for t in terms) + "->" + "".join(out)
    named = {"path": list(path)} if len(operands) > 2 and path else {}
    return edit.call(aten.einsum.default, equation, list(operands), **named)


@respelling("aten.pad", "aten.constant_pad_nd")
def columns_padded(node: fx.Node, edit: Editor) -> fx.Node | None:
    """pad(scores, [0, 1])  ->  cat([scores, zeros([..., 1])], -1)."""
    values = arguments(node)
    x, widths, number = values["self"], values["pad"], values.get("value") or 0.0
    if values.get("mode", "constant") != "constant" or not is_float(x) or len(widths) != 2 or not holds_product(x):
        return None
    if list(widths) not in ([0, 1], [1, 0]) or not is_literal(number):
        return None
    unit = edit.call(aten.full.default, [], number, dtype=dtype(x), device=val(x).device)
    column = builders.expand(edit, node, unit, [*shape(x)[:-1], 1])
    return edit.call(aten.cat.default, [x, column] if widths[1] else [column, x], -1)


COMPOSED: tuple[Respelling, ...] = (
    other_name, product_added, power_of_number, inner_product, tensor_product, sum_of_products, two_at_a_time,
    einsum_as_sum, columns_padded,
)  # fmt: skip
