"""Where compile time went: by stage, and within it how much was matching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..record import GraphRecord
from .summary import stage_seconds

STAGES = {
    "recall": "looking for the graph in the cache",
    "capture": "Dynamo's graph to one ATen graph before autograd",
    "passes": "small passes over whole graphs",
    "masks": "what is known of attention masks",
    "rewrite-forward": "normal form, matching and splicing, before differentiation",
    "measure": "timing originals and candidates",
    "differentiate": "AOTAutograd: functional form, derivatives",
    "freeze": "folding and packing weights",
    "rewrite-simplify": "algebraic identities, matched as they are written",
    "layout": "layout of convolutions",
    "rewrite-lowered": "normal form, matching and splicing, after differentiation",
    "templates": "kernels made from templates, and timing them",
    "kernels": "loop program, schedule, C++",
    "generate": "the wrapper",
}
"""What happens in each stage, in the order in which they run."""


@dataclass(frozen=True)
class Stage:
    """One stage: its name, what it does, its seconds and its part of the whole."""

    name: str
    does: str
    seconds: float
    part: float


@dataclass(frozen=True)
class Budget:
    """Where compile time went.

    Args:
        stages: in the order in which they run.
        total: seconds of all stages.
        matching: seconds that rules spent matching, replacing not counted; `by_rule` the same by rule, longest first.
        recalled: graphs that were not compiled, because the cache had them.
    """

    stages: tuple[Stage, ...]
    total: float
    matching: float
    by_rule: tuple[tuple[str, float], ...]
    recalled: int

    @property
    def share(self) -> float:
        """The part of the whole that was matching."""
        return self.matching / self.total if self.total else 0.0


def budget(graphs: Sequence[GraphRecord]) -> Budget:
    """The compile time of some graphs; what a recalled graph took when it was compiled is not in it."""
    compiled = [graph for graph in graphs if not _is_recalled(graph)]
    seconds = stage_seconds(graphs)
    total = sum(seconds.values())
    order = [*STAGES, *(name for name in seconds if name not in STAGES)]
    stages = tuple(
        Stage(name, STAGES.get(name, ""), seconds[name], seconds[name] / total if total else 0.0)
        for name in order
        if name in seconds
    )
    rules: dict[str, float] = {}
    for graph in compiled:
        replacing = graph.details.get("replace_seconds", {})
        for rule, spent in graph.details.get("rule_seconds", {}).items():
            rules[rule] = rules.get(rule, 0.0) + max(spent - replacing.get(rule, 0.0), 0.0)
    by_rule = tuple(sorted(rules.items(), key=lambda item: -item[1]))
    return Budget(stages, total, sum(rules.values()), by_rule, len(graphs) - len(compiled))


def _is_recalled(graph: GraphRecord) -> bool:
    return "recall" in graph.seconds and "capture" not in graph.seconds
