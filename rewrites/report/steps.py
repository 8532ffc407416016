"""The graphs of a target, before and after each stage that changed them: what the page's drawings show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..record import GraphRecord, Snapshot
from .drawing import Strings, draw

TITLES = {
    "rewrite-forward": "Rules, before autograd",
    "rewrite-simplify": "Simplification",
    "rewrite-lowered": "Rules, after autograd",
    "templates": "Templates",
    "kernels": "Generated kernels",
}
KINDS = {"program": "", "inference": "", "forward": "forward", "backward": "backward"}
FULL, BRIEF = 3, 12
"""Up to how many targets of a report all drawings are full, and up to how many all stages are drawn at all."""


@dataclass(frozen=True)
class GraphStage:
    """One stage of one graph.

    Args:
        title: of the stage; `graph` says of which graph, where there are several.
        before: position of the drawing before the stage; `after` likewise, None where it changed nothing.
        rules: what it applied, as pairs (rule, how often), and what it declined likewise.
    """

    title: str
    graph: str
    before: int
    after: int | None
    applied: tuple[tuple[str, int], ...]
    declined: tuple[tuple[str, int], ...]


class Steps:
    """The drawings of a whole page, and the steps of each target.

    Args:
        targets: how many targets the page has: the more, the less is drawn of each.
    """

    def __init__(self, targets: int) -> None:
        self.drawings: list[dict[str, Any]] = []
        self.strings = Strings()
        self._brief = targets > FULL
        self._first_only = targets > BRIEF

    def of(self, graphs: Sequence[GraphRecord]) -> list[GraphStage]:
        """The steps of a target, its graphs one after the other."""
        return [
            step for i, graph in enumerate(graphs) for step in self._of_graph(graph, i if len(graphs) > 1 else None)
        ]

    def _of_graph(self, record: GraphRecord, number: int | None) -> Iterator[GraphStage]:
        drawn: dict[int, int] = {}

        def drawing(i: int) -> int:
            if i not in drawn:
                drawn[i] = len(self.drawings)
                self.drawings.append(draw(record.snapshots[i], record, self.strings, self._brief))
            return drawn[i]

        for i, j in _pairs(record.snapshots):
            taken = record.snapshots[i]
            if self._first_only and taken.graph != "program":
                continue
            stage = record.snapshots[j].stage if j is not None else _next_stage(taken)
            graph = " · ".join(filter(None, ["" if number is None else f"graph {number + 1}", KINDS[taken.graph]]))
            yield GraphStage(
                TITLES.get(stage, stage),
                graph,
                drawing(i),
                None if j is None else drawing(j),
                _counts(record, taken, "applied"),
                _counts(record, taken, "declined"),
            )


def _pairs(snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, int | None]]:
    """Each snapshot with the next of the same graph; a graph's only one alone."""
    for i, taken in enumerate(snapshots):
        follows = i + 1 < len(snapshots) and snapshots[i + 1].graph == taken.graph
        if follows:
            yield i, i + 1
        elif i == 0 or snapshots[i - 1].graph != taken.graph:
            yield i, None


def _next_stage(taken: Snapshot) -> str:
    return "rewrite-forward" if taken.graph == "program" else "rewrite-lowered"


def _counts(record: GraphRecord, taken: Snapshot, kind: str) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for region in taken.regions:
        if region.kind == kind:
            rule = getattr(record, kind)[region.index].rule
            counts[rule] = counts.get(rule, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: -item[1]))
