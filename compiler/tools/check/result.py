"""The result of a check: how much was compared, what was not, and counterexamples."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ....rewrites.rule import Rule
from ....rewrites.sample import Sample
from .case import Case
from .drawn import DrawnExample
from .scope import Scope
from .script import script_of


@dataclass(frozen=True)
class Failure:
    """A counterexample: what was drawn, and what went wrong.

    Args:
        rule: the rule that fails.
        candidate: the replacement that is wrong; empty where the rule itself is.
        sample: the sample that it was drawn for.
        drawn: sizes, dtype, layouts and values.
        problem: one sentence.
        many: whether it takes many draws to see.
    """

    rule: Rule
    candidate: str
    sample: Sample
    drawn: DrawnExample
    problem: str
    many: bool = False

    def __str__(self) -> str:
        name = "/".join(filter(None, (self.rule.name, self.candidate)))
        return f"{name}: {self.problem}\n  with {self.sample}\n  drawn {self.drawn}"

    @cached_property
    def script(self) -> str:
        """A program of its own that shows this failure, and exits with 1 as long as it is there."""
        case = Case.of(self.rule, self.sample, self.drawn)
        return script_of(case, self.sample, self.drawn, self.candidate, self.problem)


@dataclass
class CheckResult:
    """The findings of `check`. It is a property test, no proof: it shows what is wrong where it looked.

    Args:
        rule: its name.
        runs: how many rewritten programs were compared.
        declined: how many the rule, or its candidate, rightly did not match.
        refused: how many near misses were refused, as declared.
        unused: candidates that no drawn program could use, e.g. kernels for another device: nothing was proven of them.
        failures: counterexamples.
        seconds: the time that it took.
        scope: what was compared: dtypes, ranks, sizes, gradients.
        not_covered: what was not, one line each.
    """

    rule: str
    runs: int = 0
    declined: int = 0
    refused: int = 0
    unused: tuple[str, ...] = ()
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    scope: Scope = field(default_factory=Scope)
    not_covered: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing failed; what was not compared may still be wrong."""
        return not self.failures and self.runs > 0

    @property
    def summary(self) -> str:
        """A summary in one line."""
        text = f"{self.runs} compared, {self.declined} declined, {self.refused} refused, {self.seconds:.1f} s"
        return f"{text}; not usable here: {', '.join(self.unused)}" if self.unused else text

    def __str__(self) -> str:
        head = f"{self.rule}: {'no counterexample found' if self.ok else 'FAILED'} ({self.summary})"
        return "\n".join([head, *map(str, self.failures), *([] if self.failures else [self.told_scope])])

    @property
    def told_scope(self) -> str:
        """The scope of the property test, and what lies outside of it, in lines."""
        lines = [f"  compared: {self.scope}", *(f"  not covered: {text}" for text in self.not_covered)]
        return "\n".join(lines)
