"""Checks of a graph after a rewrite. A failure is a bug of a rule or of the driver, and named as such."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from . import compat
from .editor import RewriteError, infer, require_same_meta
from .graph import is_tensor, op_name, val
from .layout import same_layout
from .legality import CompleteMatch


def verify_rewrite(found: CompleteMatch, outputs: Sequence[fx.Node]) -> None:
    """Check one rewrite: as many outputs as the pattern has, equal metadata, provenance kept.

    Raises:
        RewriteError: naming the rule and the nodes.
    """
    rule = found.rule.name
    if len(outputs) != len(found.outputs):
        count = f"{len(outputs)} value{'' if len(outputs) == 1 else 's'}"
        raise RewriteError(f"{rule}: the replacement returns {count}, the pattern {len(found.outputs)}")
    for old, new in zip(found.outputs, outputs, strict=True):
        require_same_meta(old, new)
        if old.meta.get("stack_trace") and not new.meta.get("stack_trace") and new not in found.operands():
            raise RewriteError(f"{rule}: {new.name} lost the user's source line")


def verify_graph(graph: fx.Graph) -> None:
    """Check a whole graph: topological order, and metadata equal to what running each operator on its inputs gives.

    Raises:
        RewriteError: naming the first node that is wrong.
    """
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        late = [n for n in node.all_input_nodes if n not in seen]
        if late:
            raise RewriteError(f"{node.name} uses {late[0].name} before it is computed")
        seen.add(node)
        if _checkable(node) and not same_layout(infer(node), val(node)):
            raise RewriteError(f"{node.name} ({op_name(node)}) is recorded as {val(node)}, but gives {infer(node)}")


def _checkable(node: fx.Node) -> bool:
    """Calls without effects on tensors of one known result; re-running others would change fake inputs.

    A call that makes a data-dependent size gives another symbol at each run.
    """
    if node.meta.get("unbacked_bindings"):
        return False
    if node.op != "call_function" or not isinstance(node.target, compat.OpOverload) or not is_tensor(node):
        return False
    known = all(n.meta.get("val") is not None for n in node.all_input_nodes)
    return known and not compat.is_mutable(node.target)
