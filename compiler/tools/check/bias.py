"""Finds errors in low precision, where one comparison says little, since results may differ by a few roundings.

Both programs run on `RUNS` draws of the same operands. Rounding errors cancel over the runs, and other errors do not.
Let e be the error of the rewritten program and x the exact result. For each element, and for all elements together:

    slope    sum(e * x) / sum(x * x)     a wrong factor; also for positive and for negative results alone
    offset   mean(e) / rms(x)            a wrong term
    spread   rms(e) / rms(x)             errors of both signs, compared with those of eager

The bound is the sum of eager's own statistic, the effect of rounding every operand once in the same direction (the most
that one rounded constant can do), and `_SIGMAS` standard errors. A factor of 1.01 is therefore found in bfloat16, in
which one rounding is up to 0.4%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....rewrites.sample import Sample
from .case import Case, Rewritten
from .drawn import DrawnExample
from .outcome import Disagreement, run

LOW = (torch.bfloat16, torch.float16)
RUNS = 24
_SIGMAS = 7.0  # a tensor has many elements, and there are few runs
_ROUNDING = 0.29  # root mean square of a rounding error, in units in the last place


@dataclass(frozen=True)
class _Runs:
    """One result or gradient of all runs: (runs, elements) in float64."""

    name: str
    ours: torch.Tensor
    eager: torch.Tensor
    exact: torch.Tensor
    tilted: torch.Tensor
    shaken: torch.Tensor


def biased(case: Case, sample: Sample, drawn: DrawnExample, rewritten: Rewritten) -> Disagreement | None:
    """The first statistic with an error beyond rounding; None for rules that draw random numbers."""
    if case.rule.numerics.exact or case.rule.numerics.random != "none":
        return None
    for one in _collected(case, sample, drawn, rewritten):
        found = _off(one, drawn.dtype, case)
        if found is not None:
            return found
    return None


def _collected(case: Case, sample: Sample, drawn: DrawnExample, rewritten: Rewritten) -> Iterator[_Runs]:
    """The results and gradients in low precision."""
    rows: dict[str, list[tuple[torch.Tensor, ...]]] = {}
    for seed in range(drawn.seed, drawn.seed + RUNS):
        drawn_anew = Case.of(case.rule, sample, replace(drawn, seed=seed))
        outcomes = [run(drawn_anew, drawn_anew.program), run(drawn_anew, rewritten)]
        wide = _exact(drawn_anew), _tilted(drawn_anew), _noisy(drawn_anew)
        outcomes += [run(other, other.program) for other in wide]
        if outcomes[0].drew:
            return
        for kind in ("results", "gradients"):
            for number, values in enumerate(zip(*(getattr(o, kind) for o in outcomes), strict=True)):
                if values[0].dtype == drawn.dtype and values[0].numel():
                    rows.setdefault(f"{kind[:-1]} {number}", []).append(tuple(v.double().flatten() for v in values))
    for name, each in rows.items():
        eager, ours, exact, tilted, shaken = (torch.stack(column) for column in zip(*each, strict=True))
        yield _Runs(name, ours, eager, exact, tilted, shaken)


def _exact(case: Case) -> Case:
    return _changed(case, lambda x: x)


def _tilted(case: Case) -> Case:
    """Operands that are larger by half a unit in the last place, the effect of rounding in one direction."""
    return _changed(case, lambda x: x * (1 + torch.finfo(_low(case)).eps / 2))


def _noisy(case: Case) -> Case:
    generator = torch.Generator().manual_seed(case.seed)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5
        return x * (1 + noise.to(x.device) * torch.finfo(_low(case)).eps)

    return _changed(case, noisy)


def _low(case: Case) -> torch.dtype:
    return next(o.dtype for o in case.operands if isinstance(o, torch.Tensor) and o.dtype in LOW)


def _changed(case: Case, change: Any) -> Case:
    """The operands in float64, with `change` applied to those in low precision."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        made = x.detach().double()
        return (change(made) if x.dtype in LOW else made).requires_grad_(x.requires_grad)

    return replace(case, operands=tuple(map(one, case.operands)))


def _off(one: _Runs, dtype: torch.dtype, case: Case) -> Disagreement | None:
    sound = torch.stack([x.isfinite() for x in (one.ours, one.eager, one.exact, one.tilted, one.shaken)]).all(0).all(0)
    scale = float(one.exact[:, sound].square().mean().sqrt()) if bool(sound.any()) else 0.0
    if scale <= torch.finfo(dtype).smallest_normal:
        return None
    ours, eager, exact, tilted, shaken = (
        x[:, sound] / scale for x in (one.ours, one.eager, one.exact, one.tilted, one.shaken)
    )
    half = torch.finfo(dtype).eps / 2
    errors = ours - exact, eager - exact, tilted - exact
    return (
        _spread(one.name, ours - exact, eager - exact, shaken - exact, half, case)
        or _biased(f"{one.name} by a factor", [_slopes(e, exact) for e in errors], half)
        or _biased(f"{one.name} by a term", [_offsets(e) for e in errors], half)
    )


def _spread(
    name: str, ours: torch.Tensor, eager: torch.Tensor, shaken: torch.Tensor, half: float, case: Case
) -> Disagreement | None:
    error, own, noise = (float(x.square().mean().sqrt()) for x in (ours, eager, shaken))
    promised = case.rule.numerics
    roundings = promised.roundings**0.5 * _ROUNDING * 2 * half
    allowed = max(1.0, promised.slack) * max(own, noise) + roundings
    if error <= allowed:
        return None
    return Disagreement(f"{name} is off over {RUNS} draws, relative to its size", error, allowed)


Estimate = tuple[torch.Tensor, torch.Tensor]
"""Values, and their standard errors."""


def _biased(what: str, estimates: Sequence[Estimate], half: float) -> Disagreement | None:
    """`estimates` for the rewritten program, for eager, and for rounding in one direction."""
    (value, error), eager, tilted = estimates
    allowed = torch.maximum(tilted[0].abs(), torch.full_like(value, half)) + eager[0].abs() + _SIGMAS * error
    worst = int((value.abs() - allowed).argmax())
    if not bool(value[worst].abs() > allowed[worst]):
        return None
    text = f"{what} is biased over {RUNS} draws, relative to its size"
    return Disagreement(text, float(value[worst].abs()), float(allowed[worst]))


def _slopes(error: torch.Tensor, exact: torch.Tensor) -> Estimate:
    """Groups of elements: each alone, all, the positive ones, the negative ones."""
    parts = [(error, exact)] if error.shape[1] > 1 else []
    parts += [(error.reshape(-1, 1), exact.reshape(-1, 1))]
    parts += [(error.reshape(-1, 1), side.reshape(-1, 1)) for side in (exact.clamp(min=0), exact.clamp(max=0))]
    found = [_slope(*part) for part in parts]
    return torch.cat([v for v, _ in found]), torch.cat([e for _, e in found])


def _slope(error: torch.Tensor, exact: torch.Tensor) -> Estimate:
    squares = exact.square().sum(0).clamp(min=1e-30)
    value = (error * exact).sum(0) / squares
    rest = torch.where(exact == 0, 0.0, error - value * exact)
    return value, (rest * exact).square().sum(0).sqrt() / squares + 1e-3 / (1 + squares)


def _offsets(error: torch.Tensor) -> Estimate:
    parts = [error, error.reshape(-1, 1)] if error.shape[1] > 1 else [error]
    return torch.cat([p.mean(0) for p in parts]), torch.cat([p.std(0) / p.shape[0] ** 0.5 for p in parts])
