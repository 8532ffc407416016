"""The containment of rules that raise: the rule is left out, and the original graph is rewritten without it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from .backup import Backup
from .faults import Faults
from .record import GraphRecord
from .rule import Rule


@dataclass
class Place:
    """The current position of a run, for error messages."""

    what: str = "rewriting"
    rule: Rule | None = None

    def at(self, what: str, rule: Rule | None = None) -> None:
        """Note the next step, and the rule for which it is done."""
        self.what, self.rule = what, rule


def contained(
    graph_module: fx.GraphModule,
    rules: list[Rule],
    record: GraphRecord,
    faults: Faults,
    stage: str,
    run: Callable[[list[Rule], Backup, Place], bool],
) -> bool:
    """Rewrite a graph; if a rule raises, leave it out and start again from the original graph.

    Args:
        graph_module: the graph, which `run` changes in place.
        rules: the rules to start with.
        record: where `run` records what it does.
        faults: handles the errors.
        stage: the name of the stage in the record.
        run: one run over the graph; it takes the backup before it changes anything, and notes its place.

    Returns:
        Whether the graph changed.
    """
    while rules:
        backup, place, known = Backup(graph_module), Place(), _RecordState.of(record)
        try:
            return run(rules, backup, place)
        except Exception as error:  # the user's program must survive errors of regraft and of rules
            if faults.lets_through(error):
                faults.name(
                    error, place.what if place.rule is None else f"rule {place.rule.name}{_part(place.rule, error)}"
                )
                raise
            backup.restore()
            known.restore(record)
            if place.rule is None:
                outcome = "the graph runs as it was written"
                faults.tell(place.what, outcome, error, stage=stage, code="rewrite-failed")
                return False
            culprit = place.rule
            rules = [rule for rule in rules if rule is not culprit]
            what = f"rule {culprit.name}{_part(culprit, error)}"
            outcome = "it is left out of this graph, the other rules are not"
            faults.tell(what, outcome, error, stage=stage, code="rule-failed", rule=culprit.name)
    return False


def _part(rule: Rule, error: Exception) -> str:
    """The function of a rule that raised, e.g. ``", guard slope_below_one()"``; empty if it was none of the rule's."""
    parts = {id(_code(rule.pattern)): "its pattern"}
    parts |= {id(_code(guard.function)): f"guard {guard.function.__name__}()" for guard in rule.guards}
    parts |= {id(_code(derive)): f"derived value {name}" for name, derive in rule.derived.items()}
    parts |= {id(_code(c.applies)): f"condition of candidate {c.name}" for c in rule.candidates}
    parts |= {id(_code(c.function)): f"candidate {c.name}" for c in rule.candidates}
    frames = traceback.walk_tb(error.__traceback__)
    found = [parts[id(frame.f_code)] for frame, _ in frames if id(frame.f_code) in parts]
    return f", {found[-1]}," if found else ""


def _code(function: Any) -> Any:
    """The code of a function, or of the function in a partial; for builtins, an object that equals no code."""
    return getattr(getattr(function, "func", function), "__code__", function)


@dataclass(frozen=True)
class _RecordState:
    """The state of a record before a run."""

    counts: dict[str, int]

    @classmethod
    def of(cls, record: GraphRecord) -> _RecordState:
        return cls({name: len(getattr(record, name)) for name in ("applied", "declined", "near_misses", "snapshots")})

    def restore(self, record: GraphRecord) -> None:
        """Remove what was recorded since."""
        for name, count in self.counts.items():
            del getattr(record, name)[count:]
