"""Is every guard needed? If one condition of a rule is dropped, a sample must fail.

sdpa without guard floating       its near miss of integers, refused="dtype-not-floating", matches
linear/onednn without applies     a sample that the candidate cannot take is given to it

A condition whose removal no sample notices is not needed or not tested: `unguarded` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from ....rewrites.reason import Reason
from ....rewrites.rule import Candidate, Guard, Rule
from ....rewrites.sample import Sample
from .case import Case, quiet
from .drawn import DrawnExample

_ALWAYS: Any = next(f.default for f in fields(Candidate) if f.name == "applies")


@dataclass(frozen=True)
class Weakened:
    """A rule without one of its conditions.

    Args:
        condition: e.g. ``"guard floating"``, ``"dims query"``, ``"applies flash"``.
        rule: the rule without it.
        whole: the rule with it; conditions of candidates are checked with the candidate alone.
    """

    condition: str
    rule: Rule
    whole: Rule

    @property
    def alone(self) -> bool:
        """Whether it is a condition of a candidate."""
        return self.condition.startswith("applies ")


def weakened(rule: Rule) -> Iterator[Weakened]:
    """The rule with one guard, one entry of `dims` or one candidate's `applies` dropped, one after the other."""
    for i, guard in enumerate(rule.guards):
        guards = rule.guards[:i] + rule.guards[i + 1 :]
        yield Weakened(f"guard {guard.function.__name__}", replace(rule, guards=guards), rule)
    for name in rule.dims:
        yield Weakened(f"dims {name}", replace(rule, dims={n: d for n, d in rule.dims.items() if n != name}), rule)
    for candidate in rule.candidates:
        if candidate.applies is not _ALWAYS:
            only = replace(rule, candidates=(candidate,))
            yield Weakened(f"applies {candidate.name}", without_applies(only), only)


def without_applies(rule: Rule) -> Rule:
    """The rule with candidates that accept every match."""
    return replace(rule, candidates=tuple(replace(c, applies=_ALWAYS) for c in rule.candidates))


def noticed(rule: Rule) -> dict[str, Sample | None]:
    """For each condition of a rule, a sample that notices its removal; None if there is none.

    Removal of a guard or of dims is noticed by a near miss that then matches, raises, or is refused for other reasons
    than it declares; removal of a candidate's condition by any sample that the candidate alone then accepts.
    """
    cases = {sample: Case.of(rule, sample, DrawnExample.plain(sample)) for sample in rule.samples}
    with quiet():
        misses = {s: _refusing(rule, case) for s, case in cases.items() if s.refused}
        found: dict[str, Sample | None] = {}
        for one in weakened(rule):
            able = [s for s in cases if one.alone or one.condition in misses.get(s, ())]
            found[one.condition] = next((s for s in able if _notices(one, s, cases[s])), None)
    return found


def _refusing(rule: Rule, case: Case) -> set[str]:
    """The conditions that say no somewhere in a program: only their removal can change what becomes of it."""
    noted: set[str] = set()

    def noting(guard: Guard) -> Guard:
        def function(**operands: Any) -> Reason | None:
            reason = guard.function(**operands)
            noted.update([f"guard {guard.function.__name__}"] if reason is not None else ())
            return reason

        return replace(guard, function=function)

    codes = _outcome(case, replace(rule, guards=tuple(map(noting, rule.guards))))
    return noted | ({f"dims {name}" for name in rule.dims} if "dims-differ" in codes else set())


def unguarded(rule: Rule) -> list[str]:
    """The conditions whose removal no sample notices."""
    return [condition for condition, sample in noticed(rule).items() if sample is None]


def _notices(one: Weakened, sample: Sample, case: Case) -> bool:
    if not one.alone:
        return sample.refused in _outcome(case, one.whole) and sample.refused not in _outcome(case, one.rule)
    before = _outcome(case, one.whole)
    return bool(before) and not before & _outcome(case, one.rule)


def _outcome(case: Case, rule: Rule) -> frozenset[str]:
    """The codes of a rule's refusals, empty where it matches; what it raises counts as none of its reasons."""
    try:
        return case.rewritten(rule).codes
    except Exception:
        return frozenset()
