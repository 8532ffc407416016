"""The compile time by stage, and within it the time of matching.

first call 3.0 s  =  Dynamo 0.6 s  +  stages of regraft 1.1 s  +  the rest 1.3 s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..record import GraphRecord
from .entry import Outcome
from .summary import stage_seconds

DYNAMO, REST = "dynamo", "the rest"

STAGES = {
    DYNAMO: "torch's part: it reads the Python code, and makes the graph and its guards",
    "recall": "looking for the graph in the cache on disk",
    "capture": "Dynamo's graph becomes one ATen graph, before autograd",
    "passes": "passes over whole graphs, one after the other",
    "masks": "finding out which entries attention masks keep",
    "rewrite-forward": "rules before autograd: normal form, matching, inserting replacements",
    "measure": "timing originals and candidates of rules",
    "differentiate": "AOTAutograd: writes become values, derivatives are added",
    "freeze": "computing constants of weights, packing weights",
    "rewrite-simplify": "rules that take out what computes nothing",
    "layout": "choosing the memory layout of convolutions",
    "rewrite-lowered": "rules after autograd: normal form, matching, inserting replacements",
    "templates": "generating and timing kernels for products, attention and convolutions",
    "kernels": "all other kernels: loops, fusion, generating and compiling the code",
    "generate": "the function that calls the kernels",
    REST: "loading Python modules, and the first run",
}
"""What happens in each stage, in the order in which they run; the first and the last one are not regraft's."""


@dataclass(frozen=True)
class Stage:
    """One stage: its name, what it does, its seconds and its part of the first call, or of all stages."""

    name: str
    does: str
    seconds: float
    part: float


@dataclass(frozen=True)
class Budget:
    """The compile time by stage.

    Args:
        stages: in the order in which they run; with Dynamo and the rest, where the first call was timed.
        total: seconds of all stages of regraft.
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


def budget(graphs: Sequence[GraphRecord], outcome: Outcome | None = None) -> Budget:
    """The compile time of some graphs; what a recalled graph took when it was compiled is not in it."""
    compiled = [graph for graph in graphs if not _is_recalled(graph)]
    seconds = stage_seconds(graphs)
    total = sum(seconds.values())
    seconds |= _around(outcome, total) if seconds else {}
    whole = sum(seconds.values())
    *known, last = STAGES
    order = [*known, *(name for name in seconds if name not in STAGES), last]
    stages = tuple(
        Stage(name, STAGES.get(name, ""), seconds[name], seconds[name] / whole if whole else 0.0)
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


def _around(outcome: Outcome | None, total: float) -> dict[str, float]:
    """Seconds of the first call in which regraft did not compile."""
    if outcome is None or outcome.dynamo_seconds is None:
        return {}
    rest = outcome.compile_seconds - outcome.dynamo_seconds - total
    return {DYNAMO: outcome.dynamo_seconds} | ({REST: rest} if rest > 0 else {})


def _is_recalled(graph: GraphRecord) -> bool:
    return "recall" in graph.seconds and "capture" not in graph.seconds
