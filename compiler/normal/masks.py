"""Masks: every change of scores becomes `add(scores, bias)` or `where(keep, scores, fill)`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.facts import gets_gradient
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape, val
from ...rewrites.respell import respelling
from ...rewrites.symbolic import same_shape
from . import builders
from .analysis import directness, holds_product, is_bool, is_float, is_literal, is_statistic, like, uniform
from .logic import are_opposite, negated

aten = torch.ops.aten

MASKED = -1e4  # a fill as low as this removes a score from a softmax


@respelling("aten.masked_fill")
def fill_as_where(node: fx.Node, edit: Editor) -> fx.Node | None:
    """masked_fill(s, drop, v)  ->  where(logical_not(drop), s, v)."""
    scores, drop, fill = node.args
    if not like(node, scores) or not is_bool(drop) or not _keeps_type(scores, fill) or _is_elsewhere(drop, scores):
        return None
    return _where(edit, negated(edit, node, drop), scores, fill)


@respelling("aten.index_put")
def written_entries(node: fx.Node, edit: Editor) -> fx.Node | None:
    """scores[drop] = v, as index_put(scores, [drop], v)  ->  where(logical_not(drop), scores, v), for one value `v`."""
    values = arguments(node)
    x, indices, fill = values["self"], values["indices"], values["values"]
    masks = [(d, i) for d, i in enumerate(indices) if i is not None]
    if values["accumulate"] or len(masks) != 1 or not is_bool(masks[0][1]) or not like(node, x):
        return None
    (before, drop), known = masks[0], uniform(fill)
    if _is_elsewhere(drop, x):
        return None
    if rank(fill) != 0 or dtype(fill) != dtype(x) or (known is not None and not _keeps_type(x, known)):
        return None
    after = rank(x) - before - rank(drop)
    if not same_shape(shape(x)[before : before + rank(drop)], shape(drop)):
        return None
    whole = builders.reshape(edit, node, drop, [*shape(drop), *[1] * after])
    return _where(edit, negated(edit, node, whole), x, fill)


def _is_elsewhere(drop: fx.Node, scores: fx.Node) -> bool:
    """Whether a mask is on the CPU and its scores are not: indices and single numbers may be, masks of kernels not."""
    return val(drop).device != val(scores).device


def _keeps_type(scores: fx.Node, fill: Any) -> bool:
    """Whether `where` returns the type of the scores: it promotes to that of the fill, which `masked_fill` converts.

    Complex tensors are not scores.
    """
    known = uniform(fill)
    if dtype(scores).is_complex:
        return False
    if known is None:
        return torch.result_type(val(scores), val(fill)) == dtype(scores) and not _may_be_refused(scores, fill)
    return is_float(scores) or is_bool(scores) or float(known).is_integer()


def _may_be_refused(scores: fx.Node, fill: Any) -> bool:
    """Whether eager may refuse the number that a tensor of another dtype holds, which it reads on CPUs."""
    return is_tensor(fill) and val(scores).device.type == "cpu" and dtype(fill) not in (dtype(scores), torch.bool)


def _where(edit: Editor, keep: fx.Node, scores: fx.Node, fill: Any) -> fx.Node:
    known = uniform(fill)
    if known is not None and _keeps_type(scores, fill):
        kind = float if is_float(scores) else bool if is_bool(scores) else int  # otherwise `where` would promote them
        return edit.call(aten.where.ScalarOther, keep, scores, kind(known))
    if isinstance(fill, fx.Node) and not is_tensor(fill):
        return edit.call(aten.where.ScalarOther, keep, scores, fill)
    return edit.call(aten.where.self, keep, scores, fill)


@respelling("aten.where")
def fill_on_the_right(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(keep, s, full(-inf)), where(drop, -inf, s)  ->  where.ScalarOther(keep, s, -inf)."""
    if len(node.args) != 3:
        return None
    keep, a, b = node.args
    if node.target is aten.where.ScalarOther:
        return None
    if dtype(node).is_complex:
        return None
    if is_tensor(a) and uniform(a) is None and like(node, a) and uniform(b) is not None:
        return _where(edit, keep, a, b)
    if is_tensor(b) and uniform(b) is None and like(node, b) and uniform(a) is not None:
        return _where(edit, negated(edit, node, keep), b, a)
    return None


@respelling("aten.where")
def choice_of_constants(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(keep, zeros([S, T]), full(-inf)), where(keep, 0.0, -inf)  ->  where.ScalarOther(keep, zeros([]), -inf)."""
    if len(node.args) != 3:
        return None
    keep, yes, no = node.args[0], uniform(node.args[1]), uniform(node.args[2])
    settled = node.target is aten.where.ScalarOther and is_tensor(node.args[1]) and rank(node.args[1]) == 0
    if yes is None or no is None or settled or not is_float(node) or val(keep).device != val(node).device:
        return None
    if not all(_fits(value, dtype(node)) for value in (yes, no)):
        return None
    unit = edit.call(aten.full.default, [], yes, dtype=dtype(node), device=val(node).device)
    return builders.expand(edit, node, edit.call(aten.where.ScalarOther, keep, unit, no), shape(node))


def _fits(value: float, kind: torch.dtype) -> bool:
    """Whether a number stays finite in a dtype, or is infinite itself."""
    return math.isinf(value) or abs(value) <= torch.finfo(kind).max


@respelling("aten.where")
def two_masks(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(c1, where(c2, s, f), f)  ->  where(logical_and(c1, c2), s, f)."""
    if node.target is not aten.where.ScalarOther:
        return None
    outer, inner, fill = node.args
    if not sees(node, inner, "aten.where") or inner.target is not aten.where.ScalarOther:
        return None
    if inner.args[2] != fill or not like(node, inner.args[1]):
        return None
    return edit.call(aten.where.ScalarOther, edit.call(aten.logical_and.default, outer, inner.args[0]), *inner.args[1:])


@respelling("aten.where")
def whole_mask(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(all true, s, f)  ->  s, unless `f` would get a gradient, of zeros."""
    if len(node.args) != 3 or uniform(node.args[0]) != 1 or not like(node, node.args[1]):
        return None
    return None if gets_gradient(node.args[2]) else node.args[1]


@respelling("aten.add")
def added_nothing(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(s, zeros(...))  ->  s."""
    for x, other in (node.args[:2], node.args[1::-1]):
        if is_tensor(other) and is_float(x) and like(node, x) and uniform(other) == 0:
            return x
    return None


@respelling("aten.sub")
def difference_as_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(scores, m, alpha)  ->  add(scores, mul(m, -alpha)); sub(m, scores)  ->  add(mul(scores, -1), m)."""
    scores, term, alpha = node.args[0], node.args[1], arguments(node).get("alpha", 1)
    if not is_tensor(scores) or not is_literal(alpha) or not is_float(node) or is_statistic(term):
        return None
    if is_float(term) and directness(term) > directness(scores) and is_float(scores):
        return edit.call(aten.add.Tensor, builders.scaled(edit, term, -alpha), scores)
    if not holds_product(scores):
        return None
    if is_literal(term):
        return edit.call(aten.add.Tensor, scores, -term * alpha)
    return edit.call(aten.add.Tensor, scores, builders.scaled(edit, term, -alpha)) if is_float(term) else None


@respelling("aten.add")
def scores_first(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(m, scores)  ->  add(scores, m); add(s, m, alpha)  ->  add(s, mul(m, alpha)).

    If both terms contain a product, the more direct one comes first.
    """
    a, b, alpha = node.args[0], node.args[1], arguments(node).get("alpha", 1)
    if not is_literal(alpha) or not is_float(node):
        return None
    if alpha != 1:
        return edit.call(aten.add.Tensor, a, builders.scaled(edit, b, alpha)) if is_float(b) else None
    if not is_tensor(b) or directness(b) <= directness(a):
        return None
    return edit.call(aten.add.Tensor, b, a)


@respelling("aten.add")
def one_bias(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(add(scores, m1), m2)  ->  add(scores, add(m1, m2))."""
    inner, term = node.args[0], node.args[1]
    if not sees(node, inner, "aten.add") or not is_float(term) or _has_alpha(node, inner):
        return None
    scores, bias = inner.args[:2]
    if not is_float(bias) or not like(node, scores) or dtype(bias) != dtype(term):
        return None
    if not holds_product(scores) or directness(scores) < max(directness(bias), directness(term)):
        return None
    return edit.call(aten.add.Tensor, scores, edit.call(aten.add.Tensor, bias, term))


def _has_alpha(*nodes: fx.Node) -> bool:
    return any(arguments(n).get("alpha", 1) != 1 for n in nodes)


@respelling("aten.add")
def multiplied_mask(node: fx.Node, edit: Editor) -> fx.Node | None:
    """s * b + (1 - b) * fill  ->  where(b, s, fill), for `b` of zeros and ones and a fill that hides scores."""
    for a, b in (node.args[:2], node.args[1::-1]):
        found = _selected(node, a, b)
        if found is not None:
            keep, scores, fill = found
            return edit.call(aten.where.ScalarOther, keep, scores, fill)
    return None


def _selected(node: fx.Node, kept: Any, filled: Any) -> tuple[fx.Node, fx.Node, float] | None:
    """(keep, scores, fill) of `mul(scores, keep)` and `mul(1 - keep, fill)`."""
    if not sees(node, kept, "aten.mul") or not sees(node, filled, "aten.mul") or not like(node, kept):
        return None
    fill = uniform(filled.args[1])
    if fill is None or fill > MASKED or not is_tensor(kept.args[1]):
        return None
    for scores, mask in (kept.args, kept.args[::-1]):
        if _is_complement(node, filled.args[0], mask) and like(node, scores):
            return _condition(mask), scores, fill
    return None


def _is_complement(user: fx.Node, complement: Any, mask: Any) -> bool:
    """Whether both are casts of booleans, and one is the negation of the other."""
    if not all(sees(user, x, "aten.to") and is_bool(x.args[0]) for x in (complement, mask)):
        return False
    return are_opposite(user, complement.args[0], mask.args[0])


def _condition(mask: fx.Node) -> fx.Node:
    return mask.args[0]


@respelling("aten.clamp_min", "aten.clamp", "aten.maximum")
def clamp_of_bias(node: fx.Node, edit: Editor) -> fx.Node | None:
    """clamp_min(add(scores, m), lowest)  ->  add(scores, clamp_min(m, lowest)), for the lowest number of the type."""
    inner, floor = node.args[0], uniform(node.args[1]) if len(node.args) > 1 else None
    if floor is None or not is_float(node) or arguments(node).get("max") is not None or not like(node, inner):
        return None
    if floor > torch.finfo(dtype(node)).min or not sees(node, inner, "aten.add") or not is_float(inner.args[1]):
        return None
    scores, bias = inner.args[:2]
    if not holds_product(scores) or holds_product(bias):
        return None
    return edit.call(aten.add.Tensor, scores, edit.call(aten.clamp_min.default, bias, floor))
