"""Masks that depend on positions alone, in whatever form, as comparisons of indices.

    position = expand(arange(512)); packed = cumsum(diff(position) != 1)
    packed[b, i] == packed[b, j] & position[b, j] <= position[b, i]         ->   i - j >= 0

The facts that `rewrites.facts` derives about a mask become a formula, so that no kernel reads the mask from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ....rewrites.facts import Conditional, Fact, Positions, Uniform, derive
from ....rewrites.graph import is_tensor
from ...ir.value import Number, Value
from ...lowering.arithmetic import op
from ...lowering.core import const

_MOST = 200  # most nodes that compute a mask
_REMEMBERED = "_regraft_facts"  # the cache is in the graph: metadata of nodes is copied to nodes with other values


def mask_formula(node: fx.Node) -> Callable[[tuple[Any, ...]], Value] | None:
    """A function from indices to an element of a boolean tensor; None if its value is not known."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dtype != torch.bool or node.op != "call_function":
        return None
    fact = _fact(node)
    if isinstance(fact, Uniform):
        return lambda _: const(bool(fact.number), torch.bool)
    if not isinstance(fact, Conditional) or not all(map(_is_static, fact.conditions)):
        return None
    return lambda at: _chosen(fact, at)


def _is_static(place: Positions) -> bool:
    return all(isinstance(number, int) for number in (place.offset, *place.steps))


def _chosen(fact: Conditional, at: tuple[Any, ...]) -> Value:
    """`yes` if all conditions hold."""
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
    """The fact known about a node, from those about its operands; cached."""
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
