"""Two reports compared, for CI: which rule matches less than it did, which fallback is new.

Matches are counted as legal ones, applied or declined: what is worth it may differ between two machines, what is legal
may not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .report.document import Report
from .report.entry import Entry
from .report.summary import rule_rows


@dataclass(frozen=True)
class Change:
    """One difference: `what` changed for `target`, from `old` to `new`."""

    target: str
    what: str
    old: int
    new: int

    def __str__(self) -> str:
        return f"{self.target}: {self.what}: {self.old} -> {self.new}"


@dataclass(frozen=True)
class Diff:
    """All differences between two reports.

    Args:
        regressions: a rule that matches less, a fallback that is new or more frequent, a target that is gone or wrong.
        improvements: the same the other way round, and new targets.
    """

    regressions: list[Change] = field(default_factory=list)
    improvements: list[Change] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 where something got worse, else 0."""
        return 1 if self.regressions else 0

    def __str__(self) -> str:
        worse = [f"worse   {change}" for change in self.regressions]
        better = [f"better  {change}" for change in self.improvements]
        return "\n".join(worse + better) or "no difference"


def compare(old: Report, new: Report) -> Diff:
    """Changes for the worse and for the better from `old` to `new`; targets are paired by name and choices."""
    before, after = _by_label(old), _by_label(new)
    diff = Diff()
    for label in sorted(before.keys() | after.keys()):
        for what, was, now, more_is_better in _facts(before.get(label, []), after.get(label, [])):
            if was != now:
                better = (now > was) == more_is_better
                (diff.improvements if better else diff.regressions).append(Change(label, what, was, now))
    return diff


def _by_label(report: Report) -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for entry in report.entries:
        entries.setdefault(entry.label, []).append(entry)
    return entries


def _facts(old: list[Entry], new: list[Entry]) -> Iterator[tuple[str, int, int, bool]]:
    """(what, count before, count after, whether more is better) of one target."""
    if not old or not new:
        yield "reports of this target", len(old), len(new), True
        return
    yield from ((f"legal matches of {rule}", *pair, True) for rule, pair in _pairs(_matches(old), _matches(new)))
    yield from ((f"fallback {name}", *pair, False) for name, pair in _pairs(_fallbacks(old), _fallbacks(new)))
    yield "wrong results", _wrong(old), _wrong(new), False


def _pairs(old: Counter[str], new: Counter[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    return ((key, (old[key], new[key])) for key in sorted(old.keys() | new.keys()))


def _matches(entries: list[Entry]) -> Counter[str]:
    return Counter({row.rule: row.legal for row in rule_rows([g for entry in entries for g in entry.graphs])})


def _fallbacks(entries: list[Entry]) -> Counter[str]:
    return Counter(f"{f.stage}/{f.code}" for entry in entries for graph in entry.graphs for f in graph.fallbacks)


def _wrong(entries: list[Entry]) -> int:
    return sum(entry.outcome is not None and not entry.outcome.right for entry in entries)
