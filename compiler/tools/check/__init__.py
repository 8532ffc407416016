"""The property test that every rule carries, derived from its pattern, its candidates and its samples alone.

operands.py      how a tensor of a sample may look: layout and values
drawn.py         hypothesis draws sizes, dtypes, looks and gradients
case.py          the program that the rule's pattern makes of them, captured and rewritten by the real driver
compare.py       do both agree, by the rule's contract? distribution.py: where random draws differ on purpose
search.py        `check`: looks for a counterexample, and makes it small
script.py        a counterexample as a program of its own, which replay.py runs
guards.py        does every guard have an operand that only it refuses?
"""

from __future__ import annotations

from .case import refusals
from .guards import Weakened, noticed, unguarded, weakened
from .result import CheckResult, Failure
from .search import check

__all__ = ["CheckResult", "Failure", "Weakened", "check", "noticed", "refusals", "unguarded", "weakened"]
