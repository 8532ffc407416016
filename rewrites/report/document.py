"""The report as a file: what was compiled where, what the rules did, and whether it was right and worth it.

Schema, version 2::

    {"schema": "regraft-report", "version": 2,
     "environment": {"regraft": ..., "torch": ..., "python": ..., "device": ..., "cpu": ..., "threads": ...},
     "targets": [{"name": "hf:bert", "choices": {"layers": "2", "mask": ""}, "graphs": [GraphRecord, ...],
                  "outcome": Outcome | null}]}

Version 1, which had no snapshots of graphs and no errors beside times, is read as well.

A `regraft.coverage()` block is a report of one target; both are read, compared and rendered by the same code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine import environment
from .codec import decode_graph, encode
from .entry import Entry, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "regraft-report"
VERSION = 2
READABLE = (1, 2)


class ReportError(ValueError):
    """A file that is no report, or that this version cannot read or write."""


@dataclass
class Report:
    """Targets that were compiled in one environment."""

    entries: list[Entry]
    environment: dict[str, str] = field(default_factory=environment)

    @property
    def right(self) -> bool:
        """Whether every target that was held against eager agrees with it."""
        return all(entry.outcome.right for entry in self.entries if entry.outcome is not None)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        head = {"schema": SCHEMA, "version": VERSION, "environment": self.environment}
        return {**head, "targets": [encode(entry) for entry in self.entries]}

    @classmethod
    def from_json(cls, data: Any) -> Report:
        """The inverse of `to_json`.

        Raises:
            ReportError: the data is no report, or of an unknown version.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ReportError(f"this is no regraft report: expected an object with schema {SCHEMA!r}")
        if data.get("version") not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise ReportError(f"report version {data.get('version')!r} is unknown; this regraft reads versions {known}")
        try:
            return cls([_entry(item) for item in data["targets"]], dict(data["environment"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"the report is damaged: {type(error).__name__}: {error}") from error

    @classmethod
    def read(cls, path: str | Path) -> Report:
        """The report in a JSON file.

        Raises:
            ReportError: the file is missing, or holds no report.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ReportError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ReportError(f"{path}: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the report to `path`, as JSON or HTML by its suffix, and return the path.

        Raises:
            ReportError: another suffix, or a place that cannot be written to.
        """
        path = Path(path)
        if path.suffix not in (".json", ".html"):
            raise ReportError(f"cannot write {path.name}: the suffix chooses the form, .json or .html")
        try:
            path.write_text(self._rendered(path.suffix), encoding="utf-8")
        except OSError as error:
            raise ReportError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    def _rendered(self, suffix: str) -> str:
        if suffix == ".json":
            return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        from .html import render

        return render(self.entries, self.environment)


def _entry(data: Mapping[str, Any]) -> Entry:
    outcome = None if data["outcome"] is None else _outcome(data["outcome"])
    return Entry(data["name"], [decode_graph(g) for g in data["graphs"]], dict(data["choices"]), outcome)


def _outcome(data: Mapping[str, Any]) -> Outcome:
    values: dict[str, Any] = {name: float(value) if isinstance(value, str) else value for name, value in data.items()}
    return Outcome(**values)
