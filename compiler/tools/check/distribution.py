"""Rules that draw other random numbers than eager must draw them from the same distribution: two samples are compared.

Both programs run many times with different seeds. Results, gradients and their products are compared by:

    how often an element is exactly zero     the keep rate of a dropout; a binomial proportion
    the mean of each element, and of all   means of independent runs
    squares and fourth powers of what      how far elements are from their means, and how often far, in units of
    is drawn                               their deviation
    how much the share of zeros, and the   elements of one draw vary together, as where rows share their noise
    mean of what is drawn, vary

Products of a result and the gradient of an operand with its shape show whether both use the same mask, and those of two
results whether these share their draws. Bounds are
`_SIGMAS` standard errors of the difference, so that about one comparison in 10**6 fails by chance. Seeds are fixed, so
that a check that passes once always passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from .case import Case, Program
from .outcome import Disagreement, RunOutcome, run

_RUNS = 200
_SIGMAS = 6.0
_DRAWN = 0.05  # of an element's mean: below, its deviation may be that of roundings
_ROUNDED = 0.05  # of a moment, for roundings


def compare_distributions(case: Case, rewritten: Program) -> Disagreement | None:
    """The first statistic in which two random programs differ by more than chance."""
    first = 2 * _RUNS * case.seed  # both programs draw independently: no seed is used twice
    eager = _sampled(case, case.program, range(first, first + _RUNS))
    ours = _sampled(case, rewritten, range(first + _RUNS, first + 2 * _RUNS))
    for (name, a), (_, b) in zip(ours, eager, strict=True):
        found = _other_zeros(name, a, b) or _other_means(name, a, b) or _drawn_together(name, a, b)
        found = found or _other_spread(name, a, b) or _noise_together(name, a, b)
        if found is not None:
            return found
    return None


def _sampled(case: Case, program: Program, seeds: range) -> list[tuple[str, torch.Tensor]]:
    """The observed values of a program by name: (runs, elements) in float64."""
    runs = [dict(_observed(case, run(case, program, seed))) for seed in seeds]
    return [(name, torch.stack([one[name].double().flatten() for one in runs])) for name in runs[0]]


def _observed(case: Case, outcome: RunOutcome) -> Iterator[tuple[str, torch.Tensor]]:
    for i, result in enumerate(outcome.results):
        yield f"result {i}", result
        for j, other in enumerate(outcome.results[:i]):
            if other.shape == result.shape:
                yield f"result {j} times result {i}", other.double() * result.double()
    for j, gradient in enumerate(outcome.gradients if case.gradients == "compared" else ()):
        yield f"gradient {j}", gradient
        for i, result in enumerate(outcome.results):
            if result.shape == gradient.shape:
                yield f"result {i} times gradient {j}", result.double() * gradient.double()


def _other_zeros(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The binomial bound on the difference of two proportions: each element is zero independently of the others."""
    if not ours.numel():
        return None
    a, b = (float((x == 0).double().mean()) for x in (ours, eager))
    pooled = (a + b) / 2
    allowed = _SIGMAS * math.sqrt(max(pooled * (1 - pooled), 1 / ours.numel()) * 2 / ours.numel())
    if abs(a - b) <= allowed:
        return None
    return Disagreement(f"{name} is zero in {a:.1%} of its entries, in eager in {b:.1%}", abs(a - b), allowed)


def _other_means(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The mean of each element over the runs, and of each run over its elements."""
    sound = (ours.isfinite() & eager.isfinite()).all(0)
    if not bool(sound.any()):
        return None
    ours, eager = ours[:, sound], eager[:, sound]
    for what in (f"the mean of an entry of {name}", f"the mean of {name}"):
        a, b = (x if "entry" in what else x.mean(1, keepdim=True) for x in (ours, eager))
        difference = (a.mean(0) - b.mean(0)).abs()
        spread = ((a.var(0) + b.var(0)) / _RUNS).sqrt()
        allowed = _SIGMAS * spread + 1e-2 * b.abs().mean(0)  # for rounding errors, and for elements that seldom vary
        worst = int((difference - allowed).argmax())
        if bool(difference[worst] > allowed[worst]):
            return Disagreement(f"{what} differs", float(difference[worst]), float(allowed[worst]))
    return None


def _drawn_together(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The variance of the share of zeros over the runs, which is larger if elements share draws."""
    return _other_variance(f"the share of zeros of {name} varies", *((x == 0).double().mean(1) for x in (ours, eager)))


def _other_spread(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The second and the fourth moment of each run, over elements whose draws are large beside their means.

    Elements of one run may depend on each other: only runs count as independent.
    """
    a, b = _standardized(ours, eager)
    for power, what in ((2, "the variance"), (4, "the fourth moment")) if a.numel() else ():
        ours_by_run, eager_by_run = ((x**power).mean(1) for x in (a, b))
        difference = float((ours_by_run.mean() - eager_by_run.mean()).abs())
        error = float(((ours_by_run.var() + eager_by_run.var()) / _RUNS).sqrt())
        allowed = _SIGMAS * error + _ROUNDED * float(eager_by_run.mean())
        if difference > allowed:
            return Disagreement(f"{what} of {name} differs", difference, allowed)
    return None


def _noise_together(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The variance over the runs of the mean of what is drawn, which is larger if elements share draws."""
    a, b = _standardized(ours, eager)
    return _other_variance(f"elements of {name} vary together", a.mean(1), b.mean(1)) if a.numel() else None


def _other_variance(what: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The variances of one number for each run, which differ by a factor.

    The logarithm of a sample variance has a standard error of sqrt((kurtosis - 1) / (n - 1)), which is large where
    rare events make the variance.
    """
    a, b = float(ours.var()), float(eager.var())
    if not a or not b:
        return None
    error = abs(math.log(a / b))
    tails = sum(max(float(((x - x.mean()) ** 4).mean() / x.var() ** 2), 3.0) - 1 for x in (ours, eager))
    allowed = _SIGMAS * math.sqrt(tails / (_RUNS - 1))
    return Disagreement(f"{what} otherwise", error, allowed) if error > allowed else None


def _standardized(ours: torch.Tensor, eager: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far elements are from eager's means, in units of its deviation; those that are drawn and finite alone."""
    center, spread = eager.mean(0), eager.std(0)
    drawn = (ours.isfinite() & eager.isfinite()).all(0) & (spread > _DRAWN * center.abs())
    return (ours - center)[:, drawn] / spread[drawn], (eager - center)[:, drawn] / spread[drawn]
