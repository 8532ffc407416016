"""The reduction algebra on torch tensors: the reference that `reducers` names and every target is held against.

State is a tuple of components. `identity` starts, `update` folds one element into it, `combine` joins two states,
`reduce` folds a whole axis at once; elementwise over tensors of any shape.

    max, min     NaN if any element is                             over nothing: -inf, inf (integers: the extremes)
    argmax       NaN is larger than anything; ties: lowest position         over nothing: (-inf, 2**63 - 1)
    argmin       NaN is smaller than anything; ties likewise                over nothing: (inf, 2**63 - 1)
    welford      (mean, sum of squared differences, count)                  over nothing: (0, 0, 0)
                 an element that is not finite: the sum is NaN, the mean not finite
    softmax      (max, sum of exp(x - max)); an element -inf counts as 0    over nothing, and over -inf: (-inf, 0)
    ..._states   as what they fold the states of; operands are components   over nothing: the same
    logaddexp    log of the sum of exp                                      over nothing: -inf
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .reducers import REDUCERS, algebra_of

State = tuple[torch.Tensor, ...]
NO_POSITION = torch.iinfo(torch.int64).max


def component_dtypes(reducer: str, dtype: torch.dtype, place: torch.dtype = torch.int64) -> tuple[torch.dtype, ...]:
    """The dtypes of a reducer's components, its (first) operand being of `dtype`, its places of `place`."""
    return tuple(place if kind == "int64" else dtype for kind in REDUCERS[reducer].components)


def smallest(dtype: torch.dtype) -> Any:
    """The lower bound of all numbers of a dtype: -inf, False, or the smallest integer."""
    if dtype.is_floating_point:
        return -torch.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def largest(dtype: torch.dtype) -> Any:
    """The upper bound of all numbers of a dtype: inf, True, or the largest integer."""
    if dtype.is_floating_point:
        return torch.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def identity(reducer: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """The components over no elements at all, as Python numbers."""
    return ALGEBRAS[algebra_of(reducer)].identity(smallest(dtype), largest(dtype))


def start(reducer: str, dtype: torch.dtype, sizes: tuple[int, ...] = ()) -> State:
    """The identity as tensors."""
    dtypes = component_dtypes(reducer, dtype)
    return tuple(torch.full(sizes, n, dtype=d) for n, d in zip(identity(reducer, dtype), dtypes, strict=True))


def update(reducer: str, state: State, operands: State) -> State:
    """`state` with one more element in it."""
    return combine(reducer, state, element(reducer, operands))


def element(reducer: str, operands: State) -> State:
    """The state over one element alone."""
    of_one = ALGEBRAS[reducer].element if reducer in ALGEBRAS else None
    return operands if of_one is None else of_one(*operands)


def combine(reducer: str, a: State, b: State) -> State:
    """The state over the elements of both."""
    made = ALGEBRAS[algebra_of(reducer)].combine(a, b)
    return made if isinstance(made, tuple) else (made,)


def reduce(reducer: str, operands: State) -> State:
    """The state over the last axis of `operands`."""
    (x, *_) = operands
    if x.shape[-1] == 0:
        return start(reducer, x.dtype, tuple(x.shape[:-1]))
    whole = ALGEBRAS[reducer].whole if reducer in ALGEBRAS else None
    return whole(*operands) if whole is not None else _halved(reducer, element(reducer, operands))


def scan(reducer: str, operands: State) -> State:
    """The states over ever longer beginnings of the last axis, stacked along it."""
    (x, *_) = operands
    state = start(reducer, x.dtype, tuple(x.shape[:-1]))
    states = []
    for k in range(x.shape[-1]):
        state = update(reducer, state, tuple(operand[..., k] for operand in operands))
        states.append(state)
    if not states:
        return tuple(component.unsqueeze(-1)[..., :0] for component in state)
    return tuple(torch.stack(parts, -1) for parts in zip(*states, strict=True))


def _halved(reducer: str, state: State) -> State:
    while (size := state[0].shape[-1]) > 1:
        half = size // 2
        joined = combine(reducer, *(tuple(c[..., s] for c in state) for s in (slice(half), slice(half, 2 * half))))
        left_over = tuple(c[..., 2 * half :] for c in state)
        state = tuple(torch.cat(parts, -1) for parts in zip(joined, left_over, strict=True))
    return tuple(c[..., 0] for c in state)


def _first(better: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[State, State], State]:
    def choose(a: State, b: State) -> State:
        (x, i), (y, j) = a, b
        both_nan = (x != x) & (y != y)
        tie = (x == y) | both_nan
        left = torch.where(tie, i <= j, ((x != x) & ~both_nan) | better(x, y))
        return torch.where(left, x, y), torch.where(left, i, j)

    return choose


def _welford(a: State, b: State) -> State:
    (mean_a, m2_a, n_a), (mean_b, m2_b, n_b) = a, b
    n = n_a + n_b
    share = torch.where(n_b == 0, 0, n_b / n)
    delta = torch.where((n_a == 0) | (n_b == 0), 0, mean_b - mean_a)
    mean = torch.where(n_a == 0, mean_b, mean_a + delta * share)
    return mean, m2_a + m2_b + delta * delta * n_a * share, n


def _softmax(a: State, b: State) -> State:
    (max_a, sum_a), (max_b, sum_b) = a, b
    top = torch.maximum(max_a, max_b)
    return top, sum_a * _scale(max_a, top) + sum_b * _scale(max_b, top)


def _scale(x: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    return torch.where(x == -torch.inf, torch.zeros_like(x), torch.exp(x - top))


def _one_for_welford(x: torch.Tensor) -> State:
    return x, torch.where(torch.isfinite(x), 0, torch.nan).to(x.dtype), torch.ones_like(x)


def _whole_welford(x: torch.Tensor) -> State:
    mean = x.mean(-1)
    return mean, (x - mean.unsqueeze(-1)).square().sum(-1), torch.full_like(mean, x.shape[-1])


def _whole_softmax(x: torch.Tensor) -> State:
    top = x.amax(-1)
    return top, _scale(x, top.unsqueeze(-1)).sum(-1)


@dataclass(frozen=True)
class Algebra:
    """The reference of one reducer.

    Args:
        identity: the components over nothing, given the lowest and the highest number of the dtype.
        combine: the components over the elements of two states; one alone needs no tuple.
        element: the components over one element; None: they are the operands.
        whole: the components over the last axis, where torch has a function; None: halves are combined.
    """

    identity: Callable[[Any, Any], tuple[Any, ...]]
    combine: Callable[[State, State], Any]
    element: Callable[[torch.Tensor], State] | None = None
    whole: Callable[[torch.Tensor], State] | None = None


ALGEBRAS: dict[str, Algebra] = {
    "sum": Algebra(lambda low, high: (0,), lambda a, b: a[0] + b[0], whole=lambda x: (x.sum(-1, dtype=x.dtype),)),
    "prod": Algebra(lambda low, high: (1,), lambda a, b: a[0] * b[0], whole=lambda x: (x.prod(-1, dtype=x.dtype),)),
    "max": Algebra(lambda low, high: (low,), lambda a, b: torch.maximum(a[0], b[0]), whole=lambda x: (x.amax(-1),)),
    "min": Algebra(lambda low, high: (high,), lambda a, b: torch.minimum(a[0], b[0]), whole=lambda x: (x.amin(-1),)),
    "any": Algebra(lambda low, high: (False,), lambda a, b: a[0] | b[0]),
    "all": Algebra(lambda low, high: (True,), lambda a, b: a[0] & b[0]),
    "xor": Algebra(lambda low, high: (0,), lambda a, b: a[0] ^ b[0]),
    "argmax": Algebra(lambda low, high: (low, NO_POSITION), _first(torch.gt)),
    "argmin": Algebra(lambda low, high: (high, NO_POSITION), _first(torch.lt)),
    "welford": Algebra(lambda low, high: (0, 0, 0), _welford, _one_for_welford, _whole_welford),
    "softmax": Algebra(lambda low, high: (-torch.inf, 0), _softmax, lambda x: (x, _scale(x, x)), _whole_softmax),
    "logaddexp": Algebra(
        lambda low, high: (-torch.inf,), lambda a, b: torch.logaddexp(a[0], b[0]), whole=lambda x: (x.logsumexp(-1),)
    ),
}
