"""Do a pattern and its rewritten form agree? Errors are held against float64, and eager's own error is the measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .case import Case, Program

_SHAKEN = 3  # times that operands are rounded anew, to see what one rounding does to a result
_ROUNDINGS_DOUBLE = 64  # nothing is wider than float64: eager's own error is unknown there, and counts as zero


@dataclass(frozen=True)
class Disagreement:
    """What differs, and by how much."""

    what: str
    error: float = torch.inf
    allowed: float = 0.0

    def __str__(self) -> str:
        measured = self.error < torch.inf
        return f"{self.what}: error {self.error:.3g}, allowed {self.allowed:.3g}" if measured else self.what


@dataclass(frozen=True)
class Outcome:
    """What one run gave: results, the gradients of the operands that want them, the state of random draws after it."""

    results: list[torch.Tensor]
    gradients: list[torch.Tensor]
    drew: bool
    random_state: torch.Tensor


def compare(case: Case, rewritten: Program) -> Disagreement | None:
    """The first disagreement in results, gradients or random draws, or None."""
    from .distribution import compare_distributions

    versions = [o._version for o in case.operands if isinstance(o, torch.Tensor)]
    eager, ours = run(case, case.program), run(case, rewritten)
    if versions != [o._version for o in case.operands if isinstance(o, torch.Tensor)]:
        return Disagreement("an operand was written to")
    if eager.drew and case.rule.numerics.random == "distribution":
        return _misshapen(ours, eager) or compare_distributions(case, rewritten)
    if case.rule.numerics.random != "distribution" and not torch.equal(eager.random_state, ours.random_state):
        return Disagreement("the random stream is at another place than eager's afterwards")
    exact = eager if eager.drew else run(_doubled(case), case.program)  # float64 would draw other random numbers
    found = _misshapen(ours, eager) or _difference(case, ours, eager, exact)
    if found is None or found.error == torch.inf or eager.drew:
        return found
    # Eager may have been lucky: what one rounding of an operand does to a result is nobody's error.
    return _difference(
        case, ours, eager, exact, [run(_shaken(case, number), case.program) for number in range(_SHAKEN)]
    )


def run(case: Case, program: Program, seed: int | None = None) -> Outcome:
    """Run a program forward, and backward from a weighted sum of its results where gradients flow."""
    torch.manual_seed(case.seed if seed is None else seed)
    before = _random_state(case)
    leaves = [o for o in case.operands if isinstance(o, torch.Tensor) and o.requires_grad]
    with torch.set_grad_enabled(bool(leaves)):
        out = program(*case.operands)
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        losses = [_weighted(r) for r in results if r.requires_grad]
        total = torch.stack(losses).sum() if losses else None
        found = [None] * len(leaves) if total is None else torch.autograd.grad(total, leaves, allow_unused=True)
    gradients = [torch.zeros_like(o) if g is None else g for g, o in zip(found, leaves, strict=True)]
    state = _random_state(case)
    return Outcome([r.detach() for r in results], gradients, not torch.equal(before, state), state)


def _random_state(case: Case) -> torch.Tensor:
    """Of the generators of the CPU and of the operands' devices, one after the other."""
    devices = {o.device for o in case.operands if isinstance(o, torch.Tensor) and o.device.type == "cuda"}
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in sorted(devices, key=str))]
    return torch.cat(states)


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """A sum with weights that differ, so that transposed gradients are caught."""
    weights = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    return (result.double() * weights.view(result.shape).to(result.device)).sum()


def _doubled(case: Case) -> Case:
    """The same operands in float64."""
    return replace(case, operands=tuple(map(_double, case.operands)))


def _double(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
        return operand
    return operand.detach().double().requires_grad_(operand.requires_grad)


def _shaken(case: Case, number: int) -> Case:
    """The operands in float64, each number off by up to one rounding of its own dtype."""
    generator = torch.Generator().manual_seed(number)

    def off(operand: Any) -> Any:
        doubled = _double(operand)
        if doubled is operand:
            return operand
        noise = torch.rand(operand.shape, generator=generator, dtype=torch.float64) * 2 - 1
        made = doubled.detach() * (1 + noise.to(operand.device) * torch.finfo(operand.dtype).eps)
        return made.requires_grad_(operand.requires_grad)

    return replace(case, operands=tuple(map(off, case.operands)))


def _misshapen(ours: Outcome, eager: Outcome) -> Disagreement | None:
    """Another number of results, another shape or dtype."""
    if len(ours.results) != len(eager.results):
        return Disagreement(f"it has {len(ours.results)} results, where eager has {len(eager.results)}")
    for i, (a, b) in enumerate(zip(ours.results, eager.results, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            told = f"result {i} is {a.dtype}{list(a.shape)}, where eager has {b.dtype}{list(b.shape)}"
            return Disagreement(told.replace("torch.", ""))
    return None


def _difference(
    case: Case, ours: Outcome, eager: Outcome, exact: Outcome, shaken: Sequence[Outcome] = ()
) -> Disagreement | None:
    for i, values in enumerate(zip(ours.results, eager.results, exact.results, strict=True)):
        found = _off(case, f"result {i}", *values, shaken=[one.results[i] for one in shaken])
        if found is not None:
            return found
    if case.gradients == "ignored":
        return None
    # Gradients cancel where results do not: their roundings are relative to the largest of them.
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
    """`scale` is a norm that roundings are relative to beside the result's own; `shaken` are other exact results."""
    if case.rule.numerics.exact or not eager.is_floating_point():
        return _other_bits(name, ours, eager)
    special = _other_specials(case, name, ours, eager, exact)
    if special is not None:
        return special
    sound = torch.isfinite(exact) & torch.isfinite(eager) & torch.isfinite(ours)
    a, b, reference = (x.double()[sound] for x in (ours, eager, exact))
    if a.numel() == 0:
        return None
    unit = max(float(reference.abs().max()), float(a.abs().max()), float(b.abs().max())) or 1.0  # no square overflows
    error, eager_error = (_distance(x, reference, unit) for x in (a, b))
    eager_error = max([eager_error, *(_distance(x[sound].nan_to_num(0, 0, 0), reference, unit) for x in shaken)])
    rounding = torch.finfo(eager.dtype).eps * max(float((reference / unit).norm()) * unit, scale)
    least = torch.finfo(eager.dtype).smallest_normal * a.numel() ** 0.5  # below it, numbers may be flushed to zero
    promised = case.rule.numerics
    roundings = _ROUNDINGS_DOUBLE if eager.dtype == torch.float64 else promised.roundings
    allowed = promised.slack * eager_error + roundings * rounding + least
    return None if error <= allowed else Disagreement(f"{name} is off", error, allowed)


def _distance(x: torch.Tensor, reference: torch.Tensor, unit: float) -> float:
    return float(((x - reference) / unit).norm()) * unit


def _other_bits(name: str, ours: torch.Tensor, eager: torch.Tensor) -> Disagreement | None:
    """A promise of the same bits; only NaN is NaN whatever its bits."""
    same = ours == eager
    if eager.is_floating_point():
        same = (same & (ours.signbit() == eager.signbit())) | (ours.isnan() & eager.isnan())
    if bool(same.all()):
        return None
    return Disagreement(f"{name} has other bits in {int((~same).sum())} of {same.numel()} places")


def _appears(name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> Disagreement | None:
    """NaN or inf where eager has numbers, unless no digit of these is right: eager overflowed on its way there."""
    lost = (eager != exact) & ((eager.double() - exact.double()).abs() >= exact.double().abs())
    appears = ~ours.isfinite() & eager.isfinite() & exact.isfinite() & ~lost
    if not bool(appears.any()):
        return None
    return Disagreement(f"{name} has {float(ours[appears][0])} where eager has {float(eager[appears][0]):.6g}")


def _other_specials(
    case: Case, name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> Disagreement | None:
    """NaN and inf stand where eager has them. What only eager overflows to is its rounding error, not its value."""
    appears = _appears(name, ours, eager, exact)
    if appears is not None:
        return appears
    if case.rule.nan == "safe" or case.nan == "safe":
        return None
    if bool((eager.isnan() & exact.isnan() & ~ours.isnan()).any()):
        return Disagreement(f"{name} hides NaN that eager has")
    infinite = eager.isinf() & (eager == exact)
    if bool((infinite & (ours != eager)).any()):
        return Disagreement(f"{name} hides inf that eager has")
    return None
