"""Recognizes dropout of probabilities in the formula of the operand that is multiplied with v.

p * (u < 0.9) * 1.11              ->   keep: u < 0.9, kept: 1.11
where(u < 0.9, p, 0.0) / 0.9      ->   the same
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from ....rewrites.graph import CASTS
from ...ir.value import Const, Load, Op, Value
from ..common.formula import is_move, packet, plain

# The operators of dropout, besides moves and casts, after random numbers are computed from seeds.
DROPPING = ("aten.mul", "aten.div", "aten.where", "aten.masked_fill", "aten.native_dropout_backward")
_DRAWN = "regraft.bernoulli"

Dropped = tuple[Value | None, float]


def drawn(chain: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """The masks computed from seeds that nodes read, with the moves and casts in between."""
    found: dict[fx.Node, None] = {}
    for node in chain:
        for source in node.all_input_nodes:
            path = [source]
            while (is_move(path[-1]) or packet(path[-1]) in CASTS) and len(path[-1].all_input_nodes) == 1:
                path.extend(path[-1].all_input_nodes)
            if packet(path[-1]) == _DRAWN:
                found.update(dict.fromkeys(path))
    return found


def dropped(value: Value, is_weight: Callable[[Load], bool]) -> Dropped | None:
    """The mask of kept probabilities (None if all are kept) and their factor, if a value is such a product.

    Args:
        value: the operand of the product with v.
        is_weight: whether a load reads the probability.
    """
    value = plain(value)
    if isinstance(value, Load):
        return (None, 1.0) if is_weight(value) else None
    if not isinstance(value, Op):
        return None
    if value.name == "mul":
        a, b = value.args
        return _scaled(dropped(a, is_weight), b) or _scaled(dropped(b, is_weight), a)
    if value.name == "div":
        return _divided(dropped(value.args[0], is_weight), value.args[1])
    if value.name == "where" and _is_zero(value.args[2]):
        return _masked(dropped(value.args[1], is_weight), value.args[0])
    return None


def _scaled(found: Dropped | None, factor: Value) -> Dropped | None:
    by = None if found is None else _factor(factor)
    return None if found is None or by is None else _both(found, by)


def _divided(found: Dropped | None, by: Value) -> Dropped | None:
    by = plain(by)
    if found is None or not isinstance(by, Const) or float(by.number) == 0.0:  # type: ignore[arg-type]
        return None
    return found[0], found[1] / float(by.number)  # type: ignore[arg-type]


def _masked(found: Dropped | None, keep: Value) -> Dropped | None:
    return None if found is None else _both(found, (keep, 1.0))


def _factor(value: Value) -> Dropped | None:
    """The mask and the factor of a value: a mask as numbers, a constant, or a product of these."""
    value = plain(value)
    if isinstance(value, Const):
        return None, float(value.number)  # type: ignore[arg-type]
    if isinstance(value, Op) and value.name == "cast" and value.args[0].dtype == torch.bool:
        return value.args[0], 1.0
    if isinstance(value, Op) and value.name == "mul":
        return _scaled(_factor(value.args[0]), value.args[1])
    return _divided(_factor(value.args[0]), value.args[1]) if isinstance(value, Op) and value.name == "div" else None


def _both(a: Dropped, b: Dropped) -> Dropped | None:
    """The mask and the factor of a product; None if both operands have a mask."""
    if a[0] is not None and b[0] is not None and a[0] is not b[0]:
        return None
    return (b[0] if a[0] is None else a[0]), a[1] * b[1]


def _is_zero(value: Value) -> bool:
    value = plain(value)
    return isinstance(value, Const) and float(value.number) == 0.0
