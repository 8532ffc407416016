"""An innermost axis that is taken apart wherever it goes becomes two axes: rows, and places within a row.

    for i < 784: out[i] = x[i] if 0 <= i // 28 + p < 28 and 0 <= i % 28 + q < 28 else 0

    for r < 28, c < 28: out[28*r + c] = x[28*r + c] if 0 <= r + p < 28 and 0 <= c + q < 28 else 0

Lanes divide one by one, since processors have no vectors of quotients; and values of a whole row are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ir.index.index import Quotient, Remainder, Var, atoms
from .groups import Axes, Member, split_axes

LEAST_ROW = 16  # elements: lanes of the widest vectors of 32 bits (AVX-512); shorter rows would leave lanes empty


def apart_by_rows(members: tuple[Member, ...], axes: Axes) -> tuple[Member, ...]:
    """Members of a definition with their innermost axis in two, where it is divided into rows of a fixed length."""
    innermost = dict.fromkeys(member.outer[-1] for member in members if member.outer)
    pieces = {axis: parts for axis in innermost if (parts := _pieces(members, axis, axes))}
    return split_axes(members, pieces) if pieces else members


def _pieces(members: tuple[Member, ...], axis: Var, axes: Axes) -> tuple[Var, ...]:
    divisors = {d for member in members for number in _numbers(member) for d in _divisors(number, axis)}
    rows = [d for d in divisors if isinstance(axis.extent, int) and axis.extent % d == 0 and d >= LEAST_ROW]
    if not rows or min(rows) >= axis.extent:
        return ()
    return axes.fresh(axis.extent // min(rows)), axes.fresh(min(rows))


def _numbers(member: Member) -> Iterator[Any]:
    yield from (access.offset for access in member.accesses if access.offset is not None)
    yield from member.numbers


def _divisors(number: Any, axis: Var) -> Iterator[int]:
    """The divisor of an axis itself in an index: 28 in ``784*j + i // 28``."""
    for atom in atoms(number):
        if isinstance(atom, (Quotient, Remainder)) and atom.dividend == axis.index() and isinstance(atom.divisor, int):
            yield atom.divisor
