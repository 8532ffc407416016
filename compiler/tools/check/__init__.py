"""The property test of a rule, derived from its pattern, its candidates and its samples.

operands.py      layouts and values of the tensors of a sample
drawn.py         hypothesis draws sizes, dtypes, layouts, values and gradients
case.py          the program of the rule's pattern on these tensors, captured and rewritten by the driver
compare.py       do both agree within the rule's contract? distribution.py: if random draws differ on purpose
search.py        `check`: finds a counterexample, and makes it small
script.py        a counterexample as a script, which replay.py runs
guards.py        is there a sample for each guard that only this guard refuses?
"""

from __future__ import annotations

from .case import refusals
from .guards import Weakened, noticed, unguarded, weakened
from .result import CheckResult, Failure
from .search import check

__all__ = ["CheckResult", "Failure", "Weakened", "check", "noticed", "refusals", "unguarded", "weakened"]
