"""Which kernels a program lets `scaled_dot_product_attention` choose from: around the call, and within the program."""

from __future__ import annotations

from torch import fx

from ...rewrites.compat import attention
from ...rewrites.effects import allowed_by


def backends_around() -> str | None:
    """Names of the kernels that may be chosen where the program begins, with commas; None where all may."""
    return _told(attention.allowed_backends())


def backends_throughout(gm: fx.GraphModule) -> str | None:
    """Names of the kernels that may be chosen wherever `gm` is; None where all may.

    After autograd nothing tells which node stood in which scope, so that what one scope forbids is forbidden.
    """
    calls = [n for m in gm.modules() if isinstance(m, fx.GraphModule) for n in m.graph.nodes if _is_scope(n)]
    within = [frozenset(allowed_by(call).split(",")) for call in calls]
    return _told(frozenset.intersection(attention.allowed_backends(), *within))


def _is_scope(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is attention.ALLOW_BACKENDS


def _told(allowed: frozenset[str]) -> str | None:
    return None if allowed >= attention.BACKENDS else ",".join(sorted(allowed))
