"""The reduction algebra: one definition for the interpreter and every target.

A reducer folds operands into components, starting from an identity; `combine` joins two partial results, so that
reductions may be split over lanes and threads:

    sum      (x)        -> (total)             argmax  (x, position) -> (value, position)    NaN first, then lowest
    welford  (x)        -> (mean, m2, count)   softmax (x)           -> (max, sum of exp(x - max))     online softmax

A reduction in two stages folds partial results. The reducer is the same if an element is a partial result over
itself (a sum of sums, the first of several positions); the others have one for their states:

    welford_states (mean, m2, count) -> (mean, m2, count)          softmax_states (max, sum) -> (max, sum)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

State = tuple[torch.Tensor, ...]
NO_POSITION = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Reducer:
    """One reducer.

    Args:
        operands: how many values an iteration contributes.
        components: the dtype of each component: ``"value"`` is the (first) operand's, else ``"int64"`` or ``"count"``
            (the operand's dtype, holding a number of elements).
        identity: the components over nothing, given the lowest and the highest number of the dtype. A reducer of
            partial results has none, as its other functions are those of the reducer that it `folds`.
        combine: the components over the elements of two states; one alone needs no tuple.
        element: the components over one element; None: they are the operands.
        whole: the components over the last axis, where torch has a function; None: halves are combined.
        exact: regrouping changes no bits (min, max, any, integer sums): always vectorized and split freely.
        folds: the reducer whose partial results its operands are, where its own elements are something else.
        floating: takes floating operands only.
        operation: the pointwise operation that joins two states, if there is one.
        idempotent: whether the fold of equal elements is that element.
        of_truths: the reducer that does the same for truth values.
        wins: of a reducer with a position: the comparison that the better value wins, and the reducer of values alone.
        cpp: joins two states in C++: an expression, or by default calls of ``up_<name>`` and ``co_<name>``.
        cpp_truths: the same for truth values.
        simple: takes one machine operation for an element; `costly`: takes many.
        folds_lanes: whether Triton has ``fold_<name>``, which is faster than joining lanes two at a time.
        from_zero: whether the result of floats starts from 0.0, which shows in the sign of zeros.
        run: elements in one accumulator of a CPU before it is folded into another, which bounds rounding errors: means
            of moments are rounded at each step, as are squares of differences. None: the order does not matter.
    """

    operands: int
    components: tuple[Literal["value", "int64", "count"], ...]
    identity: Callable[[Any, Any], tuple[Any, ...]] = lambda low, high: ()
    combine: Callable[[State, State], Any] = lambda a, b: ()
    element: Callable[[torch.Tensor], State] | None = None
    whole: Callable[[torch.Tensor], State] | None = None
    exact: bool = False
    folds: str = ""
    floating: bool = False
    operation: str = ""
    idempotent: bool = False
    of_truths: str = ""
    wins: tuple[str, str] | None = None
    cpp: str = ""
    cpp_truths: str = ""
    simple: bool = False
    costly: bool = False
    folds_lanes: bool = False
    from_zero: bool = False
    run: int | None = None

    @property
    def has_position(self) -> bool:
        """Whether a component is a position."""
        return "int64" in self.components


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


def _joined(
    identity: Callable[[Any, Any], tuple[Any, ...]],
    combine: Callable[[State, State], Any],
    cpp: str,
    cpp_truths: str,
    **more: Any,
) -> Reducer:
    """A reducer of one component that one operation joins."""
    more = {"simple": True, **more}
    return Reducer(1, ("value",), identity, combine, cpp=cpp, cpp_truths=cpp_truths, **more)


REDUCERS: dict[str, Reducer] = {
    "sum": _joined(
        lambda low, high: (0,), lambda a, b: a[0] + b[0], "{0} + {1}", "{0} | {1}", operation="add",
        whole=lambda x: (x.sum(-1, dtype=x.dtype),), from_zero=True, run=256,
    ),
    "prod": _joined(
        lambda low, high: (1,), lambda a, b: a[0] * b[0], "{0} * {1}", "{0} & {1}", operation="mul",
        whole=lambda x: (x.prod(-1, dtype=x.dtype),),
    ),
    "max": _joined(  # NaN if any element is
        lambda low, high: (low,), lambda a, b: torch.maximum(a[0], b[0]), "op_maximum({0}, {1})", "{0} | {1}",
        operation="maximum", whole=lambda x: (x.amax(-1),), exact=True, idempotent=True, of_truths="any",
    ),
    "min": _joined(
        lambda low, high: (high,), lambda a, b: torch.minimum(a[0], b[0]), "op_minimum({0}, {1})", "{0} & {1}",
        operation="minimum", whole=lambda x: (x.amin(-1),), exact=True, idempotent=True, of_truths="all",
    ),
    "any": _joined(  # bool
        lambda low, high: (False,), lambda a, b: a[0] | b[0], "{0} | {1}", "{0} | {1}", operation="logical_or",
        exact=True, idempotent=True,
    ),
    "all": _joined(
        lambda low, high: (True,), lambda a, b: a[0] & b[0], "{0} & {1}", "{0} & {1}", operation="logical_and",
        exact=True, idempotent=True,
    ),
    "xor": _joined(
        lambda low, high: (0,), lambda a, b: a[0] ^ b[0], "{0} ^ {1}", "{0} ^ {1}", exact=True
    ),
    "argmax": Reducer(  # operands: the value, its position (int64)
        2, ("value", "int64"), lambda low, high: (low, NO_POSITION), _first(torch.gt), exact=True,
        wins=("gt", "max"), folds_lanes=True,
    ),
    "argmin": Reducer(
        2, ("value", "int64"), lambda low, high: (high, NO_POSITION), _first(torch.lt), exact=True,
        wins=("lt", "min"), folds_lanes=True,
    ),
    "welford": Reducer(
        1, ("value", "value", "count"), lambda low, high: (0, 0, 0), _welford, _one_for_welford, _whole_welford,
        floating=True, costly=True, folds_lanes=True, run=64,
    ),
    "softmax": Reducer(
        1, ("value", "value"), lambda low, high: (-torch.inf, 0), _softmax, lambda x: (x, _scale(x, x)),
        _whole_softmax, floating=True, folds_lanes=True, run=256,
    ),
    "logaddexp": _joined(  # log of the sum of exp, for logcumsumexp
        lambda low, high: (-torch.inf,), lambda a, b: torch.logaddexp(a[0], b[0]), "logaddexp({0}, {1})", "",
        whole=lambda x: (x.logsumexp(-1),), simple=False, floating=True, from_zero=True,
    ),
    "welford_states": Reducer(3, ("value", "value", "count"), folds="welford"),
    "softmax_states": Reducer(2, ("value", "value"), folds="softmax"),
}  # fmt: skip
_OF_STATES = {reducer.folds: name for name, reducer in REDUCERS.items() if reducer.folds}


def algebra_of(reducer: str) -> str:
    """The reducer whose identity and combination a reducer has: that of what it folds the states of, or itself."""
    return REDUCERS[reducer].folds or reducer


def folding_states(reducer: str) -> str:
    """The reducer that folds partial results of a reducer: its operands are the components."""
    return _OF_STATES.get(reducer, reducer)
