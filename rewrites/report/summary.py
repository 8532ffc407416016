"""Rows and groups for tables, computed from the records of compiled graphs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..record import Fallback, GraphRecord, KeptCall, Match, NearMiss
from ..words import counted

T = TypeVar("T")


@dataclass
class RuleRow:
    """The counts of one rule.

    Args:
        rule: the rule's name; `family` its family.
        applied: matches that were applied; `declined`: legal, but not worth it.
        near_misses: partial matches by reason code.
        seconds: time spent on the rule while compiling, where the driver recorded it (`details["rule_seconds"]`).
        gain: median measured speed over the original, of applied matches that were measured; None where none was.
        error: largest relative error that a live comparison showed; None where none was made.
        candidates: how often each replacement was chosen.
        simplifies: whether its matches only take out what computes nothing.
    """

    rule: str
    family: str
    applied: int = 0
    declined: int = 0
    near_misses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    gain: float | None = None
    error: float | None = None
    candidates: Counter[str] = field(default_factory=Counter)
    simplifies: bool = False

    @property
    def legal(self) -> int:
        """Matches that were legal, applied or not: unlike `applied`, it does not depend on the machine's speed."""
        return self.applied + self.declined


@dataclass(frozen=True)
class Repeated(Generic[T]):
    """Equal findings at one source line (of equal layers, as a rule), shown once: the first of them, and how many."""

    first: T
    count: int


def rule_rows(graphs: Sequence[GraphRecord]) -> list[RuleRow]:
    """One row a rule that matched or nearly matched in `graphs`: most applied first, then by name."""
    rows: dict[str, RuleRow] = {}
    for graph in graphs:
        _count(rows, graph)
    for row in rows.values():
        row.gain = _gain([match for graph in graphs for match in graph.applied if match.rule == row.rule])
    return sorted(rows.values(), key=lambda row: (-row.applied, -row.declined, row.rule))


def _count(rows: dict[str, RuleRow], graph: GraphRecord) -> None:
    def row(item: Match | NearMiss) -> RuleRow:
        return rows.setdefault(item.rule, RuleRow(item.rule, item.family))

    for match in graph.applied:
        row(match).applied += 1
        row(match).simplifies = match.simplifies
        then = f", then {match.settled_by}" if match.settled_by else ""
        row(match).candidates[match.candidate + then] += 1
    for match in graph.open_declined:
        row(match).declined += 1
    for miss in graph.near_misses:
        row(miss).near_misses[miss.code] += 1
    for rule, seconds in graph.details.get("rule_seconds", {}).items():
        if rule in rows:
            rows[rule].seconds += seconds
    for rule, errors in graph.errors.items():
        if rule in rows and errors:
            rows[rule].error = max([*errors, rows[rule].error or 0.0])


def _gain(matches: Iterable[Match]) -> float | None:
    gains = [gain for m in matches if m.evidence is not None and (gain := m.evidence.gain(m.candidate)) is not None]
    return statistics.median(gains) if gains else None


def stage_seconds(graphs: Iterable[GraphRecord]) -> dict[str, float]:
    """Seconds of compilation by stage, summed over `graphs`, in the order in which the stages ran."""
    total: dict[str, float] = {}
    for graph in graphs:
        for stage, seconds in graph.seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def frozen_line(graphs: Iterable[GraphRecord]) -> str:
    """Values computed once from weights, as ``"267 weights: 53 convolutions packed, ..."``; empty if nothing was."""
    count = _totals(graphs, "freezing")
    parts = [
        f"{counted(count[name], what)} {how}"
        for name, what, how in (
            ("packed_convolution", "convolution", "packed"),
            ("packed_linear", "linear layer", "packed"),
            ("constants", "constant", f"of {count['bytes'] / 2**20:.1f} MiB"),
        )
        if count[name]
    ]
    return f"{counted(count['weights'], 'weight')}: {', '.join(parts)}" if parts else ""


def layout_line(graphs: Iterable[GraphRecord]) -> str:
    """In which layout convolutions run, and why; empty where there is none."""
    found = [graph.details["channels_last"] for graph in graphs if "channels_last" in graph.details]
    total = sum(spread["convolutions"] for spread in found)
    moved = sum(spread["convolutions"] for spread in found if spread["chosen"])
    before, after = (1e3 * sum(spread["seconds"][i] for spread in found) for i in (0, 1))
    times = f" (measured one by one: {before:.2f} ms as they were, {after:.2f} ms so)" if before else ""
    return f"{moved} of {counted(total, 'convolution')} moved to channels-last{times}" if total else ""


def options_line(graphs: Iterable[GraphRecord]) -> str:
    """Options that differ from the defaults: `template aten, kernels.products library`; empty where none does."""
    values: dict[str, Any] = {}
    for graph in graphs:
        values |= graph.details.get("configuration", {})
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _totals(graphs: Iterable[GraphRecord], detail: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for graph in graphs:
        total.update(graph.details.get(detail, {}))
    return total


def miss_groups(graphs: Iterable[GraphRecord]) -> list[Repeated[NearMiss]]:
    """Near misses grouped by rule, reason and source line; those that came closest to a match first."""
    groups = _grouped(
        (miss for graph in graphs for miss in graph.near_misses),
        key=lambda m: (m.rule, m.code, m.message, m.expected, m.found, m.depth, m.site),
    )
    return sorted(groups, key=lambda g: (-_reached(g.first), -g.count, g.first.rule))


def _reached(miss: NearMiss) -> float:
    return miss.depth / miss.size if miss.size else 0.0


def declined_groups(graphs: Iterable[GraphRecord]) -> list[Repeated[Match]]:
    """Declined matches grouped by rule and source line, most frequent first."""
    matches = (match for graph in graphs for match in graph.open_declined)
    groups = _grouped(matches, key=lambda m: (m.rule, m.tags, m.site))
    return sorted(groups, key=lambda g: (-g.count, g.first.rule))


def fallback_groups(graphs: Iterable[GraphRecord]) -> list[Repeated[Fallback]]:
    """Fallbacks grouped by stage, reason and source line, most frequent first."""
    groups = _grouped((fallback for graph in graphs for fallback in graph.fallbacks), key=lambda f: f)
    return sorted(groups, key=lambda g: (-g.count, g.first.stage, g.first.code))


def kept_calls(graphs: Iterable[GraphRecord]) -> list[KeptCall]:
    """Calls that generated code keeps, by operator and reason, most frequent first."""
    count: Counter[tuple[str, str, str]] = Counter()
    for graph in graphs:
        for call in (call for code in graph.code for call in code.kept):
            count[call.operator, call.code, call.message] += call.count
    return [KeptCall(operator, n, code, message) for (operator, code, message), n in count.most_common()]


def code_line(graphs: Iterable[GraphRecord]) -> str:
    """`72 tensors by 36 kernels, 12 attention; 85 calls kept`; empty where no code was generated."""
    parts = [code for graph in graphs for code in graph.code]
    if not parts:
        return ""
    templates: Counter[str] = Counter()
    for part in parts:
        templates.update(part.templates)
    made = "".join(f", {count} {name}" for name, count in sorted(templates.items()))
    kept = sum(call.count for part in parts for call in part.kept)
    tensors, kernels = sum(p.tensors for p in parts), sum(p.kernels for p in parts)
    return f"{counted(tensors, 'tensor')} by {counted(kernels, 'kernel')}{made}; {counted(kept, 'call')} kept"


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[Repeated[T]]:
    first: dict[Hashable, T] = {}
    count: Counter[Hashable] = Counter()
    for item in items:
        first.setdefault(key(item), item)
        count[key(item)] += 1
    return [Repeated(item, count[k]) for k, item in first.items()]
