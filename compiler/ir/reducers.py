"""The reduction algebra: one definition for the interpreter and every target.

A reducer folds operands into components, starting from an identity; `combine` joins two partial results, so that
reductions may be split over lanes and threads:

    sum      (x)        -> (total)             argmax  (x, position) -> (value, position)    NaN first, then lowest
    welford  (x)        -> (mean, m2, count)   softmax (x)           -> (max, sum of exp(x - max))     online softmax

A reduction in two stages folds partial results. Where an element is a partial result over itself (a sum of sums, the
first of several positions), that is the same reducer; the others have one for their states:

    welford_states (mean, m2, count) -> (mean, m2, count)          softmax_states (max, sum) -> (max, sum)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Reducer:
    """One reducer.

    Args:
        operands: how many values an iteration contributes.
        components: the dtype of each component: ``"value"`` is the (first) operand's, else ``"int64"`` or ``"count"``
            (the operand's dtype, holding a number of elements).
        exact: regrouping changes no bits (min, max, any, integer sums): always vectorized and split freely.
        folds: the reducer whose partial results its operands are, where its own elements are something else.
    """

    operands: int
    components: tuple[Literal["value", "int64", "count"], ...]
    exact: bool = False
    folds: str = ""


REDUCERS: dict[str, Reducer] = {
    "sum": Reducer(1, ("value",)),
    "prod": Reducer(1, ("value",)),
    "max": Reducer(1, ("value",), exact=True),  # NaN if any element is
    "min": Reducer(1, ("value",), exact=True),
    "any": Reducer(1, ("value",), exact=True),  # bool
    "all": Reducer(1, ("value",), exact=True),
    "xor": Reducer(1, ("value",), exact=True),
    "argmax": Reducer(2, ("value", "int64"), exact=True),  # operands: the value, its position (int64)
    "argmin": Reducer(2, ("value", "int64"), exact=True),
    "welford": Reducer(1, ("value", "value", "count")),
    "softmax": Reducer(1, ("value", "value")),
    "logaddexp": Reducer(1, ("value",)),  # log of the sum of exp, for logcumsumexp
    "welford_states": Reducer(3, ("value", "value", "count"), folds="welford"),
    "softmax_states": Reducer(2, ("value", "value"), folds="softmax"),
}
_OF_STATES = {reducer.folds: name for name, reducer in REDUCERS.items() if reducer.folds}


def algebra_of(reducer: str) -> str:
    """The reducer whose identity and combination a reducer has: that of what it folds the states of, or itself."""
    return REDUCERS[reducer].folds or reducer


def folding_states(reducer: str) -> str:
    """The reducer that folds partial results of a reducer: its operands are the components."""
    return _OF_STATES.get(reducer, reducer)
