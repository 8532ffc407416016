"""Do a pattern and its rewritten form agree? Errors are held against float64, and eager's own error is the measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..rewrites.rule import Rule
from .check_inputs import Drawn

_ROUNDINGS = 8  # how many roundings of the result's dtype are always allowed

Program = Callable[..., Any]


@dataclass(frozen=True)
class Disagreement:
    """What differs, and by how much."""

    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what}: error {self.error:.3g}, allowed {self.allowed:.3g}"


def compare(rule: Rule, pattern: Program, rewritten: Program, operands: list[Any], drawn: Drawn) -> Disagreement | None:
    """The first disagreement in results or gradients, or None."""
    eager = _run(pattern, operands, drawn)
    ours = _run(rewritten, operands, drawn)
    exact = (
        _run(pattern, [_doubled(o) for o in operands], drawn)
        if rule.numerics.random == "none" or "p" not in _given(rule, operands)
        else eager
    )
    names = [f"result {i}" for i in range(eager[1])] + ["gradient"] * len(eager[0])
    scale = max((float(r.double().nan_to_num(0, 0, 0).norm()) for r in exact[0][eager[1] :]), default=0.0)
    for name, a, b, reference in zip(names, ours[0], eager[0], exact[0], strict=False):
        if name == "gradient" and drawn.values in ("nan", "inf"):
            continue  # derivatives at NaN and inf are conventions, and differ between operators of equal value
        found = _difference(rule, name, a, b, reference, scale if name == "gradient" else 0.0)
        if found is not None:
            return found
    return None


def _given(rule: Rule, operands: list[Any]) -> set[str]:
    return {v.name for v, o in zip(rule.variables, operands, strict=True) if o is not None}


def _doubled(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
        return operand
    return operand.detach().double().requires_grad_(operand.requires_grad)


def _run(program: Program, operands: list[Any], drawn: Drawn) -> tuple[list[torch.Tensor], int]:
    """Results, then gradients of those operands that want them; and the number of results."""
    torch.manual_seed(drawn.seed)
    leaves = [o for o in operands if isinstance(o, torch.Tensor) and o.requires_grad]
    with torch.set_grad_enabled(drawn.training):
        out = program(*operands)
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        if not (drawn.training and leaves and any(r.requires_grad for r in results)):
            return [r.detach() for r in results], len(results)
        loss = torch.stack([_weighted(r) for r in results if r.requires_grad]).sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    kept = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True)]
    return [r.detach() for r in results] + kept, len(results)


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """A sum with weights that differ, so that transposed gradients are caught."""
    weights = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    return (result.double() * weights.view(result.shape)).sum()


def _difference(
    rule: Rule, name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, scale: float
) -> Disagreement | None:
    """`scale` is a norm that roundings are relative to beside the result's own: gradients cancel, results do not."""
    if rule.numerics.exact:
        same = torch.equal(ours.nan_to_num(nan=12345.0), eager.nan_to_num(nan=12345.0))
        return None if same else Disagreement(f"{name} has other bits", float((ours - eager).abs().max()), 0.0)
    if rule.nan == "same" and bool((eager.isnan() & ~ours.isnan()).any()):
        return Disagreement(f"{name} hides NaN that eager has", 1.0, 0.0)
    if bool((ours.isnan() & ~eager.isnan()).any()):
        return Disagreement(f"{name} has NaN where eager has none", 1.0, 0.0)
    sound = torch.isfinite(exact) & torch.isfinite(eager) & torch.isfinite(ours)
    a, b, reference = (x.double()[sound] for x in (ours, eager, exact))
    if a.numel() == 0:
        return None
    error, eager_error = float((a - reference).norm()), float((b - reference).norm())
    allowed = rule.numerics.slack * eager_error + _ROUNDINGS * torch.finfo(eager.dtype).eps * max(
        float(reference.norm()), scale
    )
    return None if error <= allowed + 1e-30 else Disagreement(f"{name} is off", error, allowed)
