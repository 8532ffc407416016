"""Attention in parts becomes one attention: concatenated keys, sums of scores, and parts of weights.

    cat([q @ k1 * s + m1, q @ k2 * s + m2])          ->   q @ cat([k1, k2]) * s + cat([m1, m2])
    w[..., :n] @ v1 + w[..., n:] @ v2                ->   w @ cat([v1, v2])
    q1 @ k1 * s1 + q2 @ k2 * s2                      ->   cat([q1 * s1, q2 * s2]) @ cat([k1, k2])

Models with global and local keys (Pegasus-X), random, banded and first blocks (BigBird) or two channels (LiLT) are
written in this way. `w` are probabilities; a column of them that is dropped is an attention sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import CASTS, Factor, holds_product, holds_softmax, is_float, is_literal, last, like
from .scale import scale_of

aten = torch.ops.aten

_MOST_TERMS = 8
_CAT = ("aten.cat", "aten.concat", "aten.concatenate")


@dataclass(frozen=True)
class _Scores:
    """``query @ key_t * scale + bias``; scale and bias may be None."""

    query: fx.Node
    key_t: fx.Node
    scale: Factor | None = None
    bias: fx.Node | None = None


# -- concatenated keys


@respelling(*_CAT)
def columns_joined(node: fx.Node, edit: Editor) -> fx.Node | None:
    """concat([scores, x], 3)  ->  cat([scores, x], -1): the last dim is -1."""
    parts, dim = node.args[0], arguments(node).get("dim", 0)
    if not last(node, dim) or not any(holds_product(p) for p in parts):
        return None
    settled = node.target is aten.cat.default and node.args[1:] == (-1,) and not node.kwargs
    return None if settled else edit.call(aten.cat.default, list(parts), -1)


@respelling("aten.cat")
def choices_side_by_side(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([where(a, s1, f), where(b, s2, f)], -1)  ->  where(cat([a, b], -1), cat([s1, s2], -1), f), for scores."""
    parts = node.args[0]
    if node.args[1:] != (-1,) or len(parts) < 2 or not all(_is_masked(node, p) for p in parts):
        return None
    if len({p.args[2] for p in parts}) > 1 or not all(like(p, p.args[1]) for p in parts):
        return None
    keeps = []
    for part in parts:
        missing = rank(node) - rank(part.args[0])
        sizes = [1] * missing + list(shape(part.args[0]))
        keeps.append(builders.expand(edit, node, part.args[0], [*sizes[:-1], shape(part)[-1]]))
    if not all(same_shape(shape(k)[:-1], shape(keeps[0])[:-1]) for k in keeps):
        keeps = [builders.expand(edit, node, k, shape(p)) for k, p in zip(keeps, parts, strict=True)]
    scores = edit.call(aten.cat.default, [p.args[1] for p in parts], -1)
    return edit.call(aten.where.ScalarOther, edit.call(aten.cat.default, keeps, -1), scores, parts[0].args[2])


def _is_masked(user: fx.Node, part: Any) -> bool:
    """Whether a value is scores with a number in the place of some."""
    if not sees(user, part, "aten.where") or part.target is not aten.where.ScalarOther:
        return False
    return is_literal(part.args[2]) and rank(part.args[0]) > 0 and holds_product(part.args[1])


@respelling("aten.cat")
def keys_side_by_side(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([q @ k1 * s + m1, q @ k2 * s], -1)  ->  add(mul(matmul(q, cat([k1, k2])), s), cat([m1, zeros]))."""
    if node.args[1:] != (-1,) or len(node.args[0]) < 2:
        return None
    parts = [_read_scores(node, edit, part) for part in node.args[0]]
    first = parts[0]
    if first is None or not all(p is not None and _joins(first, p) for p in parts):
        return None
    batch, depth = shape(node)[:-2], shape(first.query)[-1]
    keys = [builders.expand(edit, node, p.key_t, [*batch, depth, shape(p.key_t)[-1]]) for p in parts]  # type: ignore[union-attr]
    joined = edit.call(aten.matmul.default, first.query, edit.call(aten.cat.default, keys, -1))
    if first.scale is not None:
        joined = builders.scaled(edit, joined, first.scale)
    biases = _biases(node, edit, [p for p in parts if p is not None])
    return joined if biases is None else edit.call(aten.add.Tensor, joined, biases)


@respelling("aten.cat")
def adjoining_parts(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([slice(x, d, 0, n), slice(x, d, n, END)], d)  ->  x; also of parts that are permuted alike."""
    parts, dim = list(node.args[0]), arguments(node).get("dim", 0)
    order = list(range(rank(node)))
    if all(sees(node, p, "aten.permute") for p in parts):
        order = list(parts[0].args[1])
        if any(list(p.args[1]) != order for p in parts):
            return None
        parts = [p.args[0] for p in parts]
    if not parts or rank(node) == 0 or not all(sees(node, p, "aten.slice") for p in parts):
        return None
    x, end, inner = parts[0].args[0], 0, order[dim] % rank(node)
    for part in parts:
        values = arguments(part)
        size = shape(x)[inner]
        start = _bound(values["start"], size, 0)
        if part.args[0] is not x or values["dim"] % rank(node) != inner or values["step"] != 1:
            return None
        if not known_equal(start, end) or not known_equal(
            _bound(values["end"], size, size) - start, shape(part)[inner]
        ):
            return None
        end = end + shape(part)[inner]
    return builders.permute(edit, node, x, order) if known_equal(end, shape(x)[inner]) else None


def _read_scores(user: fx.Node, edit: Editor, node: Any) -> _Scores | None:
    """The parts of scores that are a product with an optional scale and an optional bias."""
    bias = scale = None
    if sees(user, node, "aten.add") and len(node.args) == 2 and not node.kwargs and is_tensor(node.args[1]):
        inner, bias = node.args
        if not (is_float(bias) and dtype(bias) == dtype(node) and like(node, inner)):
            return None
        node = inner
    if sees(user, node, "aten.mul"):
        scale = scale_of(node)
        if scale is None:
            return None
        node = node.args[0]
    factors = _product(user, edit, node)
    return None if factors is None else _Scores(*factors, scale, bias)


def _product(user: fx.Node, edit: Editor, node: Any) -> tuple[fx.Node, fx.Node] | None:
    """The operands of a product; if rows were merged for it, as in `einsum`, those of the unmerged product.

    reshape(matmul(reshape(q, [B, n*m, D]), k), [B, n, m, T])   ->   q, reshape(k, [B, 1, D, T])
    """
    split = node if sees(user, node, "aten.reshape") else None
    product = node.args[0] if split is not None else node
    if not sees(user, product, "aten.matmul") or min(rank(x) for x in product.args) < 3:
        return None
    a, b = product.args
    if split is None:
        return (a, b) if is_float(a) and rank(a) == rank(b) else None
    outer, inner = shape(split), shape(product)
    if rank(split) != rank(product) + 1 or not same_shape(outer[:-3], inner[:-2]) or rank(a) != rank(b):
        return None
    if not known_equal(outer[-1], inner[-1]):
        return None
    rows = builders.reshape(edit, user, a, [*shape(a)[:-2], outer[-3], outer[-2], shape(a)[-1]])
    return rows, builders.reshape(edit, user, b, [*shape(b)[:-2], 1, *shape(b)[-2:]])


def _joins(a: _Scores, b: _Scores) -> bool:
    """Whether two products have the same query and scale."""
    return _same(a.query, b.query) and _same(a.scale, b.scale) and rank(a.key_t) == rank(b.key_t)


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal: the same node, or equal views of the same node."""
    if isinstance(a, fx.Node) and isinstance(b, fx.Node) and a is not b:
        if a.target is not b.target or op_name(a) not in ("aten.reshape", "aten.permute", "aten.slice", "aten.expand"):
            return False
        return len(a.args) == len(b.args) and all(map(_same, a.args, b.args)) and "opaque" not in a.meta
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (type(a) is type(b) and not isinstance(a, fx.Node) and bool(a == b))


def _biases(node: fx.Node, edit: Editor, parts: list[_Scores]) -> fx.Node | None:
    """The concatenated biases of concatenated scores, with zeros for missing ones."""
    if all(p.bias is None for p in parts):
        return None
    lead = shape(node)[:-1]
    biases = []
    for part in parts:
        sizes = [*lead, shape(part.key_t)[-1]]
        bias = part.bias
        if bias is None:
            bias = edit.call(aten.full.default, [1] * len(sizes), 0.0, dtype=dtype(node), device=val(node).device)
        biases.append(builders.expand(edit, node, bias, sizes))
    return edit.call(aten.cat.default, biases, -1)


# -- parts of weights


@respelling("getitem")
def part_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(split_with_sizes(weights, [a, b], -1), 1)  ->  slice(weights, -1, a, a + b); also split."""
    call, index = node.args
    if not sees(node, call, "aten.split_with_sizes", "aten.split") or not holds_softmax(call.args[0]):
        return None
    values = arguments(call)
    weights, sizes = list(values.values())[:2]
    if not last(weights, values.get("dim", 0)) or not isinstance(index, int):
        return None
    start = sum(map(val, sizes[:index])) if isinstance(sizes, (list, tuple)) else val(sizes) * index
    return builders.part(edit, node, weights, -1, start, start + shape(node)[-1])


@respelling("aten.add")
def parts_of_weights(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(slice(w, -1, 0, n), v1) + matmul(slice(w, -1, n, T), v2)  ->  matmul(w, cat([v1, v2]))."""
    terms = _terms(node, node)
    found = [_weighted(node, edit, term) for term in terms] if 2 <= len(terms) <= _MOST_TERMS else [None]
    if any(f is None for f in found):
        return None
    ordered = _tiling([f for f in found if f is not None])
    if ordered is None:
        return None
    weights, batch, width = ordered[0][0], shape(node)[:-2], shape(node)[-1]
    values = [builders.expand(edit, node, v, [*batch, shape(v)[-2], width]) for _, _, _, v in ordered]
    return edit.call(aten.matmul.default, weights, edit.call(aten.cat.default, values, -2))


def _terms(user: fx.Node, node: Any) -> list[Any]:
    """The terms of a sum of tensors with the same shape."""
    plain = sees(user, node, "aten.add") and len(node.args) == 2 and not node.kwargs
    if not plain or not all(like(node, a) for a in node.args) or (node is not user and len(node.users) > 1):
        return [node]
    return [term for a in node.args for term in _terms(user, a)]


_Part = tuple[fx.Node, Any, Any, fx.Node]  # weights, first column, end of the columns, value


def _weighted(user: fx.Node, edit: Editor, node: Any) -> _Part | None:
    if not holds_product(node):
        return None
    factors = _product(user, edit, node)
    if factors is None or not holds_softmax(factors[0]):
        return None
    bounds = columns_of(user, factors[0])
    return None if bounds is None else (*bounds, factors[1])


def columns_of(user: fx.Node, node: Any) -> tuple[fx.Node, Any, Any] | None:
    """(x, start, end) of a slice of the last dim that is in range, with step 1."""
    if not sees(user, node, "aten.slice") or not is_tensor(node.args[0]):
        return None
    values, x = arguments(node), node.args[0]
    if not last(x, values["dim"]) or values["step"] != 1:
        return None
    size = shape(x)[-1]
    start, end = (_bound(values[name], size, default) for name, default in (("start", 0), ("end", size)))
    return (x, start, end) if known_equal(end - start, shape(node)[-1]) else None


def _bound(given: Any, size: Any, default: Any) -> Any:
    given = val(given)
    if given is None or (isinstance(given, int) and given == torch.iinfo(torch.int64).max):
        return default
    return size + given if isinstance(given, int) and given < 0 else given


def _tiling(parts: list[_Part]) -> list[_Part] | None:
    """The parts in the order of their columns, if they cover all columns of one value once."""
    weights, end, left, ordered = parts[0][0], 0, list(parts), []
    while left:
        following = next((p for p in left if p[0] is weights and known_equal(p[1], end)), None)
        if following is None:
            return None
        ordered.append(following)
        left.remove(following)
        end = following[2]
    return ordered if known_equal(end, shape(weights)[-1]) else None


@respelling("aten.slice")
def sink_dropped(node: fx.Node, edit: Editor) -> fx.Node | None:
    """slice(to(weights), 3, 0, T) of T + 1 columns  ->  to(slice(weights, -1, 0, -1)); a first one moves to the end.

    slice(softmax(cat([sink, scores])), -1, 1, end)  ->  slice(softmax(cat([scores, sink])), -1, 0, -1)
    """
    found = columns_of(node, node)
    if found is None or not holds_softmax(found[0]) or not known_equal(found[2] - found[1] + 1, shape(found[0])[-1]):
        return None
    x, start, _ = found
    if sees(node, x, *CASTS) and is_float(x.args[0]):
        return builders.cast(edit, node, edit.call(aten.slice.Tensor, x.args[0], -1, *node.args[2:]), dtype(node))
    if known_equal(start, 0):
        settled = node.args[1:] == (-1, 0, -1)
        return None if settled else edit.call(aten.slice.Tensor, x, -1, 0, -1)
    columns = x.args[0]
    if not sees(node, x, "aten.softmax") or not sees(x, columns, "aten.cat") or columns.args[1:] != (-1,):
        return None
    if len(columns.args[0]) != 2 or not known_equal(shape(columns.args[0][0])[-1], 1):
        return None
    moved = edit.call(aten.cat.default, list(columns.args[0])[::-1], -1)
    return edit.call(aten.slice.Tensor, edit.call(aten.softmax.int, moved, -1), -1, 0, -1)


# -- sums and factors


@respelling("aten.add")
def summed_products(node: fx.Node, edit: Editor) -> fx.Node | None:
    """q1 @ k1 * s1 + q2 @ k2 * s2  ->  cat([q1 * s1, q2 * s2]) @ cat([k1, k2]), if few sums share the products."""
    terms = _terms(node, node)
    found = [_read_scores(node, edit, t) if _is_of_few_sums(t) else None for t in terms]
    if len(found) < 2 or any(f is None or f.bias is not None or _are_weights(f.query) for f in found):
        return None
    parts = [f for f in found if f is not None]
    batch, rows, columns = shape(node)[:-2], shape(node)[-2], shape(node)[-1]
    queries = [p.query if p.scale is None else builders.scaled(edit, p.query, p.scale) for p in parts]
    queries = [builders.expand(edit, node, q, [*batch, rows, shape(q)[-1]]) for q in queries]
    keys = [builders.expand(edit, node, p.key_t, [*batch, shape(p.key_t)[-2], columns]) for p in parts]
    query, key_t = edit.call(aten.cat.default, queries, -1), edit.call(aten.cat.default, keys, -2)
    return edit.call(aten.matmul.default, query, key_t)


def _are_weights(node: fx.Node) -> bool:
    """Whether a value is probabilities, or exponents that become some: their sums are those of weights."""
    return holds_softmax(node) or op_name(node) == "aten.exp"


def _is_of_few_sums(term: Any) -> bool:
    """Whether at most two sums read a term: a term that many attentions share is better computed once, as a bias."""
    return isinstance(term, fx.Node) and len(term.users) <= 2 and all(op_name(u) == "aten.add" for u in term.users)


@respelling("aten.matmul")
def factor_of_heads(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(mul(weights, h), v)  ->  mul(matmul(weights, v), h), for a head mask `h`, constant along the keys."""
    weights = node.args[0]
    if not sees(node, weights, "aten.mul") or not is_float(weights):
        return None
    for x, factor in (weights.args, weights.args[::-1]):
        if not is_tensor(factor) or not holds_softmax(x) or holds_softmax(factor) or not like(weights, x):
            continue
        if dtype(factor) not in (dtype(node), torch.bool):
            continue
        if 0 < rank(factor) <= rank(node) and known_equal(shape(factor)[-1], 1):
            return edit.call(aten.mul.Tensor, edit.call(aten.matmul.default, x, node.args[1]), factor)
    return None


JOINS: tuple[Respelling, ...] = (
    columns_joined, adjoining_parts, choices_side_by_side, keys_side_by_side, part_of_weights, parts_of_weights,
    sink_dropped, summed_products, factor_of_heads,
)  # fmt: skip
