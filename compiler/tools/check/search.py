"""`check`: looks for a counterexample to a rule, and lets hypothesis make it small.

every sample as it is        must match, and agree
what hypothesis draws        must match wherever sizes are ordinary, and agree
every near miss              must be refused with the code that it declares
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import DEFAULT_SIZES, Sample
from ...backend import resolve_rules
from .case import Case, Rewritten, alone, quiet
from .compare import compare
from .drawn import Drawn, drawings, hypothesis
from .guards import without_applies
from .operands import placed
from .result import CheckResult, Failure

_ELSEWHERE = "device-unsupported"


def check(rule: Rule | str, *, examples: int = 50, seed: int = 0, device: str = "cpu") -> CheckResult:
    """Run the property test of one rule.

    Args:
        rule: a rule or the name of one.
        examples: how many programs to draw, beside every sample as it is; each tries every candidate.
        seed: the same seed draws the same programs.
        device: where the programs run, ``"cpu"`` or ``"cuda"``. On another one than the CPU a rule may say that it is
            not for it.

    Returns:
        The result; `ok` where no counterexample was found. At most one drawn failure per candidate is kept, made as
        small as hypothesis can make it.

    Raises:
        ModuleNotFoundError: hypothesis, which draws the examples, is not installed.
        ValueError: there is no such device here.
    """
    hypothesis()
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise ValueError(f"rules are checked on 'cpu' or 'cuda', where there is one; not on {device!r}")
    (chosen,) = resolve_rules((rule,))
    start = time.perf_counter()
    devices = [] if device == "cpu" else [device]
    with torch.random.fork_rng(devices=devices), quiet():
        result = _Search(chosen, examples, seed, device).run()
    result.seconds = time.perf_counter() - start
    return result


class _FoundError(AssertionError):
    """Told to hypothesis, which then looks for a smaller one."""


class _Search:
    """The search for counterexamples to one rule."""

    def __init__(self, rule: Rule, examples: int, seed: int, device: str) -> None:
        self.rule, self.examples, self.seed, self.device = rule, examples, seed, device
        self.samples = [placed(s, device) for s in rule.samples]
        self.matching = [s for s in self.samples if not s.refused]
        self.used: set[str] = set()
        self.result = CheckResult(rule.name)

    def run(self) -> CheckResult:
        """Samples as they are, then near misses, then drawn ones until each candidate has failed or none does."""
        names = list(dict.fromkeys(c.name for c in self.rule.candidates))
        every, failed = tuple(names), dict[str, Failure]()
        for sample in self.matching:
            failed |= {f.candidate: f for f in self._as_it_is(sample, [n for n in names if n not in failed])}
        for sample in self.samples:
            if sample.refused:
                self.result.failures += self._not_refused(sample)
        while names and (found := self._drawn(names)) is not None:
            failed[found.candidate] = found  # smaller than a sample as it is
            names.remove(found.candidate)
        self.result.failures += failed.values()
        self.result.unused = tuple(n for n in every if n not in {*self.used, *failed})
        return self.result

    def _as_it_is(self, sample: Sample, names: Sequence[str]) -> Iterator[Failure]:
        """A sample, plain; where no candidate can be used for it, also under the option that allows more of them."""
        before = self.result.runs
        yield from self._failures(sample, Drawn.plain(sample), names)
        if self.result.runs == before:
            yield from self._failures(sample, replace(Drawn.plain(sample), nan="safe"), names)

    def _drawn(self, names: Sequence[str]) -> Failure | None:
        """The smallest failure of one of these candidates that hypothesis finds."""
        library, found = hypothesis(), []
        kept = self.result.runs, self.result.declined

        @library.settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            phases=(library.Phase.generate, library.Phase.shrink),
            suppress_health_check=list(library.HealthCheck),
        )
        @library.seed(self.seed)
        @library.given(drawings(self.rule, self.matching))
        def holds(drawing: tuple[Sample, Drawn]) -> None:
            failure = next(self._failures(*drawing, names), None)
            if failure is not None:
                found.append(failure)
                raise _FoundError(failure.problem)

        try:
            holds()
        except Exception:
            if not found:  # a fault of the search itself
                raise
            self.result.runs, self.result.declined = kept  # what was run to make it small proves nothing
        return found[-1] if found else None

    def _failures(self, sample: Sample, drawn: Drawn, names: Sequence[str]) -> Iterator[Failure]:
        """What goes wrong on one drawn example, by candidate; counts what does not."""
        case = Case.of(self.rule, sample, drawn)
        try:
            case.program(*case.operands)
        except Exception as error:  # such sizes make no program: what is declared must
            if drawn == Drawn.plain(sample):
                yield Failure(self.rule, "", sample, drawn, f"the pattern itself raises {_told(error)}")
            return
        for name in names:
            try:
                problem = self._problem(case, name, must_match=drawn.ordinary)
            except Exception as error:  # a counterexample like any other, to be made small and shown
                problem = f"raises {_told(error)}"
            if problem is not None:
                yield Failure(self.rule, name, sample, drawn, problem)

    def _problem(self, case: Case, candidate: str, *, must_match: bool) -> str | None:
        """What is wrong with the program that one candidate makes, or None."""
        rule = alone(self.rule, candidate)
        rewritten = case.rewritten(rule)
        problem = _why_not(case, rule, rewritten) if must_match and not rewritten.whole else None
        if problem is not None or not rewritten.applied:
            self.result.declined += 1
            return problem
        self.result.runs += 1
        self.used.add(candidate)
        found = compare(case, rewritten)
        return None if found is None else str(found)

    def _not_refused(self, sample: Sample) -> Iterator[Failure]:
        """A near miss that matches, or is refused for another reason; with other sizes it must not match either."""
        plain = Drawn.plain(sample)
        own_sizes = sample.sizes != DEFAULT_SIZES  # chosen for what is wrong with them
        for drawn in (plain, replace(Drawn.plain(sample, 1 if own_sizes else 2), dynamic=True)):
            case = Case.of(self.rule, sample, drawn)
            if drawn != plain and not _runs(case):  # sizes that the sample fixes may not fit to these
                continue
            problem = not_refused(case, sample.refused, any_reason=drawn != plain)
            if problem is not None:
                yield Failure(self.rule, "", sample, drawn, problem)
                return
        self.result.refused += 1


def _runs(case: Case) -> bool:
    """Whether eager takes these operands at all."""
    try:
        case.program(*case.operands)
    except Exception:
        return False
    return True


def not_refused(case: Case, code: str, *, any_reason: bool = False) -> str | None:
    """Why a near miss is none: it matches, or is not refused with this code; None where all is well."""
    try:
        rewritten = case.rewritten()
    except Exception as error:
        return f"should be refused with {code!r}, but raises {_told(error)}"
    if rewritten.whole:
        return f"should be refused with {code!r}, but matches"
    # Samples say what refuses them on a CPU; elsewhere the rule as a whole may not be for the device.
    if code in rewritten.codes or any_reason or (case.elsewhere and _ELSEWHERE in rewritten.codes):
        return None
    return f"should be refused with {code!r}, but the reasons are {', '.join(sorted(rewritten.codes)) or 'none'}"


def _why_not(case: Case, rule: Rule, rewritten: Rewritten) -> str | None:
    """Why a rule did not match where it had to; None where the candidate cannot be used, or not for symbolic sizes."""
    accepted = {"kernel-unavailable", *(("size-symbolic",) if case.dynamic else ())}
    accepted |= {"device-unsupported"} if case.elsewhere else set()
    if accepted & rewritten.codes or case.rewritten(without_applies(rule)).whole:
        return None
    return "did not match: " + ("; ".join(m.message for m in rewritten.record.near_misses) or "no operator fits")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
