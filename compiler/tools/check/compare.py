"""Do a pattern and its replacement agree? Errors are measured against float64 and compared with eager's own error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ....rewrites.compat.tensors import writes_seen
from ....rewrites.words import counted
from .case import Case, Program
from .distribution import compare_distributions
from .outcome import Disagreement, RunOutcome, run

_SHAKEN = 3  # number of runs with rounded operands, which show the effect of one rounding on the results
_ROUNDINGS_DOUBLE = 64  # no type is wider than float64: eager's own error is unknown, and counts as zero


def compare(case: Case, rewritten: Program) -> Disagreement | None:
    """The first disagreement in results, gradients or random draws, or None."""
    eager = run(case, case.program)
    before = [(writes_seen(o), o.detach().clone()) for o in case.operands if isinstance(o, torch.Tensor)]
    ours = run(case, rewritten)
    after = [(writes_seen(o), o.detach()) for o in case.operands if isinstance(o, torch.Tensor)]
    if any(v != w or not _same_bits(a, b) for (v, a), (w, b) in zip(before, after, strict=True)):
        return Disagreement("an operand was written to")
    if eager.drew and case.rule.numerics.random == "distribution":
        return _misshapen(ours, eager) or compare_distributions(case, rewritten)
    if case.rule.numerics.random != "distribution" and not torch.equal(eager.random_state, ours.random_state):
        return Disagreement("the random stream is at another place than eager's afterwards")
    exact = eager if eager.drew else run(_doubled(case), case.program)  # float64 would draw other random numbers
    found = _misshapen(ours, eager) or _difference(case, ours, eager, exact)
    if found is None or found.error == torch.inf or eager.drew:
        return found
    # The error of eager may be small by chance, so the effect of rounding one operand is allowed too; but if all
    # results have more digits than an operand, they must not be rounded to its digits.
    made = [x.dtype for x in (*eager.results, *(eager.gradients if case.gradients == "compared" else ()))]
    coarsest = max((torch.finfo(d).eps for d in made if d.is_floating_point or d.is_complex), default=0.0)
    shaken = [run(one, one.program) for one in (_shaken(case, number, coarsest) for number in range(_SHAKEN))]
    return _difference(case, ours, eager, exact, shaken)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _doubled(case: Case) -> Case:
    """The same operands in float64."""
    return replace(case, operands=tuple(map(_double, case.operands)))


def _double(operand: Any) -> Any:
    if isinstance(operand, torch.Tensor) and operand.is_complex():
        return operand.to(torch.complex128)
    if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
        return operand
    return operand.detach().double().requires_grad_(operand.requires_grad)


def _shaken(case: Case, number: int, coarsest: float) -> Case:
    """The operands in float64, each changed by up to one rounding of its dtype, or of a finer one."""
    generator = torch.Generator().manual_seed(number)

    def off(operand: Any) -> Any:
        doubled = _double(operand)
        if doubled is operand or operand.is_complex():
            return doubled
        noise = torch.rand(operand.shape, generator=generator, dtype=torch.float64) * 2 - 1
        made = doubled.detach() * (1 + noise.to(operand.device) * min(torch.finfo(operand.dtype).eps, coarsest))
        return made.requires_grad_(operand.requires_grad)

    return replace(case, operands=tuple(map(off, case.operands)))


def _misshapen(ours: RunOutcome, eager: RunOutcome) -> Disagreement | None:
    """A difference in the number, shapes or dtypes of results."""
    if len(ours.results) != len(eager.results):
        return Disagreement(f"it has {counted(len(ours.results), 'result')}, where eager has {len(eager.results)}")
    for i, (a, b) in enumerate(zip(ours.results, eager.results, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            told = f"result {i} is {a.dtype}{list(a.shape)}, where eager has {b.dtype}{list(b.shape)}"
            return Disagreement(told.replace("torch.", ""))
        if eager.shared and ours.shared[i] != eager.shared[i]:
            told = f"result {i} shares memory with {ours.shared[i] or 'nothing'}"
            return Disagreement(f"{told}, where eager's does with {eager.shared[i] or 'nothing'}")
        if eager.derived and eager.derived[i] and not ours.derived[i]:
            return Disagreement(f"no gradients flow to result {i}, where they do in eager")
    return None


def _difference(
    case: Case, ours: RunOutcome, eager: RunOutcome, exact: RunOutcome, shaken: Sequence[RunOutcome] = ()
) -> Disagreement | None:
    for i, values in enumerate(zip(ours.results, eager.results, exact.results, strict=True)):
        found = _off(case, f"result {i}", *values, shaken=[one.results[i] for one in shaken])
        if found is not None:
            return found
    if case.gradients == "ignored":
        return None
    # Gradients may cancel where results do not: their rounding errors are relative to the largest gradient.
    scale = max((float(g.double().nan_to_num(0, 0, 0).norm()) for g in exact.gradients), default=0.0)
    for i, values in enumerate(zip(ours.gradients, eager.gradients, exact.gradients, strict=True)):
        if case.gradients == "finite":
            found = _appears("gradient", *values)
        else:
            found = _off(case, "gradient", *values, scale=scale, shaken=[one.gradients[i] for one in shaken])
        if found is not None:
            return found
    return None


def _off(
    case: Case, name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, *,
    scale: float = 0.0, shaken: Sequence[torch.Tensor] = (),
) -> Disagreement | None:  # fmt: skip
    """`scale` is another norm that rounding errors are relative to; `shaken` are exact results of rounded operands."""
    if case.rule.numerics.exact or not (eager.is_floating_point() or eager.is_complex()):
        return _other_bits(name, ours, eager)
    ours, eager, exact, *shaken = map(_real, (ours, eager, exact, *shaken))
    sound = torch.isfinite(exact) & torch.isfinite(eager) & torch.isfinite(ours)
    if not bool(sound.all()):
        special = _other_specials(case, name, ours, eager, exact)
        if special is not None:
            return special
        ours, eager, exact, *shaken = (x[sound] for x in (ours, eager, exact, *shaken))
    if not ours.numel():
        return None
    a, b, reference = (x.double() for x in (ours, eager, exact))
    unit = max(float(reference.abs().max()), float(a.abs().max()), float(b.abs().max())) or 1.0  # no square overflows
    error, eager_error = (_distance(x, reference, unit) for x in (a, b))
    eager_error = max([eager_error, *(_distance(x.nan_to_num(0, 0, 0), reference, unit) for x in shaken)])
    rounding = torch.finfo(eager.dtype).eps * max(float((reference / unit).norm()) * unit, scale)
    least = torch.finfo(eager.dtype).smallest_normal * a.numel() ** 0.5  # below it, numbers may be flushed to zero
    promised = case.rule.numerics
    roundings = _ROUNDINGS_DOUBLE if eager.dtype == torch.float64 else promised.roundings
    allowed = promised.slack * eager_error + roundings * rounding + least
    return None if error <= allowed else Disagreement(f"{name} is off", error, allowed)


def _real(x: torch.Tensor) -> torch.Tensor:
    """A complex number as two real ones."""
    return torch.view_as_real(x) if x.is_complex() else x


def _distance(x: torch.Tensor, reference: torch.Tensor, unit: float) -> float:
    return float(((x - reference) / unit).norm()) * unit


def _other_bits(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """The check of equal bits; all NaN count as equal."""
    same = ours == eager
    if eager.is_floating_point():
        same = (same & (ours.signbit() == eager.signbit())) | (ours.isnan() & eager.isnan())
    elif eager.is_complex():
        same |= (ours != ours) & (eager != eager)
    if bool(same.all()):
        return None
    kind = "bits" if eager.is_floating_point() or eager.is_complex() else "values"
    return Disagreement(f"{name} has other {kind} in {int((~same).sum())} of {counted(same.numel(), 'place')}")


def _appears(name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> Disagreement | None:
    """NaN or inf where eager has numbers, unless no digit of these is right because eager overflowed before."""
    lost = (eager != exact) & ((eager.double() - exact.double()).abs() >= exact.double().abs())
    appears = ~ours.isfinite() & eager.isfinite() & exact.isfinite() & ~lost
    if not bool(appears.any()):
        return None
    return Disagreement(f"{name} has {float(ours[appears][0])} where eager has {float(eager[appears][0]):.6g}")


def _other_specials(
    case: Case, name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> Disagreement | None:
    """NaN and inf are where eager has them. Elements at which only eager overflows count as its rounding errors."""
    appears = _appears(name, ours, eager, exact)
    if appears is not None:
        return appears
    safe = case.rule.nan == "safe" or case.nan == "safe"
    if not safe and bool((eager.isnan() & exact.isnan() & ~ours.isnan()).any()):
        return Disagreement(f"{name} hides NaN that eager has")
    infinite = eager.isinf() & (eager == exact)
    if bool((infinite & (ours != eager)).any()):
        where = infinite & (ours != eager)
        return Disagreement(f"{name} hides inf that eager has: it has {float(ours[where][0]):.6g} there")
    return None
