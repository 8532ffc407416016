"""Measurements of each rewrite, and how much it changes results: the evidence behind applied and declined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..reason import Site
from ..record import ORIGINAL, Evidence, GraphRecord, Match
from .entry import Entry
from .summary import rule_rows

ROUNDING = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""The relative distance of neighbouring numbers, by dtype."""
_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Bar:
    """One timed program: `part` is its time as part of the longest of its group."""

    name: str
    seconds: float
    part: float
    chosen: bool


@dataclass(frozen=True)
class Gain:
    """Equal matches with one measurement.

    Args:
        match: the first of them; `count` how many there are.
        applied: whether they were applied.
        bars: the original and every candidate that was timed.
        gain: how many times faster than the original what runs now is (1 where declined); None where not measured.
        saved: seconds that they save together, per call.
        sites: their source lines, each once.
    """

    match: Match
    count: int
    applied: bool
    bars: tuple[Bar, ...]
    gain: float | None
    saved: float
    sites: tuple[Site, ...]


def gains(graphs: Sequence[GraphRecord]) -> list[Gain]:
    """Matches with their measurements: what saves most first, what was not measured last."""
    groups: dict[tuple[object, ...], list[Match]] = {}
    for graph in graphs:
        for match in (*graph.applied, *graph.open_declined):
            groups.setdefault((match.rule, match.candidate, match.tags, _measured(match)), []).append(match)
    made = [_gain(matches) for matches in groups.values()]
    return sorted(made, key=lambda g: (not g.bars, -g.saved, not g.applied, -g.count, g.match.rule))


def _measured(match: Match) -> object:
    """The measurement of a match, once for all of the same shapes; its source line where there is none."""
    times = match.evidence.times if match.evidence is not None else {}
    return tuple(times.items()) or match.site


def _gain(matches: Sequence[Match]) -> Gain:
    match = matches[0]
    times = match.evidence.times if match.evidence is not None else {}
    longest = max(times.values(), default=0.0)
    chosen = match.candidate or ORIGINAL
    bars = tuple(Bar(name, s, s / longest if longest else 0.0, name == chosen) for name, s in times.items())
    now = times.get(chosen)
    saved = (times[ORIGINAL] - now) * len(matches) if now is not None and ORIGINAL in times else 0.0
    gain = times[ORIGINAL] / now if now and ORIGINAL in times else None
    sites = tuple(dict.fromkeys(m.site for m in matches if m.site is not None))
    return Gain(match, len(matches), bool(match.candidate), bars, gain, saved, sites)


@dataclass(frozen=True)
class ErrorRow:
    """The error that one rule adds, as measured.

    Args:
        rule: the rule.
        smallest: and `largest` relative error, in the 2-norm.
        count: comparisons.
        live: on the user's own inputs (``verify="live"``), or else on those that candidates were timed on.
    """

    rule: str
    smallest: float
    largest: float
    count: int
    live: bool


def error_rows(graphs: Sequence[GraphRecord]) -> list[ErrorRow]:
    """The errors of applied rules, largest first: on live inputs where they were compared there."""
    rows = []
    for rule in (row.rule for row in rule_rows(graphs) if row.applied):
        live = [error for graph in graphs for error in graph.errors.get(rule, ())]
        errors = live or list(_timed_errors(graphs, rule))
        if errors:
            worst = math.inf if any(map(math.isnan, errors)) else max(errors)
            rows.append(ErrorRow(rule, min(errors), worst, len(errors), bool(live)))
    return sorted(rows, key=lambda row: -row.largest)


def _timed_errors(graphs: Iterable[GraphRecord], rule: str) -> Iterable[float]:
    for match in (m for graph in graphs for m in graph.applied if m.rule == rule):
        evidence: Evidence | None = match.evidence
        if evidence is not None and match.candidate in evidence.errors:
            yield evidence.errors[match.candidate]


def unmeasured_errors(graphs: Sequence[GraphRecord]) -> list[str]:
    """Applied rules whose error nothing has measured."""
    measured = {row.rule for row in error_rows(graphs)}
    return [row.rule for row in rule_rows(graphs) if row.applied and row.rule not in measured]


def dtype(entry: Entry) -> str:
    """The floating-point type that a target computes in: the commonest of its graphs', or the one asked for."""
    counts = Counter(
        node.type.partition("[")[0] for graph in entry.graphs for taken in graph.snapshots for node in taken.nodes
    )
    seen = [name for name, _ in counts.most_common() if name in ROUNDING]
    return seen[0] if seen else _DTYPES.get(entry.choices.get("dtype", "float32"), "f32")


LOWEST, HIGHEST = -17.0, 1.0
"""Decimal exponents at the ends of the scale of errors."""


def on_scale(error: float | None) -> float:
    """The position of an error on the logarithmic scale, in percent; zero at its start, NaN and infinity at its end."""
    if not error:
        return 0.0
    if not math.isfinite(error):
        return 100.0
    return min(max((math.log10(error) - LOWEST) / (HIGHEST - LOWEST), 0.0), 1.0) * 100
