"""The kernels that a program allows `scaled_dot_product_attention`: around the program, and inside it."""

from __future__ import annotations

from torch import fx

from ...rewrites.compat import attention
from ...rewrites.effects import allowed_by


def backends_around() -> str | None:
    """The names of the kernels that are allowed at the beginning of the program, with commas; None for all."""
    return _told(attention.allowed_backends())


def backends_throughout(gm: fx.GraphModule) -> str | None:
    """The names of the kernels that are allowed everywhere in `gm`; None for all.

    After autograd the scope of a node is unknown, so a kernel that any scope forbids is not allowed.
    """
    calls = [n for m in gm.modules() if isinstance(m, fx.GraphModule) for n in m.graph.nodes if _is_scope(n)]
    within = [frozenset(allowed_by(call).split(",")) for call in calls]
    return _told(frozenset.intersection(attention.allowed_backends(), *within))


def _is_scope(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is attention.ALLOW_BACKENDS


def _told(allowed: frozenset[str]) -> str | None:
    return None if allowed >= attention.BACKENDS else ",".join(sorted(allowed))
