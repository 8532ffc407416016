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
    """The decision on nodes that a kernel would replace.

    Args:
        rule: name of the template's pass.
        family: of it.
        nodes: what the kernel replaces.
        output: whose source line the record shows.
        decision: what was decided.
        stage: of the pipeline.
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
    """A node that the template of a pass does not compute, and why.

    Args:
        rule: name of the template's pass.
        family: of it.
        node: where matching began.
        reason: why it does not go on.
        size: operations of the smallest match, of which this one is there.
    """
    site = reason.site or site_of(node)
    return NearMiss(
        rule, family, reason.code, reason.message, reason.expected, reason.found, depth=1, size=size, site=site
    )
