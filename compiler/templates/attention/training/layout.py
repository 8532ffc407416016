"""Finds the place where a gradient is wanted: past the views, casts and copies that only bring it there.

%dk = bmm(...)  [24, 64, 512]; %v = view [2, 12, 64, 512]; %t = transpose(%v, 2, 3); %u = transpose(%t, 1, 2);
%c = clone(%u)  [2, 512, 12, 64]           ->   the kernel writes %c: heads g1, keys j, columns d at [g0, j, g1, d]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from .....rewrites.graph import CASTS
from ....ir.index.index import Var
from ....lowering.positions import raveled
from ...common.formula import COPIES, is_move, packet
from ..match import at

_Group = tuple[Var, ...]  # variables of one dim, outermost first; those of one iteration are left out
_Place = tuple[fx.Node, tuple[Any, ...]]


def destination(
    product: fx.Node, lead: Sequence[Var], inner: tuple[Var, Var]
) -> tuple[fx.Node, tuple[Any, ...]] | None:
    """The copy or cast that a product's result ends in, and the indices of its elements there.

    Args:
        product: whose result nothing else reads.
        lead: variables of its batches, which are one dim or a dim each.
        inner: those of its last two dims.

    Returns:
        None where there is no such node, or it has elements elsewhere than in those dims.
    """
    groups = _groups_of(product, lead, inner)
    found, node = None, product
    while groups is not None and len(node.users) == 1:
        node = next(iter(node.users))
        if packet(node) == "aten.clone" or (packet(node) in CASTS and _is_float(node)):
            found = node, groups
        elif is_move(node) and packet(node) not in COPIES:
            groups = _moved(node, groups)
        else:
            break
    if found is None:
        return None
    end, places = found
    return end, tuple(raveled(tuple(map(at, group)), [var.extent for var in group]) if group else 0 for group in places)


def _is_float(node: fx.Node) -> bool:
    return node.meta["val"].dtype.is_floating_point and node.meta["val"].device == node.args[0].meta["val"].device  # type: ignore[union-attr]


def _groups_of(product: fx.Node, lead: Sequence[Var], inner: tuple[Var, Var]) -> list[_Group] | None:
    """The variables of each dim of a product's result."""
    sizes = _sizes(product)
    every = [_long(lead), _long(inner[:1]), _long(inner[1:])]
    if len(sizes) == 2:
        every = every[1:]
    elif len(sizes) == len(lead) + 2:
        every[:1] = [_long([var]) for var in lead]
    return every if sizes == [_extent(group) for group in every] else None


def _moved(node: fx.Node, groups: list[_Group]) -> list[_Group] | None:
    """The variables of each dim after a node that moves elements; None where that is not known."""
    rank, name = len(groups), packet(node)
    if name in ("aten.view", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze"):
        return _regrouped([var for group in groups for var in group], _sizes(node))
    if name == "aten.permute":
        return [groups[int(d)] for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    if name in ("aten.transpose", "aten.t"):
        a, b = (int(d) % rank for d in (node.args[1:3] or (0, 1)))  # type: ignore[arg-type]
        groups = list(groups)
        groups[a], groups[b] = groups[b], groups[a]
        return groups
    same = name in ("aten.alias", "aten.detach", "aten.expand") and _sizes(node) == [_extent(g) for g in groups]
    return groups if same else None


def _regrouped(variables: list[Var], sizes: list[int]) -> list[_Group] | None:
    """The variables, in dims of other sizes."""
    groups, rest = [], list(variables)
    for size in sizes:
        group: list[Var] = []
        while rest and _extent(group) < size:
            group.append(rest.pop(0))
        groups.append(tuple(group))
        if _extent(group) != size:
            return None
    return None if rest else groups


def _long(variables: Sequence[Var]) -> _Group:
    return tuple(var for var in variables if var.extent != 1)


def _extent(group: Sequence[Var]) -> int:
    return math.prod(int(var.extent) for var in group)


def _sizes(node: fx.Node) -> list[int]:
    return [int(size) for size in node.meta["val"].shape]
