"""The reduction algebra on torch tensors: the reference of `reducers`, against which every target is held.

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

from typing import Any

import torch

from .reducers import NO_POSITION, REDUCERS, State, algebra_of


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
    return REDUCERS[algebra_of(reducer)].identity(smallest(dtype), largest(dtype))


def start(reducer: str, dtype: torch.dtype, sizes: tuple[int, ...] = ()) -> State:
    """The identity as tensors."""
    dtypes = component_dtypes(reducer, dtype)
    return tuple(torch.full(sizes, n, dtype=d) for n, d in zip(identity(reducer, dtype), dtypes, strict=True))


def update(reducer: str, state: State, operands: State) -> State:
    """`state` with one more element in it."""
    return combine(reducer, state, element(reducer, operands))


def element(reducer: str, operands: State) -> State:
    """The state over one element alone."""
    of_one = REDUCERS[reducer].element
    return operands if of_one is None else of_one(*operands)


def combine(reducer: str, a: State, b: State) -> State:
    """The state over the elements of both."""
    made = REDUCERS[algebra_of(reducer)].combine(a, b)
    return made if isinstance(made, tuple) else (made,)


def reduce(reducer: str, operands: State) -> State:
    """The state over the last axis of `operands`."""
    (x, *_) = operands
    if x.shape[-1] == 0:
        return start(reducer, x.dtype, tuple(x.shape[:-1]))
    whole = REDUCERS[reducer].whole
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


__all__ = [
    "NO_POSITION", "State", "combine", "component_dtypes", "element", "identity", "largest", "reduce", "scan",
    "smallest", "start", "update",
]  # fmt: skip
