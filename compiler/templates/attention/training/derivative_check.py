"""Whether a chain of nodes in a backward computes the derivative of a score function.

    f:       tanh(s / 50) * 50 + mask
    chain:   grad * 50 * (1 - tanh * tanh) / 50      with `tanh` what the forward computed

Both become formulas of the same loads. They are compared where random numbers stand for these: hooks, clipped and
straight-through gradients of the program's own come out different, however they are spelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .....rewrites import compat
from ....ir.evaluator import Evaluator
from ....ir.index.index import Var
from ....ir.value import Load, Rewriter, Value, variables, walk
from ...common.formula import unrounded
from ..gradient import derivative

_POINTS = 512
_SLACK = 1e-3  # of single precision, derivatives of saturated functions included


class _Points(Evaluator):
    """Values at random points, of random numbers: one for each load."""

    def __init__(self, places: dict[Var, Any]) -> None:
        super().__init__({}, places, {}, {})
        self._generator = torch.Generator().manual_seed(77)
        self._loaded_values: dict[Load, torch.Tensor] = {}

    def _load(self, value: Load, active: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002 - an evaluator's
        if value not in self._loaded_values:
            self._loaded_values[value] = self._random(value.dtype)
        return self._loaded_values[value]

    def _random(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(_POINTS, generator=self._generator) < 0.5
        if not dtype.is_floating_point:
            return torch.randint(0, 1 << 16, (_POINTS,), generator=self._generator).to(dtype)
        size = 10.0 ** (torch.rand(_POINTS, generator=self._generator) * 3 - 1)
        return (torch.randn(_POINTS, generator=self._generator) * size).to(dtype)


def follows(chain: Value, gradient: Load, score: Value) -> bool:
    """Whether `chain` is `gradient` times the derivative of `score` by `SCORE`, wherever the score is not -inf.

    Raises:
        NoDerivativeError: an operation on the product has none.
    """
    slope = derivative(score)
    with compat.plain_eager():
        return _is_near(unrounded(chain), gradient, score, slope)


def _is_near(chain: Value, gradient: Load, score: Value, slope: Value) -> bool:
    generator = torch.Generator().manual_seed(78)
    places = {var: torch.randint(0, int(var.extent), (_POINTS,), generator=generator) for var in _loops(chain, score)}
    points = _Points(places)
    given, x, above = points.value(chain), points.value(score), points.value(gradient)
    expected = above * points.value(slope)
    near = (given - expected).abs() <= _SLACK * expected.abs() + 1e-6 * above.abs()
    return bool((near | (x == float("-inf"))).all()) and bool(given.isfinite().all())


def _loops(*values: Value) -> list[Var]:
    return sorted(variables(values), key=lambda var: var.name)


def renamed(value: Value, same: Callable[[Load], Load | None]) -> Value:
    """A value with other loads in place of some."""
    return Rewriter(lambda part: same(part) if isinstance(part, Load) else None)(value)


def mentions(value: Value, buffer: str) -> bool:
    """Whether a value loads from a buffer."""
    return any(isinstance(part, Load) and part.buffer == buffer for part in walk([value]))
