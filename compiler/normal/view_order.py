"""The order of views: splits move inward, merges move outward, broadcasts are outside of permutes.

    reshape(permute(x)) that only splits   ->   permute(reshape(x))
    permute(reshape(x)) that only merges   ->   reshape(permute(x))

Heads that are merged into the batch move towards the output, heads that are split off towards the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .reshape_groups import ReshapedDims, regroup

aten = torch.ops.aten


@respelling("aten.reshape")
def split_below_permute(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(permute(x, p), split)  ->  permute(reshape(x, split), p')."""
    inner = node.args[0]
    if not sees(node, inner, "aten.permute"):
        return None
    groups = regroup(shape(inner), shape(node))
    if groups is None or not all(g.is_split for g in groups):
        return None
    x, order = inner.args
    return _commuted(node, edit, x, groups, order)


def _commuted(node: fx.Node, edit: Editor, x: fx.Node, groups: list[ReshapedDims], order: Sequence[int]) -> fx.Node:
    """Reshape `x` in its own order of dimensions, then permute the groups."""
    ranked = sorted(groups, key=lambda g: order[g.old[0]] if g.old else -1)
    place = [d for g in ranked for d in g.new]
    split = builders.reshape(edit, node, x, [shape(node)[d] for d in place])
    return builders.permute(edit, node, split, [place.index(d) for d in range(len(place))])


@respelling("aten.permute")
def merge_above_permute(node: fx.Node, edit: Editor) -> fx.Node | None:
    """permute(reshape(x, merged), p)  ->  reshape(permute(x, p'), merged)."""
    inner, order = node.args
    if not sees(node, inner, "aten.reshape"):
        return None
    x = inner.args[0]
    groups = regroup(shape(x), shape(inner))
    if groups is None or not all(g.is_merge for g in groups) or all(g.is_split for g in groups):
        return None
    by_new = {g.new[0]: g for g in groups if g.new}
    dropped = [d for g in groups if not g.new for d in g.old]
    dims = dropped + [d for new in order for d in by_new[new].old]
    return builders.reshape(edit, node, builders.permute(edit, node, x, dims), shape(node))


@respelling("aten.permute")
def broadcast_above_permute(node: fx.Node, edit: Editor) -> fx.Node | None:
    """permute(expand(x), p)  ->  expand(permute(x, p))."""
    inner, order = node.args
    if not sees(node, inner, "aten.expand") or rank(inner.args[0]) != rank(inner):
        return None
    return builders.expand(edit, node, builders.permute(edit, node, inner.args[0], order), shape(node))


@respelling("aten.reshape")
def broadcast_above_ones(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(expand(x), sizes of 1 added or removed)  ->  expand(reshape(x))."""
    inner = node.args[0]
    if not sees(node, inner, "aten.expand") or rank(inner.args[0]) != rank(inner):
        return None
    groups = regroup(shape(inner), shape(node))
    if groups is None or not all(g.is_split and g.is_merge for g in groups):
        return None
    x = inner.args[0]
    sizes = [shape(x)[g.old[0]] if g.old else 1 for g in groups if g.new]
    return builders.expand(edit, node, builders.reshape(edit, node, x, sizes), shape(node))


_BROADCASTING = (
    "aten.add", "aten.sub", "aten.mul", "aten.div", "aten.where", "aten.logical_and", "aten.logical_or",
    "aten.maximum", "aten.minimum", "aten.masked_fill", "aten.eq", "aten.lt", "aten.le", "aten.gt", "aten.ge",
)  # fmt: skip


@respelling(*_BROADCASTING)
def implied_broadcast(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(scores, expand(mask))  ->  add(scores, mask), if the scores have the size already."""
    if not is_tensor(node):  # `where` of a condition alone gives indices
        return None
    for position, operand in enumerate(node.args):
        if not sees(node, operand, "aten.expand") or rank(operand.args[0]) == 0:
            continue
        args = [*node.args[:position], operand.args[0], *node.args[position + 1 :]]
        if _broadcasts_to([shape(a) for a in args if is_tensor(a)], shape(node)):
            return edit.call(node.target, *args, **node.kwargs)
    return None


@respelling(*_BROADCASTING, "aten.logical_not", "aten.to", "aten.rsub", "aten.ne")
def broadcast_above_elementwise(node: fx.Node, edit: Editor) -> fx.Node | None:
    """where(expand(keep), 0.0, -inf)  ->  expand(where(keep, 0.0, -inf)), if the size is not needed."""
    if not is_tensor(node):
        return None
    tensors = [a for a in node.args if is_tensor(a)]
    if not any(sees(node, a, "aten.expand") for a in tensors):
        return None
    args = [a.args[0] if sees(node, a, "aten.expand") and rank(a.args[0]) == rank(a) else a for a in node.args]
    if _broadcasts_to([shape(a) for a in args if is_tensor(a)], shape(node)):
        return None
    return builders.expand(edit, node, edit.call(node.target, *args, **node.kwargs), shape(node))


@respelling("aten.matmul")
def implied_batch(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(q, expand(k))  ->  matmul(q, k), if only batch dimensions are broadcast and q has them."""
    for position, operand in enumerate(node.args):
        if not sees(node, operand, "aten.expand") or min(rank(a) for a in node.args) < 3:
            continue
        x, other = operand.args[0], node.args[1 - position]
        if not same_shape(shape(x)[-2:], shape(operand)[-2:]):
            continue
        if _broadcasts_to([shape(x)[:-2], shape(other)[:-2]], shape(node)[:-2]):
            return edit.call(aten.matmul.default, *((x, other) if position == 0 else (other, x)))
    return None


def _broadcasts_to(shapes: list[tuple[Any, ...]], target: Sequence[Any]) -> bool:
    """Whether each size of `target` is the size of an operand, and all other operands have this size or 1."""
    if max(map(len, shapes)) != len(target):
        return False
    for back in range(1, len(target) + 1):
        sizes = [s[-back] for s in shapes if len(s) >= back]
        if not any(known_equal(s, target[-back]) for s in sizes):
            return False
    return True
