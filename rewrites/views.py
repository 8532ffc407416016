"""Metadata of views, renewed where a pass has replaced what they look at.

    bag = embedding_bag(w, i);  v = select(bag, 1, 0)        bag = mean(embedding(w, i));  v = select(bag, 1, 0)
    zero_(v);  return bag                              ->    the fake tensor of v looked at the old bag's memory

Passes read from metadata which values share memory. Before autograd, programs write in place: a write to a view whose
metadata is out of date would seem to change memory that nobody reads, and be dropped.
"""

from __future__ import annotations

import operator

from torch import fx

from . import compat
from .editor import infer
from .functional import writes_self
from .graph import val
from .layout import same_layout
from .purity import storages, written


def renew_written_views(graph: fx.Graph) -> int:
    """`renew_views` of a graph with writes; in others nobody asks which values share memory."""
    return renew_views(graph) if any(written(node) for node in graph.nodes) else 0


def renew_views(graph: fx.Graph) -> int:
    """Let views look at the memory that their operands have now; returns how many did not.

    Calls that may copy (`reshape`) look at memory of their own, and get new metadata for nothing.
    """
    renewed: set[fx.Node] = set()
    for node in graph.nodes:
        if _returns_renewed(node, renewed):
            node.meta["val"] = val(node.args[0])
        elif _looks_elsewhere(node, renewed):
            node.meta["val"] = infer(node)
        else:
            continue
        renewed.add(node)
    return len(renewed)


def _returns_renewed(node: fx.Node, renewed: set[fx.Node]) -> bool:
    """Whether a call writes elements of a view that was renewed, and returns it."""
    return (
        node.args[:1] != ()
        and node.args[0] in renewed
        and writes_self(node)
        and same_layout(val(node.args[0]), val(node))
    )


def _looks_elsewhere(node: fx.Node, renewed: set[fx.Node]) -> bool:
    """Whether no result of a call that gives views shares memory with the operands that it views."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return node.args[0] in renewed
    if not isinstance(node.target, compat.OpOverload) or compat.is_mutable(node.target):
        return False
    places = [k for k, _ in compat.aliasing_arguments(node.target) if k < len(node.args)]
    viewed = {s for k in places if isinstance(x := node.args[k], fx.Node) for s in storages(x)}
    return bool(viewed) and val(node) is not None and not storages(node) & viewed
