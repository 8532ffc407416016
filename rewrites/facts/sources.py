"""Facts of calls that make tensors from nothing: full, zeros, ones, arange, tril and triu of them, literals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..graph import arguments, dtype, is_tensor, rank, shape, val
from .evaluate import filled
from .fact import REAL, Conditional, Fact, Positions, Uniform, make_choice, make_positions, same_number

Read = Callable[[Any], Fact | None]

INTEGER = (int, torch.SymInt)


def full(node: fx.Node, number: Any) -> Fact | None:
    """A tensor filled with a number, or with a symbolic integer."""
    number = val(number)
    if isinstance(number, torch.SymInt):
        return make_positions(number, [0] * rank(node), val(node))
    if not isinstance(number, (bool, int, float)) or dtype(node) not in REAL:
        return None
    held = filled(number, dtype(node))
    return None if held is None else Uniform(held)


def _full_by(name: str) -> Callable[[fx.Node, Read], Fact | None]:
    def filled_by_argument(node: fx.Node, read: Read) -> Fact | None:
        given = arguments(node)[name]
        fact = read(given) if is_tensor(given) else None
        return full(node, fact.number if isinstance(fact, Uniform) else given)

    return filled_by_argument


def _arange(node: fx.Node, _read: Read) -> Fact | None:
    given = arguments(node)
    start, step = val(given.get("start", 0)), val(given.get("step", 1))
    numbers = (start, step, val(given["end"]))
    if any(isinstance(n, bool) or not isinstance(n, INTEGER) for n in numbers):
        return None
    return make_positions(start, [step], val(node))


def _triangle(node: fx.Node, read: Read) -> Fact | None:
    """tril(x, d) keeps where i - j + d >= 0, triu(x, d) where j - i - d >= 0; the rest is 0."""
    given = arguments(node)
    fact, diagonal = read(given["self"]), val(given["diagonal"])
    if rank(node) < 2 or not isinstance(diagonal, INTEGER):
        return None
    sign = 1 if node.target is torch.ops.aten.tril.default else -1
    condition = Positions(sign * diagonal, (*[0] * (rank(node) - 2), sign, -sign))
    if isinstance(fact, Uniform):
        return make_choice([condition], fact.number, type(fact.number)(0), shape(node), fact.exact)
    if isinstance(fact, Conditional) and same_number(fact.no, type(fact.no)(0)):
        return make_choice([*fact.conditions, condition], fact.yes, fact.no, shape(node), fact.exact)
    return None


SOURCES: dict[str, Callable[[fx.Node, Read], Fact | None]] = {
    **dict.fromkeys(
        ("aten.zeros", "aten.new_zeros", "aten.zeros_like", "aten.zero"), lambda node, _read: full(node, 0)
    ),
    **dict.fromkeys(("aten.ones", "aten.new_ones", "aten.ones_like"), lambda node, _read: full(node, 1)),
    **dict.fromkeys(("aten.full", "aten.full_like", "aten.new_full"), _full_by("fill_value")),
    "aten.fill": _full_by("value"),
    "aten.scalar_tensor": _full_by("s"),
    "aten.arange": _arange,
    "aten.tril": _triangle,
    "aten.triu": _triangle,
}
