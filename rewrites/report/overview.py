"""The overview of a report: how much matched, whether it is right, how fast; and models x rules."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..record import GraphRecord
from .entry import Entry
from .summary import RuleRow, rule_rows

ATTENTION = "attention"


@dataclass(frozen=True)
class Share:
    """How many of all were replaced."""

    replaced: int
    found: int

    def __add__(self, other: Share) -> Share:
        return Share(self.replaced + other.replaced, self.found + other.found)


def attentions(graphs: Iterable[GraphRecord]) -> Share:
    """Attentions replaced, of those that some rule saw: an attention that two rules nearly matched is one."""
    return sum((_attentions(graph) for graph in graphs), Share(0, 0))


def _attentions(graph: GraphRecord) -> Share:
    applied, declined, missed = (
        Counter(item.rule for item in items if item.family == ATTENTION)
        for items in (graph.applied, graph.open_declined, [m for m in graph.near_misses if 2 * m.depth >= m.size])
    )
    seen = max((applied[rule] + declined[rule] + missed[rule] for rule in applied | declined | missed), default=0)
    return Share(applied.total(), max(applied.total(), seen))


@dataclass(frozen=True)
class Headline:
    """The three answers over all targets.

    Args:
        attention: attentions replaced of those found.
        rewrites: matches applied; `simplified`: those that only took out what computes nothing, counted apart;
            `declined` legal but not worth it; `near_misses`; `fallbacks`.
        right: targets that agree with eager, of `compared` ones.
        speed: median speed over eager of the timed targets; `slowest` and `fastest` of them; None where none was timed.
        compile_seconds: of all first calls together.
    """

    attention: Share
    rewrites: int
    simplified: int
    declined: int
    near_misses: int
    fallbacks: int
    right: int
    compared: int
    timed: int
    speed: float | None
    slowest: float | None
    fastest: float | None
    compile_seconds: float


def headline(entries: Sequence[Entry]) -> Headline:
    """The three answers over all targets."""
    graphs = [graph for entry in entries for graph in entry.graphs]
    outcomes = [entry.outcome for entry in entries if entry.outcome is not None]
    speeds = [outcome.speed for outcome in outcomes if outcome.speed is not None]
    return Headline(
        attention=attentions(graphs),
        rewrites=sum(not match.simplifies for graph in graphs for match in graph.applied),
        simplified=sum(match.simplifies for graph in graphs for match in graph.applied),
        declined=sum(len(graph.open_declined) for graph in graphs),
        near_misses=sum(len(graph.near_misses) for graph in graphs),
        fallbacks=sum(len(graph.fallbacks) for graph in graphs),
        right=sum(outcome.right for outcome in outcomes),
        compared=len(outcomes),
        timed=len(speeds),
        speed=statistics.median(speeds) if speeds else None,
        slowest=min(speeds, default=None),
        fastest=max(speeds, default=None),
        compile_seconds=sum(outcome.compile_seconds for outcome in outcomes),
    )


@dataclass(frozen=True)
class MatrixRow:
    """One target of the matrix: a cell for each rule of the matrix, None where the rule saw nothing there."""

    entry: Entry
    cells: tuple[RuleRow | None, ...]
    attention: Share
    fallbacks: int


@dataclass(frozen=True)
class RuleTable:
    """Targets by rules; `totals` over all targets, by rule."""

    rules: tuple[RuleRow, ...] = ()
    rows: tuple[MatrixRow, ...] = field(default=())


def matrix(entries: Sequence[Entry]) -> RuleTable:
    """Targets x rules, the rules with the most matches first; those that only simplify come last."""
    rules = rule_rows([graph for entry in entries for graph in entry.graphs])
    rules.sort(key=lambda row: row.simplifies)
    rows = []
    for entry in entries:
        own = {row.rule: row for row in rule_rows(entry.graphs)}
        cells = tuple(own.get(rule.rule) for rule in rules)
        fallbacks = sum(len(graph.fallbacks) for graph in entry.graphs)
        rows.append(MatrixRow(entry, cells, attentions(entry.graphs), fallbacks))
    return RuleTable(tuple(rules), tuple(rows))


def hues(entries: Sequence[Entry]) -> dict[str, int]:
    """A hue for each rule, the same on the whole page: rules that matched come first, and differ most."""
    names: Sequence[str] = [row.rule for row in rule_rows([g for entry in entries for g in entry.graphs])]
    wheel = (158, 262, 312, 42, 212, 12, 96, 340, 285, 185, 68, 235)
    return {name: wheel[i % len(wheel)] for i, name in enumerate(names)}
