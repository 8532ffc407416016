"""One run of a program on operands: results, gradients, random draws; and a difference between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .case import Case, Program
from .drawn import INCOMING
from .operands import laid_out


@dataclass(frozen=True)
class Disagreement:
    """A difference, and how large it is."""

    what: str
    error: float = torch.inf
    allowed: float = 0.0

    def __str__(self) -> str:
        measured = self.error < torch.inf
        return f"{self.what}: error {self.error:.3g}, allowed {self.allowed:.3g}" if measured else self.what


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run: results, the gradients of operands that want them, the state of random draws after it."""

    results: list[torch.Tensor]
    gradients: list[torch.Tensor]
    drew: bool
    random_state: torch.Tensor
    derived: list[bool] = field(default_factory=list)  # by result, whether gradients flow to it
    shared: list[str] = field(default_factory=list)  # by result, with what it shares memory


def run(case: Case, program: Program, seed: int | None = None) -> RunOutcome:
    """Run a program forward, and backward with a gradient for each of its results where gradients flow."""
    torch.manual_seed(case.seed if seed is None else seed)
    before = _random_state(case)
    leaves = [o for o in case.operands if isinstance(o, torch.Tensor) and o.requires_grad]
    with torch.set_grad_enabled(bool(leaves)):
        out = program(*case.operands)
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        used = [r for r in results if r.requires_grad]
        used = {INCOMING[3]: used[:1], INCOMING[4]: used[-1:]}.get(case.incoming, used)
        coming = [_coming(r, case.incoming) for r in used]
        found = torch.autograd.grad(used, leaves, coming, allow_unused=True) if used else [None] * len(leaves)
    gradients = [torch.zeros_like(o) if g is None else g for g, o in zip(found, leaves, strict=True)]
    state = _random_state(case)
    return RunOutcome(
        [r.detach() for r in results], gradients, not torch.equal(before, state), state,
        [r.requires_grad for r in results], _shared(case, results),
    )  # fmt: skip


def _shared(case: Case, results: Sequence[torch.Tensor]) -> list[str]:
    """With which operands and earlier results each result shares memory, as text."""
    names = [v.name for v in case.rule.variables]
    owners = [(n, o) for n, o in zip(names, case.operands, strict=True) if isinstance(o, torch.Tensor)]
    found = []
    for number, result in enumerate(results):
        found.append(", ".join(name for name, other in owners if _overlap(result, other)))
        owners.append((f"result {number}", result))
    return found


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to one changes the other; parts of one tensor that lie side by side do not overlap."""
    if not a.numel() or not b.numel() or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    if a.dtype != b.dtype:
        return True
    places = torch.arange(a.untyped_storage().nbytes() // a.element_size())
    mine, others = (places.as_strided(x.shape, x.stride(), x.storage_offset()).flatten() for x in (a, b))
    return bool(torch.isin(mine, others).any())


def _random_state(case: Case) -> torch.Tensor:
    """The states of the generators of the CPU and of the operands' devices, one after the other."""
    devices = {o.device for o in case.operands if isinstance(o, torch.Tensor) and o.device.type == "cuda"}
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in sorted(devices, key=str))]
    return torch.cat(states)


def _coming(result: torch.Tensor, how: str) -> torch.Tensor:
    """A gradient of a result: of numbers that differ, so that transposed gradients are caught; or one, expanded.

    All dtypes hold the numbers exactly: where a backward subtracts their mean, a rounding of them is all that is left,
    and what runs in float64 must be given the same.
    """
    if how == "expanded":
        return torch.ones((), dtype=result.dtype, device=result.device).expand(result.shape)
    numbers = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    gradient = numbers.bfloat16().view(result.shape).to(result.device, result.dtype)
    return laid_out(gradient, how) if how == "transposed" else gradient
