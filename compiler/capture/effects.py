"""Effects of ATen calls as far as capture must know them: what may be dropped when dead, what may run twice."""

from __future__ import annotations

import operator

from torch import fx

from ...rewrites import compat

_NAMESPACES = ("aten", "prims", "prim")
# Write to running statistics though their schemas don't say so, if this argument is true.
_HIDDEN_WRITES = {
    "aten::batch_norm": "training",
    "aten::instance_norm": "use_input_stats",
    "aten::native_batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::miopen_batch_norm": "training",
    "aten::_batch_norm_impl_index": "training",
}


def has_effect(node: fx.Node) -> bool:
    """Whether a call must stay though nobody reads its result: it writes, draws random numbers, checks, sets a mode."""
    if node.op != "call_function":
        return node.op != "get_attr"
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return target is not operator.getitem and not isinstance(node.meta.get("val"), compat.NUMBERS)
    if target.namespace not in _NAMESPACES or "unbacked_bindings" in node.meta:
        return True
    return node.is_impure() or compat.returns_nothing(target) or _writes_statistics(node)


def _writes_statistics(node: fx.Node) -> bool:
    flag = _HIDDEN_WRITES.get(node.target.name())
    return flag is not None and bool(compat.argument(node, flag))


def may_write(gm: fx.GraphModule) -> bool:
    """Whether running a captured graph could change memory or sizes of its inputs."""
    return any(n.op == "call_function" and _may_write(n) for n in gm.graph.nodes)


def _may_write(node: fx.Node) -> bool:
    if isinstance(node.target, compat.OpOverload):
        return compat.is_mutable(node.target) or "unbacked_bindings" in node.meta or _writes_statistics(node)
    return isinstance(node.target, compat.HigherOrderOperator)
