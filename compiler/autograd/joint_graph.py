"""Joint graphs, forward and backward in one: which nodes are the backward's, and what it is to compute anew."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ...rewrites.graph import op_name
from ...rewrites.moves import ALIASES, EXPANDS, REORDERS, RESIZES

WHOLE_VIEWS = RESIZES | REORDERS | EXPANDS  # their results have all elements of their operand


def backward_nodes(joint: fx.Graph) -> set[fx.Node]:
    """The nodes of a joint graph that belong to the backward: the tangents, and what follows from them."""
    found: set[fx.Node] = set()
    for node in joint.nodes:
        tangent = node.op == "placeholder" and "tangents" in str(node.target)
        marked = node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")
        if tangent or marked or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def incoming_gradients(joint: fx.Graph) -> list[fx.Node]:
    """The placeholders of a graph of forward and backward that only the backward reads."""
    return [node for node in backward_nodes(joint) if node.op == "placeholder"]


def mark_recomputed(node: fx.Node, recomputed: bool) -> None:
    """Have the backward compute a node of a joint graph anew, or have it kept (False), whatever that costs."""
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if recomputed else CheckpointPolicy.MUST_SAVE


def readers(value: fx.Node) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """The readers of a value or of a view of all of it, each with the views in between; other names count as views."""
    for user in list(value.users):
        if op_name(user) in WHOLE_VIEWS | ALIASES:
            yield from ((reader, (user, *views)) for reader, views in readers(user))
        else:
            yield user, ()
