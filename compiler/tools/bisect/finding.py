"""The finding of a search: the cause of a failure, and a few lines about it for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....rewrites.switches import KINDS, Step
from .subject import Verdict

_OUTSIDE = {
    "torch": "it fails with backend 'aot_eager' too, which is torch without a compiler: no fault of regraft's",
    "base": "it fails with everything left out that can be: the fault is in what every compilation does",
}


@dataclass(frozen=True)
class Cause:
    """The cause of a failure.

    Attributes:
        verdict: how the program fails, everything on.
        culprit: the step with which it begins to fail; None where there is no failure, or where it is in no step.
        number: which of the steps of its kind it is, from 1; `total` how many asked.
        first: how it fails with that step and nothing after it.
        before: how it was without that step.
        workaround: what option ``without`` makes it right; empty where neither a name nor a kind does.
        where: what fails, where no step does: ``"torch"`` or ``"base"``, what every compilation does.
        faults: errors of the compiler's own in the first run, which it survived without the part that failed.
        trials: how many times it was compiled and run.
    """

    verdict: Verdict
    culprit: Step | None = None
    number: int = 0
    total: int = 0
    first: Verdict | None = None
    before: Verdict | None = None
    workaround: tuple[str, ...] = ()
    where: str = ""
    faults: tuple[str, ...] = ()
    trials: int = 1

    @property
    def ok(self) -> bool:
        """Whether there is no failure."""
        return self.verdict.right

    def __str__(self) -> str:
        return "\n".join([*_lines(self), *(f"contained {fault}" for fault in self.faults)])


def _lines(finding: Cause) -> Iterator[str]:
    if finding.ok:
        yield f"right{_numbers(finding.verdict)}: nothing to search for"
        return
    yield f"fails     {finding.verdict}{_numbers(finding.verdict)}"
    culprit = finding.culprit
    if culprit is None:
        yield f"cause     {_OUTSIDE[finding.where]}"
        return
    yield f"cause     {culprit.kind} {culprit.name}, number {finding.number} of {finding.total}: {KINDS[culprit.kind]}"
    yield f"where     {culprit.site if culprit.site is not None else 'no source line'}"
    if culprit.nodes:
        yield f"nodes     {', '.join(culprit.nodes[:8])}{', ...' if len(culprit.nodes) > 8 else ''}"
    if finding.first is not None and finding.before is not None:
        yield f"with it   {finding.first}{_numbers(finding.first)}"
        yield f"before    {finding.before}{_numbers(finding.before)}"
    yield f"go round  {_workaround(finding)}"
    yield f"runs      {finding.trials}"


def _numbers(verdict: Verdict) -> str:
    if verdict.error is None:
        return ""
    eager = "" if verdict.eager is None else f", eager's own {verdict.eager:.3g}"
    return f" (error {verdict.error:.3g}{eager})"


def _workaround(finding: Cause) -> str:
    if not finding.workaround:
        return "no single name or kind left out makes it right"
    return f'options={{"without": {finding.workaround!r}}} (tried: right)'
