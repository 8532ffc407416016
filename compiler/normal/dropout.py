"""Dropout: a single `dropout(x, p, True)`, or no node if it has no effect; also for dropout written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, sees, val
from ...rewrites.respell import respelling
from ...rewrites.symbolic import same_shape
from . import builders
from .analysis import is_bool, is_float, is_literal, like, uniform
from .random_calls import redrawn_dropout, standing_for
from .scale import scale_of

aten = torch.ops.aten


@respelling("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout")
def inactive_dropout(node: fx.Node, edit: Editor) -> fx.Node | None:
    """dropout(x, p, False), dropout(x, 0.0, True)  ->  x."""
    x, p, train = node.args
    return x if (train is False or (is_literal(p) and p == 0)) and like(node, x) else None


@respelling("getitem")
def native_dropout(node: fx.Node, edit: Editor) -> fx.Node | None:
    """native_dropout(x, p, True)[0]  ->  dropout(x, p, True), where the mask is not used."""
    call, index = node.args
    if index != 0 or not sees(node, call, "aten.native_dropout"):
        return None
    x, p, train = call.args
    if train is False:
        return x
    if train is not True or p == 0 or any(user is not node and user.users for user in call.users):
        return None
    return standing_for(edit.call(aten.dropout.default, x, p, True), call, redrawn=False)


@respelling("aten.mul", "aten.where")
def handwritten_dropout(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(mul(x, to(rand_like(x) > p, dtype)), 1 / (1 - p)), where(rand >= p, x, 0) / (1 - p)  ->  dropout(x, p, True).

    The random numbers differ, but not their distribution.
    """
    found = _kept(node) if op_name(node) == "aten.where" else _scaled_kept(node)
    if found is None:
        return None
    x, draw, keep, factor = found
    scale = scale_of(x) if _private(x) else None
    if is_literal(scale):
        x, factor = x.args[0], factor * scale
    if not 0 < keep <= 1 or not like(node, x) or not is_float(x):
        return None
    if not same_shape(val(draw).shape, val(x).shape):  # one number for several elements: rows, channels, samples
        return None
    result = redrawn_dropout(edit, draw, x, 1.0 - keep)
    return builders.scaled(edit, result, factor * keep) if abs(factor * keep - 1) > _ROUNDING else result


_ROUNDING = 1e-6
_Found = tuple[fx.Node, fx.Node, float, float]  # input, random call, probability to keep, factor


def _scaled_kept(node: fx.Node) -> _Found | None:
    """`mul(kept, s)`, `mul(x, mul(mask, s))` or a bare `mul(x, mask)`."""
    a, b = node.args[:2]
    factor = scale_of(node)
    if is_literal(factor):
        found = _kept(a) if isinstance(a, fx.Node) and op_name(a) in ("aten.where", "aten.mul") else None
        return None if found is None or len(a.users) > 1 else (*found[:3], found[3] * factor)
    return _kept(node) if not _will_be_scaled(node) and is_tensor(b) else None


def _will_be_scaled(node: fx.Node) -> bool:
    """Whether the only user multiplies by a number, so that this user is the complete dropout."""
    return len(node.users) == 1 and all(is_literal(scale_of(user)) for user in node.users)


def _kept(node: fx.Node) -> _Found | None:
    """A choice of `x` or 0 by a random mask."""
    if op_name(node) == "aten.where":
        return _selected(node)
    if op_name(node) != "aten.mul":
        return None
    for x, mask in (node.args[:2], node.args[1::-1]):
        found = _random_mask(node, mask) if is_tensor(x) else None
        if found is not None:
            return (x, *found)
    return None


def _selected(node: fx.Node) -> _Found | None:
    if len(node.args) != 3 or uniform(node.args[2]) != 0 or not is_tensor(node.args[1]):
        return None
    found = _random_flags(node, node.args[0])
    return None if found is None else (node.args[1], *found, 1.0)


def _random_mask(user: fx.Node, mask: Any) -> tuple[fx.Node, float, float] | None:
    """(random call, probability of not 0, value where not 0) of a mask of zeros and one other number."""
    factor = 1.0
    while sees(user, mask, "aten.mul", "aten.to", "aten._to_copy") and _private(mask):
        if op_name(mask) != "aten.mul":
            mask = mask.args[0]
            continue
        scale = scale_of(mask)
        if not is_literal(scale):
            return None
        mask, factor = mask.args[0], factor * scale
    found = _random_flags(user, mask)
    return None if found is None else (*found, factor)


def _private(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _random_flags(user: fx.Node, flags: Any) -> tuple[fx.Node, float] | None:
    """(random call, probability of true) of `rand > p`, `rand < p`, `bernoulli(full(p))`, or a negation of these."""
    if not _private(flags):
        return None
    if sees(user, flags, "aten.logical_not") and is_bool(flags):
        found = _random_flags(user, flags.args[0])
        return None if found is None else (found[0], 1.0 - found[1])
    if sees(user, flags, "aten.bernoulli"):
        return _bernoulli(user, flags)
    if not sees(user, flags, "aten.gt", "aten.ge", "aten.lt", "aten.le"):
        return None
    draw, bound = flags.args[0], uniform(flags.args[1])
    if bound is None or not 0 <= bound <= 1 or not _is_uniform_draw(user, draw) or not _private(draw):
        return None
    below = op_name(flags) in ("aten.lt", "aten.le")
    return draw, bound if below else 1.0 - bound


def _is_uniform_draw(user: fx.Node, draw: Any) -> bool:
    if not sees(user, draw, "aten.rand", "aten.rand_like", "aten.uniform"):
        return False
    given = arguments(draw)
    ends = given.get("from", 0.0), given.get("to", 1.0)
    return ends == (0.0, 1.0) and dtype(draw) in (torch.float32, torch.float64)


def _bernoulli(user: fx.Node, draw: fx.Node) -> tuple[fx.Node, float] | None:
    p = arguments(draw).get("p")
    if p is None:
        p = uniform(draw.args[0])
    return (draw, float(p)) if is_literal(p) and 0 <= p <= 1 else None


@respelling("aten.mul")
def dropped_ones(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(x, dropout(ones_like(x), p, True))  ->  dropout(x, p, True)."""
    for x, mask in (node.args[:2], node.args[1::-1]):
        if not sees(node, mask, "aten.dropout") or not _private(mask) or uniform(mask.args[0]) != 1:
            continue
        if like(node, x) and same_shape(tuple(x.meta["val"].shape), tuple(mask.meta["val"].shape)):
            new = edit.call(aten.dropout.default, x, *mask.args[1:])
            return standing_for(new, mask, redrawn=False)
    return None
