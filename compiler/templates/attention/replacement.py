"""Parts of all passes over attentions, for any device: records, and replacing nodes by calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from ....rewrites.graph import erase_dead
from ....rewrites.profit import Decision
from ....rewrites.reason import Reason, site_of
from ....rewrites.record import GraphRecord, NearMiss
from ...capture.effects import has_effect
from ..common import records
from ..common.cpp_call import Layout
from ..common.formula import packet
from ..common.questions import Questions
from ..common.task import Task
from .bias_layout import Copies
from .match import SOFTMAXES, Found, beside_product, match_attention
from .sdpa import SDPA, match_sdpa

RULE = "attention-template"
# An attention that a rule has found already is not counted again if it gets another kernel.
FAMILY, KERNEL_FAMILY = "attention", "attention-kernel"


def matched(node: fx.Node) -> Found | Reason | None:
    """The attention of a node; a reason only if it is nearly one, unlike a classifier's softmax."""
    if packet(node) in SOFTMAXES:
        found = match_attention(node)
        return found if isinstance(found, Found) or beside_product(node) else None
    return match_sdpa(node) if packet(node) in SDPA else None


def is_on(node: fx.Node, device: str) -> bool:
    """Whether a node's value (or its first value) is on a device of this type."""
    val = node.meta.get("val")
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return getattr(getattr(first, "device", None), "type", "") == device


class Replacer:
    """Replaces attentions by calls of kernels.

    Args:
        graph: changed in place.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._copies = Copies()

    def replace(self, found: Found, kernel: Callable[..., Any], layouts: Sequence[Layout]) -> None:
        """Replace the nodes of an attention by a call of `kernel` on its inputs, in these layouts."""
        inputs = tuple(self._copies.of(x, layout.strides) for x, layout in zip(found.inputs, layouts, strict=True))
        with self._graph.inserting_before(found.output):
            call = self._graph.call_function(kernel, inputs)
        call.meta = {**found.output.meta, "regraft_rule": RULE}
        found.output.replace_all_uses_with(call)
        self._erase([*found.nodes, found.output])

    def _erase(self, nodes: Sequence[fx.Node]) -> None:
        """Erase nodes that have no readers left, and the nodes that only they read.

        Replaced nodes are erased even if their operator may use random numbers: these calls do not.
        """
        replaced = set(nodes)
        calls = (node for node in nodes if node.op == "call_function")
        erase_dead(
            self._graph,
            calls,
            lambda node: node.op == "call_function" and (node in replaced or not has_effect(node)),
        )


def record_decision(
    record: GraphRecord, found: Found, decision: Decision, nodes: Sequence[fx.Node] = (), stage: str = "lowered"
) -> None:
    """Record the decision on an attention; `nodes` are those that a kernel would replace, by default all."""
    every = [*found.nodes, found.output]
    family = KERNEL_FAMILY if any(map(_is_written_by_a_rule, found.nodes)) else FAMILY
    match = records.decided(RULE, family, nodes or found.nodes, found.output, decision, stage)
    record.settle(match, decision.chosen is not None, {site_of(node) for node in every}, (FAMILY,))


def _is_written_by_a_rule(node: fx.Node) -> bool:
    """Whether a rule inserted this attention: the rule's match counts it already."""
    return packet(node) in {*SDPA, *SOFTMAXES} and bool(node.meta.get("regraft_rule"))


def near_miss(node: fx.Node, reason: Reason) -> NearMiss:
    """An attention that the template does not compute, with the reason."""
    return records.near_miss(RULE, FAMILY, node, reason, size=3)


def questions_of(task: Task, seconds: float) -> Questions:
    """The questions of a pass over attentions on a GPU."""
    return Questions(task, RULE, FAMILY, seconds, size=3, dtype_code="score-dtype")
