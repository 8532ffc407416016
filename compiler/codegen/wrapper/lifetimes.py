"""The lifetimes of values: the node after which each value can be deleted."""

from __future__ import annotations

from torch import fx


def last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The values that each node is the last to read."""
    dying: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                dying.setdefault(node, []).append(used)
    return dying
