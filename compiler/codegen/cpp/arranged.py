"""Lanes that read a few elements each in an order which is the same in every vector: columns of words, periods.

for j < 64 in 16 lanes: y[j] = words[j // 8] >> shifts[j % 8]

words[j // 8]      two elements, each in eight lanes          arranged<2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, ...>
shifts[j % 8]      eight elements, twice                      arranged<8, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, ...>
"""

from __future__ import annotations

from typing import Any

from ...ir.dependence import Dependence, Sources
from ...ir.index.index import Quotient, Remainder, Var, evaluate, from_terms, rebuild, terms


def lane_offsets(number: Any, var: Var, lanes: int, dependence: Dependence, varying: Sources) -> tuple[int, ...] | None:
    """How far each lane's index is from that of the first lane, where this is the same in every vector; else None.

    Vectors begin at multiples of `lanes`: a divisor that divides these, or is a multiple, divides all vectors alike.
    """
    own: dict[Any, int] = {}
    for monomial, coefficient in terms(number):
        if not dependence.of(from_terms({monomial: 1})) & varying:
            continue
        (atom, *more) = monomial
        if more or not (atom is var or _is_of_lanes(atom, var, lanes)):
            return None
        own[monomial] = coefficient
    if not own:
        return None
    first, *others = (evaluate(from_terms(own), lambda _, lane=lane: lane) for lane in range(lanes))  # type: ignore[misc]
    return (0, *(other - first for other in others))


def span(offsets: tuple[int, ...] | None) -> int:
    """The number of elements that a vector reads for its lanes; 0 if it cannot take its lanes from such."""
    if offsets is None or min(offsets) < 0:
        return 0
    found = max(offsets) + 1
    return found if 1 < found <= len(offsets) and found & found - 1 == 0 else 0


def of_first_lane(number: Any, var: Var, lanes: int) -> Any:
    """The index of the first lane."""
    return rebuild(number, lambda atom: 0 if _starts_at_0(atom, var, lanes) else None)


def _starts_at_0(atom: Any, var: Var, lanes: int) -> bool:
    return isinstance(atom, Remainder) and _is_of_lanes(atom, var, lanes) and lanes % atom.divisor == 0


def _is_of_lanes(atom: Any, var: Var, lanes: int) -> bool:
    """Whether an atom is a quotient or a remainder of a loop in lanes, which vectors divide alike."""
    if not isinstance(atom, (Quotient, Remainder)) or atom.dividend != var.index():
        return False
    return isinstance(atom.divisor, int) and (lanes % atom.divisor == 0 or atom.divisor % lanes == 0)
