"""Coverage: what was matched while a block was open, `with regraft.coverage() as cov: ...`.

Whoever compiles a graph calls `publish(record)`; every open block of the process gets it. Blocks belong to the process,
not to a thread, because a backward graph may be compiled by autograd's own thread.
"""

from __future__ import annotations

import difflib
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .report.document import Report
from .report.entry import Entry
from .report.summary import RuleRow, rule_rows
from .rule import declared_rules
from .words import counted

if TYPE_CHECKING:
    from .record import Fallback, GraphRecord, Match, NearMiss

_lock = threading.Lock()
_open: list[Coverage] = []


def publish(record: GraphRecord) -> None:
    """Hand the record of a compiled graph to every open coverage block.

    The record is kept by reference: what a later stage adds to it (a backward graph compiled lazily) is seen as well.
    """
    with _lock:
        for block in _open:
            block.graphs.append(record)


def is_watched() -> bool:
    """Whether a coverage block is open, so that what is only looked at (snapshots of graphs) is worth recording."""
    with _lock:
        return bool(_open)


def coverage(name: str = "") -> Coverage:
    """A new coverage block; `name` heads its reports."""
    return Coverage(name=name)


def _warn_of_misspelling(name: str) -> None:
    known = {known for rule in declared_rules() for known in (rule.name, rule.family)}
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if close and name not in known:
        warnings.warn(f"no rule and no family is named {name!r}; did you mean {close[0]!r}?", stacklevel=3)


class Coverage:
    """The records of all graphs compiled while the block was open, and questions to them.

    Blocks nest (each sees what is compiled inside it), may be open in several threads, and may be opened again, which
    adds to what they hold.

    Args:
        graphs: records to start with.
        name: heads the reports.
        environment: what the records were made on; by default this process.
    """

    def __init__(
        self, graphs: list[GraphRecord] | None = None, name: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.graphs: list[GraphRecord] = list(graphs or ())
        self.name = name
        self._environment = environment

    def __enter__(self) -> Self:
        with _lock:
            if any(block is self for block in _open):
                raise RuntimeError("this coverage block is open already: use a new one, regraft.coverage()")
            _open.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        with _lock:
            _open[:] = [block for block in _open if block is not self]

    @property
    def applied(self) -> list[Match]:
        """The matches that were applied, in the order of compilation."""
        return [match for graph in self.graphs for match in graph.applied]

    @property
    def declined(self) -> list[Match]:
        """The legal matches that were not applied because they were not worth it; `Match.evidence` says why."""
        return [match for graph in self.graphs for match in graph.open_declined]

    @property
    def near_misses(self) -> list[NearMiss]:
        """The deepest partial matches that did not become a match, with the reason."""
        return [miss for graph in self.graphs for miss in graph.near_misses]

    @property
    def fallbacks(self) -> list[Fallback]:
        """Work that was left to a slower but correct path, with the reasons."""
        return [fallback for graph in self.graphs for fallback in graph.fallbacks]

    @property
    def faults(self) -> list[Fallback]:
        """The fallbacks that are errors of ours; `Fallback.traceback` is the path of a file with the traceback."""
        return [fallback for fallback in self.fallbacks if fallback.fault]

    @property
    def matches(self) -> Counter[str]:
        """How many matches were applied, by rule; a rule that was not applied counts 0."""
        return Counter(match.rule for match in self.applied)

    def count(self, name: str) -> int:
        """How many matches of the rule or family `name` were applied, summed over all graphs.

        It is 0 for a name that nothing has; a warning says so if the name is nearly that of a rule or family.
        """
        found = sum(name in (match.rule, match.family) for match in self.applied)
        if not found and self.graphs:
            _warn_of_misspelling(name)
        return found

    def summary(self) -> list[RuleRow]:
        """One row a rule that matched or nearly matched, most applied first."""
        return rule_rows(self.graphs)

    def report(self) -> Report:
        """The block as a report of one entry, the form that is written, rendered and compared."""
        entries = [Entry(name=self.name, graphs=self.graphs)]
        return Report(entries) if self._environment is None else Report(entries, self._environment)

    def to_json(self) -> dict[str, Any]:
        """The block as plain data for `json.dump`; see `regraft.rewrites.report.document` for the schema."""
        return self.report().to_json()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Coverage:
        """The inverse of `to_json`; a report of several targets becomes one block with all their graphs.

        Raises:
            ReportError: the data is no report, or of an unknown version.
        """
        report = Report.from_json(data)
        name = ", ".join(entry.name for entry in report.entries)
        return cls([graph for entry in report.entries for graph in entry.graphs], name, report.environment)

    def write(self, path: str | Path) -> Path:
        """Write the report to `path`, as JSON or HTML by its suffix, and return the path.

        Raises:
            ReportError: another suffix.
        """
        return self.report().write(path)

    def __str__(self) -> str:
        from .report.text import coverage_view, plain

        return plain(coverage_view(self.graphs))

    def __repr__(self) -> str:
        matches = counted(len(self.applied), "match", "matches")
        return f"<regraft.Coverage: {counted(len(self.graphs), 'graph')}, {matches} applied>"
