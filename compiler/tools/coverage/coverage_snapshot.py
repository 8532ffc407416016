"""Coverage snapshots: how often each rule matches each target, small enough to commit, held against the code by CI.

    {"schema": "regraft-coverage", "targets": {"hf:bert --layers 2 --mask --tiny": {"sdpa": 2, "linear": 14}, ...}}

Legal matches are counted, applied or declined: what is worth it differs between machines, what is legal does not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ....rewrites.report.document import Report, ReportError
from ....rewrites.words import counted

SCHEMA = "regraft-coverage"

Counts = dict[str, dict[str, int]]


def counts(report: Report) -> Counts:
    """Legal matches by target and rule. What depends on the machine (templates, packed weights) is left out."""
    made: Counts = {}
    for entry in report.entries:
        matched = Counter(m.rule for g in entry.graphs for m in (*g.applied, *g.declined) if m.stage == "forward")
        made[entry.label] = dict(sorted(matched.items()))
    return made


def write(path: Path, made: Counts) -> None:
    """Write a snapshot, one line a target, so that diffs can be read."""
    rows = [f"  {json.dumps(target)}: {json.dumps(rules)}" for target, rules in sorted(made.items())]
    text = ",\n".join(rows)
    path.write_text(f'{{"schema": "{SCHEMA}", "targets": {{\n{text}\n}}}}\n', encoding="utf-8")


def read(path: Path) -> Counts:
    """Read a snapshot.

    Raises:
        ReportError: the file is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ReportError(f"{path} is no coverage snapshot: expected an object with schema {SCHEMA!r}")
    return dict(data["targets"])


def drops(old: Mapping[str, Mapping[str, int]], new: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Lines about rules that match less than they did, among the targets that both snapshots have."""
    return [
        f"{target}: {rule} matched {counted(was, 'time')}, now {new[target].get(rule, 0)}"
        for target, rules in sorted(old.items())
        if target in new
        for rule, was in sorted(rules.items())
        if new[target].get(rule, 0) < was
    ]
