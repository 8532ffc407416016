"""Effects of ATen calls that matter to capture: which calls may be erased when dead, and which may run twice."""

from __future__ import annotations

import operator

from torch import fx

from ...rewrites import compat
from ...rewrites.graph import TORCH_NAMESPACES, checks_values, writes_statistics


def has_effect(node: fx.Node) -> bool:
    """Whether a call without users must be kept: it writes, draws random numbers, checks, or sets a mode."""
    if node.op != "call_function":
        return node.op != "get_attr"
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return target is not operator.getitem and not isinstance(node.meta.get("val"), compat.NUMBERS)
    if target.namespace not in TORCH_NAMESPACES or "unbacked_bindings" in node.meta:
        return True
    return node.is_impure() or compat.returns_nothing(target) or writes_statistics(node) or checks_values(node)


def may_write(gm: fx.GraphModule) -> bool:
    """Whether running a captured graph could change memory or sizes of its inputs."""
    return any(n.op == "call_function" and _may_write(n) for n in gm.graph.nodes)


def _may_write(node: fx.Node) -> bool:
    if isinstance(node.target, compat.OpOverload):
        return compat.is_mutable(node.target) or "unbacked_bindings" in node.meta or writes_statistics(node)
    return isinstance(node.target, compat.HigherOrderOperator)
