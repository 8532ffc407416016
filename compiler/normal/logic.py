"""Boolean masks: `logical_not`, `logical_and`, `logical_or` and comparisons, without double negation and arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, op_name, sees, shape
from ...rewrites.respell import respelling
from . import builders
from .analysis import is_bool, is_float, is_literal, like, uniform

aten = torch.ops.aten

_OPPOSITE = {
    "aten.eq": (aten.ne.Tensor, aten.ne.Scalar), "aten.ne": (aten.eq.Tensor, aten.eq.Scalar),
    "aten.lt": (aten.ge.Tensor, aten.ge.Scalar), "aten.ge": (aten.lt.Tensor, aten.lt.Scalar),
    "aten.gt": (aten.le.Tensor, aten.le.Scalar), "aten.le": (aten.gt.Tensor, aten.gt.Scalar),
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "aten.eq": lambda a, b: a == b, "aten.ne": lambda a, b: a != b, "aten.lt": lambda a, b: a < b,
    "aten.le": lambda a, b: a <= b, "aten.gt": lambda a, b: a > b, "aten.ge": lambda a, b: a >= b,
}  # fmt: skip


def negated(edit: Editor, user: fx.Node, mask: fx.Node) -> fx.Node:
    """The opposite of a boolean mask, without a negation where it has one."""
    return _opposite(edit, user, mask) or edit.call(aten.logical_not.default, mask)


def _opposite(edit: Editor, user: fx.Node, mask: fx.Node) -> fx.Node | None:
    """not x -> x, a > b -> a <= b (integers), a == b -> a != b, a or b -> not a and not b; None for the rest."""
    if sees(user, mask, "aten.logical_not", "aten.bitwise_not") and is_bool(mask.args[0]):
        return mask.args[0]
    if sees(user, mask, *_OPPOSITE) and _has_opposite(mask):
        target = _OPPOSITE[op_name(mask)][0 if is_tensor(mask.args[1]) else 1]
        return edit.call(target, *mask.args)
    if sees(user, mask, "aten.logical_or") and all(is_bool(a) for a in mask.args):
        return edit.call(aten.logical_and.default, *(negated(edit, user, a) for a in mask.args))
    if sees(user, mask, "aten.expand", "aten.reshape", "aten.permute"):
        inner = _opposite(edit, user, mask.args[0])
        return None if inner is None else edit.call(mask.target, inner, *mask.args[1:])
    return None


def _has_opposite(mask: fx.Node) -> bool:
    """Whether a comparison has an opposite: equality always, an order only without NaN, so not for floating dtypes."""
    exact = not any(is_tensor(a) and dtype(a).is_floating_point for a in mask.args)
    return is_tensor(mask.args[0]) and (exact or op_name(mask) in ("aten.eq", "aten.ne"))


def are_opposite(user: fx.Node, a: fx.Node, b: fx.Node) -> bool:
    """Whether one boolean mask is known to be the negation of the other."""
    for x, y in ((a, b), (b, a)):
        if sees(user, x, "aten.logical_not") and x.args[0] is y:
            return True
    if not sees(user, a, *_OPPOSITE) or not sees(user, b, *_OPPOSITE) or a.args != b.args or not _has_opposite(a):
        return False
    return b.target in _OPPOSITE[op_name(a)]


@respelling("aten.ne", "aten.eq")
def unequal_to_itself(node: fx.Node, edit: Editor) -> fx.Node | None:
    """x != x  ->  isnan(x);  x == x  ->  logical_not(isnan(x))."""
    x, other = node.args
    if other is not x or not is_float(x):
        return None
    nan = edit.call(aten.isnan.default, x)
    return nan if op_name(node) == "aten.ne" else edit.call(aten.logical_not.default, nan)


@respelling("aten.logical_not", "aten.bitwise_not", "aten.__invert__")
def negation(node: fx.Node, edit: Editor) -> fx.Node | None:
    """bitwise_not(mask), logical_not(logical_not(mask)), logical_not(a == b)  ->  logical_not(mask), mask, a != b."""
    mask = node.args[0]
    if not is_tensor(mask) or not is_bool(node):
        return None
    if not is_bool(mask):
        return edit.call(aten.eq.Scalar, mask, 0)
    new = _opposite(edit, node, mask)
    if new is None and node.target is not aten.logical_not.default:
        return edit.call(aten.logical_not.default, mask)
    return new


@respelling("aten.bitwise_and", "aten.__and__", "aten.bitwise_or", "aten.__or__")
def connective(node: fx.Node, edit: Editor) -> fx.Node | None:
    """a & b, a | b on booleans  ->  logical_and(a, b), logical_or(a, b)."""
    if not all(is_bool(a) for a in node.args):
        return None
    both = op_name(node) in ("aten.bitwise_and", "aten.__and__")
    return edit.call(aten.logical_and.default if both else aten.logical_or.default, *node.args)


@respelling("aten.logical_and", "aten.logical_or")
def known_operand(node: fx.Node, edit: Editor) -> fx.Node | None:
    """logical_and(m, all true), logical_or(m, all false)  ->  m, broadcast where need be."""
    unit = 1 if op_name(node) == "aten.logical_and" else 0
    for x, other in (node.args, node.args[::-1]):
        if uniform(other) == unit and is_bool(x):
            return builders.expand(edit, node, x, shape(node))
    return None


@respelling("aten.mul")
def conjunction(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(a, b) on booleans  ->  logical_and(a, b)."""
    a, b = node.args[:2]
    if not (is_bool(a) and is_bool(b)):
        return None
    return edit.call(aten.logical_and.default, a, b)


@respelling(*_COMPARE)
def comparison_of_flags(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mask == 0, mask.to(float) > 0.5, where(mask, 0, -inf) == 0 for booleans  ->  mask or logical_not(mask)."""
    x, bound = node.args[0], uniform(node.args[1])
    choice = _choice(node, x) if bound is not None and is_tensor(x) else None
    if choice is None:
        return None
    flags, no, yes = choice
    when_no, when_yes = (_COMPARE[op_name(node)](value, bound) for value in (no, yes))
    if when_yes == when_no:
        return None
    mask = flags if when_yes else negated(edit, node, flags)
    return builders.expand(edit, node, mask, shape(node))


def _choice(user: fx.Node, x: fx.Node) -> tuple[fx.Node, float, float] | None:
    """(flags, value where false, value where true) of a tensor that two numbers make up."""
    flags = _flags(user, x)
    if flags is not None:
        return flags, 0, 1
    if not sees(user, x, "aten.where") or len(x.args) != 3:
        return None
    yes, no = uniform(x.args[1]), uniform(x.args[2])
    return None if yes is None or no is None else (x.args[0], no, yes)


def _flags(user: fx.Node, x: fx.Node) -> fx.Node | None:
    """The booleans that `x` is, or is a cast of."""
    if is_bool(x):
        return x
    return x.args[0] if sees(user, x, "aten.to", "aten._to_copy") and is_bool(x.args[0]) else None


@respelling("aten.to", "aten._to_copy")
def flag_cast(node: fx.Node, edit: Editor) -> fx.Node | None:
    """to(x, bool)  ->  x != 0; a cast of booleans there and back  ->  them."""
    x = node.args[0]
    if not is_bool(node) or not is_tensor(x) or is_bool(x) or dtype(x).is_complex:
        return None
    flags = _flags(node, x)
    if flags is not None and like(node, flags):
        return flags
    return edit.call(aten.ne.Scalar, builders.cast(edit, node, x, dtype(x)), 0)


@respelling("aten.rsub", "aten.sub")
def complement(node: fx.Node, edit: Editor) -> fx.Node | None:
    """1 - to(mask, dtype)  ->  to(logical_not(mask), dtype)."""
    a, b = node.args[:2]
    one, x = (b, a) if op_name(node) == "aten.rsub" else (a, b)
    if len(node.args) > 2 or node.kwargs or uniform(one) != 1 or not is_tensor(x) or is_bool(x):
        return None
    flags = _flags(node, x)
    if flags is None or not like(node, x) or not (is_literal(one) or like(one, x)):
        return None
    return builders.cast(edit, node, negated(edit, node, flags), dtype(node))
