"""Parts of all passes over attentions, whatever the device: records, and putting calls in place of nodes."""

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
from .bias_layout import Copies
from .match import SOFTMAXES, Found, beside_product, match_attention
from .sdpa import SDPA, match_sdpa

RULE = "attention-template"
# Another kernel for an attention that a rule found already is not one more attention.
FAMILY, KERNEL_FAMILY = "attention", "attention-kernel"


def matched(node: fx.Node) -> Found | Reason | None:
    """The attention of a node; a reason only if it is nearly one: a classifier's softmax is not."""
    if packet(node) in SOFTMAXES:
        found = match_attention(node)
        return found if isinstance(found, Found) or beside_product(node) else None
    return match_sdpa(node) if packet(node) in SDPA else None


def is_on(node: fx.Node, device: str) -> bool:
    """Whether a node's value lies on a device of this type; of several values the first."""
    val = node.meta.get("val")
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return getattr(getattr(first, "device", None), "type", "") == device


class Replacer:
    """Puts calls of kernels in place of attentions.

    Args:
        graph: changed in place.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._copies = Copies()

    def replace(self, found: Found, kernel: Callable[..., Any], layouts: Sequence[Layout]) -> None:
        """Call `kernel` on what it reads, in these layouts, instead of an attention's nodes."""
        inputs = tuple(self._copies.of(x, layout.strides) for x, layout in zip(found.inputs, layouts, strict=True))
        with self._graph.inserting_before(found.output):
            call = self._graph.call_function(kernel, inputs)
        call.meta = {**found.output.meta, "regraft_rule": RULE}
        found.output.replace_all_uses_with(call)
        self._erase([*found.nodes, found.output])

    def _erase(self, nodes: Sequence[fx.Node]) -> None:
        """Erase what nobody reads any more, and what only that kept alive.

        What was replaced goes, though its operator may draw random numbers: here it draws none.
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
    """Record what was decided on an attention; `nodes` are what a kernel would replace, by default the found's."""
    every = [*found.nodes, found.output]
    family = KERNEL_FAMILY if any(map(_is_written_by_a_rule, found.nodes)) else FAMILY
    match = records.decided(RULE, family, nodes or found.nodes, found.output, decision, stage)
    record.settle(match, decision.chosen is not None, {site_of(node) for node in every}, (FAMILY,))


def _is_written_by_a_rule(node: fx.Node) -> bool:
    """Whether a rule has put this attention here: then its match counts it already."""
    return packet(node) in {*SDPA, *SOFTMAXES} and bool(node.meta.get("regraft_rule"))


def near_miss(node: fx.Node, reason: Reason) -> NearMiss:
    """An attention that the template does not compute, and why."""
    return records.near_miss(RULE, FAMILY, node, reason, size=3)
