"""Parts of all templates of attention, for any device: matching and records."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ....rewrites.profit import Decision
from ....rewrites.reason import Reason, site_of
from ....rewrites.record import GraphRecord
from ..common import records
from ..common.formula import packet
from .match import SOFTMAXES, FoundAttention, beside_product, match_attention
from .sdpa import SDPA, match_sdpa

RULE = "attention-template"
# An attention that a rule has found already is not counted again if it gets another kernel.
FAMILY, KERNEL_FAMILY = "attention", "attention-kernel"


def matched(node: fx.Node) -> FoundAttention | Reason | None:
    """The attention of a node; a reason only if it is nearly one, unlike a classifier's softmax."""
    if packet(node) in SOFTMAXES:
        found = match_attention(node)
        return found if isinstance(found, FoundAttention) or beside_product(node) else None
    return match_sdpa(node) if packet(node) in SDPA else None


def is_on(node: fx.Node, device: str) -> bool:
    """Whether a node's value (or its first value) is on a device of this type."""
    val = node.meta.get("val")
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return getattr(getattr(first, "device", None), "type", "") == device


def record_decision(
    record: GraphRecord,
    found: FoundAttention,
    decision: Decision,
    nodes: Sequence[fx.Node] = (),
    stage: str = "lowered",
) -> None:
    """Record the decision on an attention; `nodes` are those that a kernel would replace, by default all."""
    every = [*found.nodes, found.output]
    family = KERNEL_FAMILY if any(map(_is_written_by_a_rule, found.nodes)) else FAMILY
    match = records.decided(RULE, family, nodes or found.nodes, found.output, decision, stage)
    record.settle(match, decision.chosen is not None, {site_of(node) for node in every}, (FAMILY,))


def _is_written_by_a_rule(node: fx.Node) -> bool:
    """Whether a rule inserted this attention: the rule's match counts it already."""
    return packet(node) in {*SDPA, *SOFTMAXES} and bool(node.meta.get("regraft_rule"))
