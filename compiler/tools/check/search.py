"""`check`: looks for a counterexample to a rule, and lets hypothesis make it small.

every sample as it is        must match, and agree
the sweep                    every dtype, layout, kind of size, rank and variant at least once; see sweep.py
what hypothesis draws        must match wherever sizes are ordinary, and agree
low precision, many draws    must not be biased; see bias.py
every near miss              must be refused with the code that it declares

What is no sample's own (variants.py) may be refused. Every rewritten program runs on several kinds of values.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import Sample
from ...options.rules import resolve_rules
from .bias import LOW, biased
from .case import Case, Rewritten, alone, quiet
from .compare import compare
from .derivatives import own_backwards
from .drawn import DrawnExample, drawings, hypothesis
from .guards import without_applies
from .operands import Look, differentiable, placed, tensors
from .result import CheckResult, Failure
from .scope import not_covered
from .shrink import smallest
from .sweep import sweep, with_other_values
from .variants import Variant, variants

_ELSEWHERE = "device-unsupported"
_GLANCE = 6  # examples of the sweep that are tried before all that takes longer
_OTHER_VALUES = 6  # kinds of values beside the drawn one that a rewritten program is run on, at most


def check(rule: Rule | str, *, examples: int = 50, seed: int = 0, device: str = "cpu") -> CheckResult:
    """Run the property test of one rule.

    Args:
        rule: a rule or the name of one.
        examples: how many programs to draw, beside every sample as it is and at most as many that are tried in any
            case; each tries every candidate.
        seed: the same seed draws the same programs.
        device: where the programs run, ``"cpu"`` or ``"cuda"``. On another one than the CPU a rule may say that it is
            not for it.

    Returns:
        The result; `ok` where no counterexample was found, `not_covered` what was not looked at. At most one failure
        per candidate is kept, made small.

    Raises:
        ModuleNotFoundError: hypothesis, which draws the examples, is not installed.
        ValueError: there is no such device here.
    """
    hypothesis()
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        known = "there is none here" if device.startswith("cuda") else "only on 'cpu' and 'cuda'"
        raise ValueError(f"rules cannot be checked on {device!r}: {known}")
    (chosen,) = resolve_rules((rule,))
    start = time.perf_counter()
    devices = [] if device == "cpu" else [device]
    with torch.random.fork_rng(devices=devices), quiet():
        result = CounterexampleSearch(chosen, examples, seed, device).run()
    result.seconds = time.perf_counter() - start
    return result


class _FoundError(AssertionError):
    """Ends the drawing."""


class CounterexampleSearch:
    """The search for counterexamples to one rule; `shrinks` says whether they are made small."""

    def __init__(self, rule: Rule, examples: int, seed: int, device: str = "cpu", *, shrinks: bool = True) -> None:
        self.rule, self.examples, self.seed, self.device, self.shrinks = rule, examples, seed, device, shrinks
        self.samples = [placed(s, device) for s in rule.samples]
        self.matching = [s for s in self.samples if not s.refused]
        self.varied = _in_turns([list(variants(rule, s)) for s in self.matching])
        self.used: set[str] = set()
        self.derived: set[str] = set()  # candidates whose derivatives were looked at
        self.turn = 0
        self.result = CheckResult(rule.name)

    def run(self) -> CheckResult:
        """Samples as they are, then near misses, then all else until each candidate has failed or none does."""
        names = list(dict.fromkeys(c.name for c in self.rule.candidates))
        every, failed = tuple(names), dict[str, Failure]()
        if self._is_missing():
            self.result.unused = every
            return self.result
        for sample in self.matching:
            failed |= {f.candidate: f for f in self._as_it_is(sample, [n for n in names if n not in failed])}
        for sample in self.samples:
            if sample.refused:
                self.result.failures += self._not_refused(sample)
        for phase in (self._glanced, self._many, self._swept, self._drawn):
            while (left := [n for n in names if n not in failed]) and (found := phase(left)) is not None:
                failed[found.candidate] = found
        self.result.failures += map(self._small, failed.values())
        self.result.unused = tuple(n for n in every if n not in {*self.used, *failed})
        self.result.not_covered = not_covered(
            self.rule, self.matching, self.result.scope, self.result.unused, self.device
        )
        return self.result

    @property
    def _costly(self) -> bool:
        """Whether a comparison takes hundreds of runs."""
        return self.rule.numerics.random == "distribution"

    def _as_it_is(self, sample: Sample, names: Sequence[str]) -> Iterator[Failure]:
        """A sample, plain; where no candidate can be used for it, also under the option that allows more of them."""
        before = self.result.runs
        yield from self._failures(sample, DrawnExample.plain(sample), names)
        if self.result.runs == before:
            yield from self._failures(sample, replace(DrawnExample.plain(sample), nan="safe"), names)
        yield from self._without_backward(sample, names)

    def _without_backward(self, sample: Sample, names: Sequence[str]) -> Iterator[Failure]:
        """Candidates that call an `autograd.Function`: what is traced is its forward alone."""
        for name in names if self.rule.stage == "forward" else ():
            if name in self.derived or name not in self.used:
                continue
            self.derived.add(name)
            found = own_backwards(Case.of(self.rule, sample, DrawnExample.plain(sample)), alone(self.rule, name))
            if found:
                problem = (
                    f"its autograd.Function {found} loses its backward: derivatives come from the operators of its "
                    "forward; make it an operator with torch.library.custom_op and register_autograd"
                )
                yield Failure(self.rule, name, sample, DrawnExample.plain(sample), problem)

    def _glanced(self, names: Sequence[str]) -> Failure | None:
        """The first failure of a few examples: most mistakes show there."""
        return self._first_failure(self._sweep[:_GLANCE], names)

    def _swept(self, names: Sequence[str]) -> Failure | None:
        """The first failure of the rest of what is tried in any case."""
        return self._first_failure(self._sweep[_GLANCE:], names)

    @cached_property
    def _sweep(self) -> list[tuple[Sample, DrawnExample]]:
        most = self.examples // 4 if self._costly else self.examples
        return sweep(self.rule, self.matching, self.varied[:most], self.seed)[:most]

    def _first_failure(self, tried: Sequence[tuple[Sample, DrawnExample]], names: Sequence[str]) -> Failure | None:
        found = (next(self._failures(sample, drawn, names), None) for sample, drawn in tried)
        return next((failure for failure in found if failure is not None), None)

    def _many(self, names: Sequence[str]) -> Failure | None:
        """The first bias of one of these candidates, over many draws in low precision."""
        if self.rule.numerics.exact or self.rule.numerics.random != "none":
            return None
        for sample in self.matching[: max(1, self.examples // 8)]:
            for dtype in _low_dtypes(sample):
                trained = self.rule.stage == "forward"
                looks = {n: Look(gradient=trained and differentiable(t, dtype)) for n, t in tensors(sample).items()}
                found = self._bias(sample, replace(DrawnExample.plain(sample), dtype=dtype, looks=looks), names)
                if found is not None:
                    return found
        return None

    def _bias(self, sample: Sample, drawn: DrawnExample, names: Sequence[str]) -> Failure | None:
        case = Case.of(self.rule, sample, drawn)
        for name in names:
            try:
                rewritten = case.rewritten(alone(self.rule, name))
                problem = biased(case, sample, drawn, rewritten) if rewritten.applied else None
            except Exception as error:
                return Failure(self.rule, name, sample, drawn, f"raises {_told(error)}")
            self.result.scope.biases += rewritten.applied
            if problem is not None:
                return Failure(self.rule, name, sample, drawn, str(problem), many=True)
        return None

    def _small(self, failure: Failure) -> Failure:
        """The same failure, as small as can be."""
        if not self.shrinks or not failure.candidate or failure.many or failure.problem.startswith("its autograd"):
            return failure
        kept = replace(self.result)

        def failing(drawn: DrawnExample) -> Failure | None:
            return next(self._failures(failure.sample, drawn, [failure.candidate], others=False), None)

        found = smallest(failure, failing)
        self.result.runs, self.result.declined = kept.runs, kept.declined  # what was run for that proves nothing
        return found

    def _drawn(self, names: Sequence[str]) -> Failure | None:
        """A failure of one of these candidates on what hypothesis draws."""
        library, found = hypothesis(), []
        pool = self.matching + self.varied[: len(self.matching) + self.examples // 4]

        @library.settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            phases=(library.Phase.generate,),
            suppress_health_check=list(library.HealthCheck),
        )
        @library.seed(self.seed)
        @library.given(drawings(self.rule, pool))
        def holds(drawing: tuple[Sample, DrawnExample]) -> None:
            failure = next(self._failures(*drawing, names), None)
            if failure is not None:
                found.append(failure)
                raise _FoundError(failure.problem)

        try:
            holds()
        except Exception:
            if not found:  # a fault of the search itself
                raise
        return found[0] if found else None

    def _failures(
        self, sample: Sample, drawn: DrawnExample, names: Sequence[str], *, others: bool = True
    ) -> Iterator[Failure]:
        """What goes wrong on one drawn example, by candidate; counts what does not.

        With `others`, rewritten programs run on other kinds of values too.
        """
        declared = not isinstance(sample, Variant)
        if not declared and not drawn.full:  # eager takes nearly anything that is empty
            return
        case = Case.of(self.rule, sample, drawn)
        try:
            case.tried()
        except Exception as error:  # such operands make no program: what is declared must
            if declared and drawn == DrawnExample.plain(sample):
                yield Failure(self.rule, "", sample, drawn, f"the pattern itself raises {_told(error)}")
            return
        for name in names:
            must_match = declared and drawn.ordinary(sample)
            found = self._problem(case, sample, drawn, name, must_match=must_match, others=others)
            if found is not None:
                yield Failure(self.rule, name, sample, *found)

    def _is_missing(self) -> bool:
        """Whether another device than the CPU has no kernels for the pattern's operators: no program runs there."""
        return self.device != "cpu" and any(map(self._lacks, self.matching))

    def _lacks(self, sample: Sample) -> bool:
        case = Case.of(self.rule, sample, DrawnExample.plain(sample))
        try:
            case.tried()
        except NotImplementedError:
            return True
        except Exception:  # told where it is looked for
            return False
        return False

    def _problem(
        self, case: Case, sample: Sample, drawn: DrawnExample, candidate: str, *, must_match: bool, others: bool
    ) -> tuple[DrawnExample, str] | None:
        """What is wrong with the program that one candidate makes, and on which values; or None."""
        rule = alone(self.rule, candidate)
        try:
            rewritten = case.rewritten(rule)
            if must_match and case.dynamic and not rewritten.whole:  # a program knows sizes that are no variables
                case = case.with_sizes_of(sample)
                rewritten = case.rewritten(rule) if case.fixed else rewritten
            problem = _why_not(case, rule, rewritten) if must_match and not rewritten.whole else None
        except Exception as error:  # a counterexample like any other, to be made small and shown
            return drawn, f"raises {_told(error)}"
        if problem is not None or not rewritten.applied:
            self.result.declined += 1
            return None if problem is None else (drawn, problem)
        self.result.runs += 1
        self.used.add(candidate)
        self.turn += 1
        count = max(1, min(_OTHER_VALUES, self.examples // 8) // (1 + len(self.matching) // 8))  # many samples share
        more = with_other_values(sample, drawn, self.turn, count) if others and not self._costly else []
        return self._compared(case, sample, [drawn, *more], rewritten)

    def _compared(
        self, case: Case, sample: Sample, drawns: Sequence[DrawnExample], rewritten: Rewritten
    ) -> tuple[DrawnExample, str] | None:
        """The first of some values on which both programs disagree."""
        for number, drawn in enumerate(drawns):
            one = case if number == 0 else replace(Case.of(self.rule, sample, drawn), fixed=case.fixed)
            if number and not _runs(one):
                continue
            try:
                found = compare(one, rewritten)
            except Exception as error:
                return drawn, f"raises {_told(error)}"
            if found is not None:
                return drawn, str(found)
            self.result.scope.note(one, sample, drawn)
        return None

    def _not_refused(self, sample: Sample) -> Iterator[Failure]:
        """A near miss that matches, or is refused for another reason; with other sizes it must not match either."""
        plain = DrawnExample.plain(sample)
        own_sizes = bool(sample.given_sizes)  # chosen for what is wrong with them
        for drawn in (plain, replace(DrawnExample.plain(sample, 1 if own_sizes else 2), dynamic=True)):
            case = Case.of(self.rule, sample, drawn)
            if drawn != plain and not _runs(case):  # sizes that the sample fixes may not fit to these
                continue
            problem = not_refused(case, sample.refused, any_reason=drawn != plain)
            if problem is not None:
                yield Failure(self.rule, "", sample, drawn, problem)
                return
        self.result.refused += 1


def _low_dtypes(sample: Sample) -> tuple[torch.dtype, ...]:
    """The low precisions that operands may have: all, or those that the sample fixes."""
    given = [spec.dtype for spec in tensors(sample).values()]
    return LOW if None in given else tuple(dtype for dtype in LOW if dtype in given)


def _in_turns(groups: Sequence[Sequence[Variant]]) -> list[Variant]:
    return [one for round_ in itertools.zip_longest(*groups) for one in round_ if one is not None]


def _runs(case: Case) -> bool:
    """Whether eager takes these operands at all."""
    try:
        case.tried()
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
    where = "".join(f", {note}" for note in getattr(error, "__notes__", ()) if note.startswith("in guard "))
    return f"{type(error).__name__}: {error}{where}"
