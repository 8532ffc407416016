"""A finding of the search for people."""

from __future__ import annotations

from collections.abc import Iterator

from ....rewrites.switches import KINDS
from .search import Finding
from .subject import Verdict

_OUTSIDE = {
    "torch": "it fails with backend 'aot_eager' too, which is torch without a compiler: no fault of regraft's",
    "base": "it fails with everything left out that can be: the fault is in what every compilation does",
}


def finding_text(finding: Finding) -> str:
    """A few lines: how it fails, what causes it, where, and what to do."""
    return "\n".join([*_lines(finding), *(f"contained {fault}" for fault in finding.faults)])


def _lines(finding: Finding) -> Iterator[str]:
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


def _workaround(finding: Finding) -> str:
    if not finding.workaround:
        return "no single name or kind left out makes it right"
    return f'options={{"without": {finding.workaround!r}}} (tried: right)'
