"""Masks that follow from positions, however they are spelled, as comparisons of indices.

    position = expand(arange(512)); packed = cumsum(diff(position) != 1)
    packed[b, i] == packed[b, j] & position[b, j] <= position[b, i]         ->   i - j >= 0

What `rewrites.facts` knows of a mask is written down, so that no kernel reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ....rewrites.facts import Choice, Fact, Positions, Uniform, derive
from ....rewrites.graph import is_tensor
from ...ir.value import Number, Value
from ...lowering.arithmetic import op
from ...lowering.core import const

_MOST = 200  # nodes that a mask may be made of
_REMEMBERED = "_regraft_facts"  # of a graph's nodes: in the graph, for metadata is copied to nodes of other values


def mask_formula(node: fx.Node) -> Callable[[tuple[Any, ...]], Value] | None:
    """An element of a boolean tensor from its indices; None where it is not known."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dtype != torch.bool or node.op != "call_function":
        return None
    fact = _fact(node)
    if isinstance(fact, Uniform):
        return lambda _: const(bool(fact.number), torch.bool)
    if not isinstance(fact, Choice) or not all(map(_is_static, fact.conditions)):
        return None
    return lambda at: _chosen(fact, at)


def _is_static(place: Positions) -> bool:
    return all(isinstance(number, int) for number in (place.offset, *place.steps))


def _chosen(fact: Choice, at: tuple[Any, ...]) -> Value:
    """`yes` where all conditions hold."""
    holds: Value = const(True, torch.bool)
    for number, place in enumerate(fact.conditions):
        index = place.offset + sum(step * one for step, one in zip(place.steps, at, strict=True))
        one = op("ge", _number(index), const(0, torch.int64))
        holds = op("logical_and", holds, one) if number else one
    if bool(fact.yes) == bool(fact.no):
        return const(bool(fact.yes), torch.bool)
    return holds if fact.yes else op("logical_not", holds)


def _number(index: Any) -> Value:
    return const(index, torch.int64) if isinstance(index, int) else Number(index, torch.int64)


def _fact(node: fx.Node) -> Fact | None:
    """What is known of a node, from what is known of those that it is made of; remembered."""
    known: dict[fx.Node, Fact | None] = vars(node.graph).setdefault(_REMEMBERED, {})
    stack, count = [node], 0
    while stack:
        missing = [x for x in _operands(stack[-1]) if x not in known]
        if stack[-1] in known or not missing:
            one = stack.pop()
            if one not in known:
                known[one] = None if one.op == "placeholder" else derive(one, known.get)
            continue
        count += len(missing)
        if count > _MOST:
            known[node] = None
            break
        stack.extend(missing)
    return known[node]


def _operands(node: fx.Node) -> list[fx.Node]:
    return [x for x in node.all_input_nodes if is_tensor(x)] if node.op == "call_function" else []
