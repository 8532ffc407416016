"""Heads: a single layout for scores, even if heads are merged into the batch, split, repeated or permuted.

    q, k [B*H, S, D]:  matmul -> view [B, H, S, T] -> + mask -> view [B*H, S, T] -> softmax -> matmul -> view
    becomes            matmul [B, H, S, T] -> + mask -> softmax -> matmul, all in four dimensions

A reshape that splits dims moves up through products, softmax and elementwise operations; a reshape that merges dims
moves down. When they meet, they cancel. Only chains of scores and probabilities change. Dropout draws random numbers in
memory order, so it commutes with a reshape but not with a permute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import (
    BINARY,
    DROPOUT,
    POINTWISE,
    UNARY,
    directness,
    holds_product,
    holds_softmax,
    is_statistic,
    last,
    like,
)
from .random_calls import moved_dropout
from .reshape_groups import ReshapedDims, inverted, keeps_last, regroup, unmerged

aten = torch.ops.aten

_SOFTMAX = ("aten.softmax", "aten.log_softmax")
_ELEMENTWISE = (*POINTWISE, *_SOFTMAX, "aten.dropout")


def _is_scores(node: fx.Node) -> bool:
    return holds_product(node) or holds_softmax(node)


@respelling("aten.reshape")
def split_above_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(matmul(a, b), [B, H, S, T])  ->  matmul(reshape(a, [B, H, S, D]), reshape(b, [B, H, D, T]))."""
    inner = node.args[0]
    if not sees(node, inner, "aten.matmul") or not holds_product(inner):
        return None
    groups = _splits(inner, node, 2)
    if groups is None:
        return None
    batch = groups[:-2]
    operands = []
    for x in inner.args:
        sizes = unmerged(batch, shape(inner)[:-2], shape(node)[:-2], shape(x)[:-2])
        if sizes is None:
            return None
        operands.append(builders.reshape(edit, node, x, [*sizes, *shape(x)[-2:]]))
    return edit.call(aten.matmul.default, *operands)


@respelling("aten.reshape")
def rows_split_above_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(matmul(q[B, H*S, D], k[B, D, T]), [B, H, S, T])  ->  matmul(reshape(q, [B, H, S, D]), k[B, 1, D, T]).

    This is done for scores: heads that share keys are rows of one product.
    """
    inner = node.args[0]
    if not sees(node, inner, "aten.matmul") or not holds_product(inner) or holds_softmax(inner):
        return None
    (a, b), n = inner.args, rank(inner)
    groups = _splits(inner, node, 1)
    if groups is None or rank(a) != n or rank(b) != n or len(groups) < 2 or len(groups[-2].new) < 2:
        return None
    if groups[-2].old != (n - 2,):
        return None
    rows = unmerged(groups[:-1], shape(inner)[:-1], shape(node)[:-1], shape(a)[:-1])
    batch = unmerged(groups[:-2], shape(inner)[:-2], shape(node), shape(b)[:-2])
    if rows is None or batch is None:
        return None
    keys = [*batch, *[1] * (len(groups[-2].new) - 1), *shape(b)[-2:]]
    left = builders.reshape(edit, node, a, [*rows, shape(a)[-1]])
    return edit.call(aten.matmul.default, left, builders.reshape(edit, node, b, keys))


@respelling("aten.matmul")
def rows_merged_below_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(reshape(p[B, H, S, T], [B, H*S, T]), v[B, T, D])  ->  reshape(matmul(p, v[B, 1, T, D]), [B, H*S, D])."""
    a, b = node.args
    n = rank(node)
    if not sees(node, a, "aten.reshape") or not holds_softmax(a) or rank(a) != n or rank(b) != n or n < 3:
        return None
    groups = _merges(a, 1)
    if groups is None or len(groups) < 2 or groups[-2].new != (n - 2,) or len(groups[-2].old) < 2:
        return None
    full = shape(a.args[0])
    batch = unmerged(inverted(groups)[:-2], shape(a)[:-2], full, shape(b)[:-2])
    if batch is None or not same_shape(shape(a)[:-2], shape(node)[:-2]):
        return None
    values = builders.reshape(edit, node, b, [*batch, *[1] * (len(groups[-2].old) - 1), *shape(b)[-2:]])
    return builders.reshape(edit, node, edit.call(aten.matmul.default, a.args[0], values), shape(node))


@respelling("aten.reshape", "aten.softmax")
def split_above_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(add(scores, m), [B, H, S, T])  ->  add(reshape(scores), reshape(m)); also softmax, dropout, ...

    softmax(scores, -1), read as it is and by reshape(., [B, H, S, T])  ->  reshape(softmax(reshape(scores), -1))

    A softmax with several readers is replaced for all of them. Otherwise weights that are returned in other dims than
    they are multiplied in would be computed twice.
    """
    if op_name(node) == "aten.reshape":
        return _moved_above(node, edit, for_all=False)
    for user in list(node.users):
        split = _moved_above(user, edit, for_all=True) if op_name(user) == "aten.reshape" else None
        if split is not None:
            return builders.reshape(edit, node, split, shape(node))
    return None


def _moved_above(view: fx.Node, edit: Editor, for_all: bool) -> fx.Node | None:
    """The call that `view` reshapes, of reshaped operands: if it stands for the call itself too, or only for `view`."""
    inner = view.args[0]
    if not sees(view, inner, *_ELEMENTWISE) or not _is_scores(inner) or not _can_move(inner, keeps_one_user=True):
        return None
    shared = op_name(inner) == "aten.softmax" and len(inner.users) > 1 and rank(view) > rank(inner)
    groups = _splits(inner, view, 1) if shared == for_all and "opaque" not in view.meta else None
    return None if groups is None else _regrouped(view, edit, inner, groups, shape(view))


@respelling(*_ELEMENTWISE)
def merge_below_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(reshape(scores, [B*H, S, T]), m)  ->  reshape(add(scores, reshape(m)), [B*H, S, T]).

    If both operands contain scores, only the more direct one is moved.
    """
    if not is_tensor(node) or not _can_move(node):
        return None
    most = max((_directness(a) for a in node.args if is_tensor(a)), default=0)
    for operand in node.args:
        if (
            not sees(node, operand, "aten.reshape")
            or not _is_scores(operand)
            or _directness(operand) < most
            or not same_shape(shape(operand), shape(node))
        ):
            continue
        groups = _merges(operand, 1)
        if groups is None:
            continue
        inner = _regrouped(node, edit, node, inverted(groups), shape(operand.args[0]))
        return None if inner is None else builders.reshape(edit, node, inner, shape(node))
    return None


def _directness(node: fx.Node) -> int:
    """How directly a value is scores (see `directness`), whatever its dims are grouped to."""
    while sees(None, node, "aten.reshape"):
        node = node.args[0]  # type: ignore[assignment]
    return directness(node)


def _splits(inner: fx.Node, node: fx.Node, kept: int) -> list[ReshapedDims] | None:
    """Groups of the reshape `inner` -> `node` if it only splits, adds or drops ones, before the last `kept` dims."""
    groups = regroup(shape(inner), shape(node))
    if groups is None or not all(g.is_split for g in groups):
        return None
    return groups if keeps_last(groups, kept, rank(inner), rank(node)) else None


def _merges(view: fx.Node, kept: int) -> list[ReshapedDims] | None:
    """Groups of the reshape `view` if it merges dimensions, all before the last `kept` ones."""
    groups = regroup(shape(view.args[0]), shape(view))
    if groups is None or not all(g.is_merge for g in groups) or all(g.is_split for g in groups):
        return None
    return groups if keeps_last(groups, kept, rank(view.args[0]), rank(view)) else None


def _can_move(node: fx.Node, keeps_one_user: bool = False) -> bool:
    """Whether the call is equivalent with dims grouped differently; random numbers must not be drawn twice."""
    name = op_name(node)
    if name in _SOFTMAX:
        return last(node, node.args[1])
    if any(is_statistic(x) for x in node.args[1:]):  # of rows as they are: a norm stays one
        return False
    if name in DROPOUT:
        return name == "aten.dropout" and not (keeps_one_user and len(node.users) > 1)
    return True


def _regrouped(
    node: fx.Node, edit: Editor, call: fx.Node, groups: list[ReshapedDims], sizes: tuple[Any, ...]
) -> fx.Node | None:
    """`call` over operands in the shape `sizes`, which `groups` splits from the shape of `call`."""
    operands: list[Any] = []
    for operand in call.args:
        if not is_tensor(operand) or rank(operand) == 0:
            operands.append(operand)
            continue
        target = unmerged(groups, shape(call), sizes, shape(operand))
        if target is None:
            return None
        operands.append((operand, target))
    args = [builders.reshape(edit, node, *o) if isinstance(o, tuple) else o for o in operands]
    return _like_call(edit, call, args)


def _like_call(edit: Editor, call: fx.Node, args: list[Any]) -> fx.Node:
    if op_name(call) == "aten.dropout":
        return moved_dropout(edit, call, args[0])
    if op_name(call) in _SOFTMAX:
        args[1] = -1
    return edit.call(call.target, *args, **call.kwargs)


@respelling("aten.matmul")
def merge_below_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(reshape(p, [B*H, S, T]), v)  ->  reshape(matmul(p, reshape(v, [B, H, T, D])), [B*H, S, D]).

    For probabilities, and for two operands that merge the same dimensions. Repeated heads, a merge over an `expand`,
    stay.
    """
    a, b = node.args
    if not sees(node, a, "aten.reshape") or sees(node, a.args[0], "aten.expand") or min(rank(a), rank(b)) < 3:
        return None
    groups = _merges(a, 2)
    if groups is None or not (holds_softmax(a) or _merges_alike(node, a, b)):
        return None
    full = shape(a.args[0])
    sizes = unmerged(inverted(groups)[:-2], shape(a)[:-2], full[:-2], shape(b)[:-2])
    if sizes is None or not same_shape(shape(a)[:-2], shape(node)[:-2]):
        return None
    inner = edit.call(aten.matmul.default, a.args[0], builders.reshape(edit, node, b, [*sizes, *shape(b)[-2:]]))
    return builders.reshape(edit, node, inner, shape(node))


@respelling("aten.matmul")
def permute_below_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(permute(p, order), v)  ->  permute(matmul(p, permute(v, back)), order), for probabilities `p`.

    Dims of the batch change places: blocks and heads, as block-wise attention writes them for `bmm`. Rows may
    take the place of heads that share their values.
    """
    a, b = node.args
    n = rank(node)
    if not sees(node, a, "aten.permute") or rank(a) != n or rank(b) != n or not holds_softmax(a):
        return None
    order = list(a.args[1])
    if order[-1] != n - 1 or not same_shape(shape(a)[:-2], shape(node)[:-2]):
        return None
    back, rows = [order.index(d) for d in range(n)], order.index(n - 2)
    if rows != n - 2:
        if not known_equal(shape(b)[rows], 1):
            return None
        back[order[-2]], back[n - 2] = rows, n - 2
    inner = edit.call(aten.matmul.default, a.args[0], builders.permute(edit, node, b, back))
    return builders.permute(edit, node, inner, order)


def _merges_alike(node: fx.Node, a: fx.Node, b: fx.Node) -> bool:
    return (
        sees(node, b, "aten.reshape")
        and _merges(b, 2) is not None
        and same_shape(shape(a.args[0])[:-2], shape(b.args[0])[:-2])
    )


@respelling(*POINTWISE, *_SOFTMAX)
def permute_below_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(permute(scores, p), s)  ->  permute(mul(scores, s), p), where the last dimension stays last; also softmax.

    If both operands contain scores, the more direct one decides.
    """
    if not is_tensor(node) or not _can_move(node):
        return None
    n, operand = rank(node), _main_operand(node)
    if operand is None or not sees(node, operand, "aten.permute") or not same_shape(shape(operand), shape(node)):
        return None
    order = operand.args[1]
    if order[-1] != n - 1:
        return None
    back = [order.index(d) for d in range(n)]
    return builders.permute(edit, node, _permuted(node, edit, node, back), order)


def _main_operand(node: fx.Node) -> fx.Node | None:
    """The operand that is most directly scores or probabilities; the first one if several are."""
    operands = [a for a in node.args if is_tensor(a) and _is_scores(a)]
    return max(operands, key=lambda a: (directness(a), holds_softmax(a)), default=None)


@respelling("aten.reshape")
def regrouped_and_back(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(add(reshape(scores, [B, h, w, H, W]), m), [B, h*w, H*W])  ->  add(scores, reshape(m, [B, h*w, H*W]))."""
    inner = node.args[0]
    if not sees(node, inner, *BINARY) or not holds_product(inner):
        return None
    for position, other in ((0, inner.args[1]), (1, inner.args[0])):
        view = inner.args[position]
        if (
            not sees(node, view, "aten.reshape")
            or not like(node, view.args[0])
            or not is_tensor(other)
            or rank(other) == 0
        ):
            continue
        if not same_shape(shape(view), shape(inner)):
            continue
        if _directness(other) >= _directness(view) and _is_scores(other) and same_shape(shape(other), shape(inner)):
            continue  # `merge_below_elementwise` moved these together, and would do so again
        whole = builders.expand(edit, node, other, shape(inner))
        args = [view.args[0], builders.reshape(edit, node, whole, shape(node))]
        return edit.call(inner.target, *(args if position == 0 else args[::-1]), **inner.kwargs)
    return None


@respelling("aten.permute")
def transpose_above_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """permute(add(scores, m), [..., -1, 0])  ->  add(permute(scores), permute(m)), down to the product.

    This is done if another dim becomes the last one, for example keys that precede batch and heads.
    """
    inner, order = node.args
    if not sees(node, inner, *POINTWISE) or order[-1] == rank(node) - 1:
        return None
    if not holds_product(inner) or holds_softmax(inner):
        return None
    return _permuted(node, edit, inner, order)


@respelling("aten.reshape")
def column_above_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(add(scores[B, T, 1], m), [B, 1, T])  ->  add(reshape(scores, [B, 1, T]), reshape(m)), for one query."""
    inner, n = node.args[0], rank(node.args[0])
    if n < 3 or not sees(node, inner, *POINTWISE) or not holds_product(inner) or holds_softmax(inner):
        return None
    *batch, rows, columns = shape(inner)
    if not known_equal(columns, 1) or known_equal(rows, 1) or not same_shape(shape(node), [*batch, 1, rows]):
        return None
    return _permuted(node, edit, inner, [*range(n - 2), n - 1, n - 2])


def _permuted(node: fx.Node, edit: Editor, call: fx.Node, order: list[int]) -> fx.Node:
    """`call` over operands whose dimensions are reordered, those of lower rank padded by ones first."""
    n, args = rank(call), list(call.args)
    for i, operand in enumerate(args):
        if is_tensor(operand) and rank(operand) > 0:
            padded = builders.reshape(edit, node, operand, [1] * (n - rank(operand)) + list(shape(operand)))
            args[i] = builders.permute(edit, node, padded, order)
    return _like_call(edit, call, args)


@respelling("aten.reshape")
def regrouped_around_numbers(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(mul(reshape(scores, [B, S, h, w]), 2), [B, 1, S, h*w])  ->  mul(reshape(scores, [B, 1, S, h*w]), 2)."""
    path = [node.args[0]]
    while sees(node, path[-1], *UNARY, *BINARY) and not any(is_tensor(a) and rank(a) for a in path[-1].args[1:]):
        path.append(path[-1].args[0])
    if len(path) < 2 or not sees(node, path[-1], "aten.reshape") or not holds_product(path[-1]):
        return None
    if not all(is_tensor(call) and same_shape(shape(call), shape(path[-1])) for call in path):
        return None
    result = builders.reshape(edit, node, path[-1], shape(node))
    for call in reversed(path[:-1]):
        result = edit.call(call.target, result, *call.args[1:], **call.kwargs)
    return result


@respelling("aten.repeat_interleave")
def repeated_heads(node: fx.Node, edit: Editor) -> fx.Node | None:
    """repeat_interleave(x, n, d)  ->  reshape(expand(reshape(x, [..., 1, ...]), [..., n, ...]))."""
    values = arguments(node)
    x, count, dim = node.args[0], values.get("repeats"), values.get("dim")
    if node.target is not aten.repeat_interleave.self_int or dim is None or isinstance(count, fx.Node):
        return None
    sizes, after = list(shape(x)), dim % rank(x) + 1
    unit = builders.reshape(edit, node, x, [*sizes[:after], 1, *sizes[after:]])
    wide = builders.expand(edit, node, unit, [*sizes[:after], count, *sizes[after:]])
    return builders.reshape(edit, node, wide, shape(node))


@respelling("aten.repeat", "aten.tile")
def repeated_whole(node: fx.Node, edit: Editor) -> fx.Node | None:
    """repeat(x, [1, n, 1])  ->  reshape(expand(reshape(x, [s0, 1, s1, s2]), [s0, n, s1, s2])).

    repeat(x[B, 1, T], [1, n, 1])  ->  expand(x, [B, n, T])
    """
    x, counts = node.args
    if any(isinstance(c, fx.Node) for c in counts):
        return None
    missing = len(counts) - rank(x)
    sizes = [1] * missing + list(shape(x)) if missing >= 0 else list(shape(x))
    counts = [1] * -missing + list(counts) if missing < 0 else list(counts)
    unit, wide = [], []
    for size, count in zip(sizes, counts, strict=True):
        unit += [size] if known_equal(size, 1) or known_equal(count, 1) else [1, size]
        wide += [count] if known_equal(size, 1) else [size] if known_equal(count, 1) else [count, size]
    repeated = builders.expand(edit, node, builders.reshape(edit, node, x, unit), wide)
    return builders.reshape(edit, node, repeated, shape(node))
