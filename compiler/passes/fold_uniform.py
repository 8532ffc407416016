"""Replaces tensors whose elements are all equal, and that depend on sizes and constants alone, by `full`.

    position = arange(s);  keep = position[None] <= position[:, None] + s;  where(keep, scores, -inf)
        ->  where(full([s, s], True), scores, -inf)

All later stages know the value of `full`, and remove additions, products and selections that it makes redundant.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.facts import Fact, Uniform, facts_of_graph, is_known_exactly, summary
from ...rewrites.graph import op_name, val
from ...rewrites.moves import VIEWS
from ...rewrites.purity import mutable, storages
from ...rewrites.walk import put_in_place, recompiles
from .fold_constant_tables import compute

aten = torch.ops.aten

_MAKERS = ("aten.full", "aten.zeros", "aten.ones", "aten.scalar_tensor", "aten.arange")


@recompiles
def fold_uniform(graph_module: fx.GraphModule) -> int:
    """Replace computed tensors whose elements are all equal by `full`, in place; returns their number.

    The result must have the same bits as in eager. NaN has many bit patterns and is left alone, as are values that
    eager may round differently.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    facts = facts_of_graph(graph, mutable(graph))
    editor = Editor(graph)
    return sum(_fold(node, fact, editor) for node, fact in _wanted(facts))


def _wanted(facts: dict[fx.Node, Fact]) -> list[tuple[fx.Node, Uniform]]:
    """Calls with equal elements that other calls read, perhaps through views."""
    read: set[fx.Node] = set()
    for node in reversed(facts):
        if isinstance(facts[node], Uniform) and any(_reads(user, facts, read) for user in node.users):
            read.add(node)
    found = [(node, fact) for node, fact in facts.items() if node in read and isinstance(fact, Uniform)]
    return [(node, fact) for node, fact in found if node.op == "call_function" and not _is_kept(node)]


def _reads(user: fx.Node, facts: dict[fx.Node, Fact], read: set[fx.Node]) -> bool:
    return user not in facts or (_is_view(user) and user in read)


def _is_kept(node: fx.Node) -> bool:
    return op_name(node) in _MAKERS or _is_view(node)


def _is_view(node: fx.Node) -> bool:
    """Whether a call's result has the memory of an operand: a program may be given both."""
    return op_name(node) in VIEWS or any(storages(node) & storages(x) for x in node.all_input_nodes)


def _fold(node: fx.Node, fact: Uniform, editor: Editor) -> bool:
    number = fact.number if is_known_exactly(fact) else _computed(node)
    if number is None or math.isnan(number):
        return False
    value = val(node)
    with editor.at(node):
        new = editor.call(aten.full.default, list(value.shape), number, dtype=value.dtype, device=value.device)
    return put_in_place(editor, node, new, same_strides=True)


def _computed(node: fx.Node) -> bool | int | float | None:
    """The value of the elements, computed by eager on tensors of the same sizes."""
    value = compute(node)
    fact = None if value is None else summary(value)
    return fact.number if isinstance(fact, Uniform) else None
