"""Entries of a template in the record of a compilation: decisions and near misses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ....rewrites.profit import Decision
from ....rewrites.reason import Reason, site_of
from ....rewrites.record import Match, NearMiss


def decided(
    rule: str, family: str, nodes: Sequence[fx.Node], output: fx.Node, decision: Decision, stage: str = "lowered"
) -> Match:
    """The record of a decision about nodes that a kernel would replace.

    Args:
        rule: the name of the template's pass.
        family: its family in reports.
        nodes: the nodes that the kernel replaces.
        output: the node whose source line the record shows.
        decision: the decision of the oracle.
        stage: the stage of the pipeline.
    """
    return Match(
        rule=rule,
        family=family,
        stage=stage,
        candidate=decision.chosen or "",
        nodes=tuple(node.name for node in nodes),
        site=site_of(output),
        evidence=decision.evidence,
    )


def near_miss(rule: str, family: str, node: fx.Node, reason: Reason, size: int = 2) -> NearMiss:
    """The record of a node that a template does not compute, with the reason.

    Args:
        rule: the name of the template's pass.
        family: its family in reports.
        node: the node at which matching began.
        reason: why matching stopped.
        size: the number of operations of the smallest match, one of which was found.
    """
    site = reason.site or site_of(node)
    return NearMiss(
        rule, family, reason.code, reason.message, reason.expected, reason.found, depth=1, size=size, site=site
    )
