"""The subject of a search: a program with inputs, eager's results, and how far compiled ones may be off.

error of compiled  =  |compiled - float64 eager| / |float64 eager|     wrong where above the tolerance of its dtype,
error of eager     =  |eager - float64 eager| / |float64 eager|        and above four times eager's own error
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..coverage.report import TOLERANCE
from ..profile.running import of_its_own, step_of, tensors_in, undisturbed

SLACK = 4.0
"""How many times eager's own error an error may be."""
_UNLIKE = 0.5  # an error of eager's from which on float64 computes something else, as with other random numbers

Outcome = Literal["right", "wrong", "nan", "raised", "died", "slow"]


@dataclass(frozen=True)
class Verdict:
    """How one run of a compiled program went.

    Args:
        outcome: ``"right"``, ``"wrong"``, ``"nan"`` (where eager has numbers), ``"raised"``, ``"died"`` (the process)
            or ``"slow"`` (it took too long).
        message: what is wrong, in a line.
        error: the relative error, in the 2-norm, of the tensor that is furthest off; None where nothing was computed.
        eager: the same of eager, against float64; None where there is no such reference.
    """

    outcome: Outcome
    message: str = ""
    error: float | None = None
    eager: float | None = None

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return self.outcome == "right"

    def __str__(self) -> str:
        return f"{self.outcome}: {self.message}" if self.message else self.outcome


class Subject:
    """A program and its inputs.

    Args:
        function: a module or function; it is run many times, and left as it was.
        args: its arguments; what it writes to them is taken back after each run.
        kwargs: its keyword arguments.
        train: forward and backward.
        tolerance: the relative error from which on a result is wrong; by default that of its dtype.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        train: bool = False,
        tolerance: float | None = None,
    ) -> None:
        self.function, self.args, self.kwargs = function, tuple(args), dict(kwargs or {})
        self.train, self._tolerance = train, tolerance
        self._leaves: list[torch.Tensor] = []

    @functools.cached_property
    def eager(self) -> list[torch.Tensor]:
        """Eager's results, then gradients.

        Raises:
            Exception: whatever the program raises by itself.
        """
        return self._results(self.function)

    @functools.cached_property
    def exact(self) -> list[torch.Tensor] | None:
        """The same computed in float64; None where it can't be, or draws other random numbers."""
        eager = self.eager
        try:
            found = self._doubled()
        except Exception:  # a model that fixes a dtype, or can't be copied
            return None
        alike = len(found) == len(eager) and all(a.shape == b.shape for a, b in zip(found, eager, strict=True))
        if not alike or all(_error(a, b) > _UNLIKE for a, b in zip(eager, found, strict=True)):
            return None
        return found

    def run(self, backend: Any, options: Mapping[str, Any] | None, dynamic: bool | None) -> Verdict:
        """Compile the program and hold what it computes against eager's results."""
        reference = self.eager  # raises what is no fault of a compiler's
        try:
            torch.compiler.reset()
            own = of_its_own(self.function)
            given: Any = options and dict(options)
            compiled = torch.compile(own, backend=backend, options=given, dynamic=dynamic)
            found = self._results(compiled)
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            return Verdict("raised", f"{type(error).__name__}: {first}"[:300])
        return self._judged(found, reference)

    def _results(self, function: Callable[..., Any]) -> list[torch.Tensor]:
        """The results of one run, copied, with random numbers from the same seed; nothing of the program changes."""
        with undisturbed(self.function), self._inputs_kept(), torch.set_grad_enabled(self.train):
            torch.manual_seed(0)
            step = step_of(function, self.args, self.kwargs, self._leaves)
            return [result.clone() for result in step()]

    @contextlib.contextmanager
    def _inputs_kept(self) -> Iterator[None]:
        kept = [(x, x.detach().clone()) for x in tensors_in([self.args, self.kwargs])]
        yield
        with torch.no_grad():
            for x, before in kept:
                if not torch.equal(x, before) and not before.isnan().any():
                    x.copy_(before)

    def _doubled(self) -> list[torch.Tensor]:
        memo: dict[int, Any] = {}
        function, args, kwargs = copy.deepcopy((self.function, self.args, self.kwargs), memo)
        if any(id(leaf) not in memo for leaf in self._leaves):  # a parameter that is neither the module's nor an input
            return []
        leaves = [memo[id(leaf)] for leaf in self._leaves]
        for value in list(memo.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value.data = value.data.double()
        with undisturbed(function), torch.set_grad_enabled(self.train):
            torch.manual_seed(0)
            return [result.clone() for result in step_of(function, args, kwargs, leaves)()]

    def _judged(self, found: list[torch.Tensor], eager: list[torch.Tensor]) -> Verdict:
        if [x.shape for x in found] != [x.shape for x in eager]:
            shapes = ", ".join(str(tuple(x.shape)) for x in found)
            return Verdict("wrong", f"results of shapes {shapes}: eager gives others")
        exact, worst, told = self.exact, Verdict("right", error=0.0), -1.0
        for number, (ours, theirs) in enumerate(zip(found, eager, strict=True)):
            if bool((ours.isnan() & ~theirs.isnan()).any()):
                return Verdict("nan", f"result {number} has NaN where eager has numbers")
            own = None if exact is None else _error(theirs, exact[number])
            error = _error(ours, theirs if exact is None else exact[number])
            allowed = max(self._allowed(theirs.dtype), SLACK * (own or 0.0))
            if error / allowed > told:
                told = error / allowed
                against = "eager" if exact is None else "float64"
                message = f"result {number} is off by {error:.3g} against {against}, allowed is {allowed:.3g}"
                worst = Verdict("wrong" if told > 1 else "right", message if told > 1 else "", error, own)
        return worst

    def _allowed(self, dtype: torch.dtype) -> float:
        return self._tolerance or TOLERANCE.get(dtype, 0.1 if dtype.is_floating_point else 1e-2)


def _error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The relative error in the 2-norm; equal infinities and NaN agree. Of integers: the part that differs."""
    if ours.numel() == 0:
        return 0.0
    if not (reference.is_floating_point() or reference.is_complex()):
        return (ours != reference).double().mean().item()
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = ours.to(wide), reference.to(wide)
    differ = ~((a == b) | (a.isnan() & b.isnan()))
    off, norm = (a - b)[differ].abs().square().sum().item(), b[b.isfinite()].abs().square().sum().item()
    return float("inf") if off != off else (off / norm if norm else off) ** 0.5
