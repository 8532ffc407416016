"""Facts on sizes where loops have iterations: nothing is accessed in others, so whatever holds there may be assumed.

i < s - 2                  =>   s >= 3
i < (s - 1)//2, j < t*u    =>   s >= 3, t >= 1, u >= 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from .bounds import bounds
from .index import Atom, Index, Most, Quotient, Size, Var, atoms, substitute, terms

Number = Any  # int | Index


def assuming_iterations(numbers: Sequence[Number], variables: Sequence[Var] = ()) -> tuple[list[Number], list[Var]]:
    """Numbers and loop variables, their sizes bounded by what follows from iterations of all loops in them."""
    loops = [*variables, *(a for number in numbers for a in atoms(number) if isinstance(a, Var))]
    extents = {loop.extent for loop in loops if isinstance(loop.extent, Index)}
    least: dict[Atom, int] = {}
    for atom, low in chain.from_iterable(_implied(extent, 1) for extent in extents):
        least[atom] = max(low, least.get(atom, low))
    raised: dict[Atom, Number] = {atom: _at_least(atom, low) for atom, low in least.items() if not _reaches(atom, low)}
    if not extents:
        return list(numbers), list(variables)
    steps = {atom for number in numbers for atom in atoms(number) if isinstance(atom, Most)}
    counts = {extent: _count(extent, raised, Most(1, extent) in steps) for extent in extents}
    raised |= {Most(1, extent): count for extent, count in counts.items()}
    loop_of = {loop: Var(loop.name, counts.get(loop.extent, loop.extent)) for loop in loops}
    by = raised | {loop: new.index() for loop, new in loop_of.items()}
    return [substitute(number, by) for number in numbers], [loop_of[v] for v in variables]


def _count(extent: Index, raised: dict[Atom, Number], is_step: bool) -> Number:
    """How many iterations a loop has, at least 1: a size of its own where nothing follows of the sizes in it.

    The extent of a stride ``max(1, extent)`` stands in products, which have no order if they are multiplied out.
    """
    if is_step and not any(_implied(extent, 1)):
        return Size(extent.digest.hex(), 1, None).index()
    return substitute(extent, raised)


def _reaches(atom: Atom, low: int) -> bool:
    """Whether an atom is known to be no less than a number."""
    own = bounds(atom.index())[0]
    return own is not None and own >= low


def _at_least(atom: Atom, low: int) -> Number:
    """A size with another bound; another atom as a size of its own."""
    if isinstance(atom, Size):
        return Size(atom.name, low, atom.high).index()
    return Size(atom.digest.hex(), low, bounds(atom.index())[1]).index()


def _implied(number: Number, least: int) -> Iterator[tuple[Atom, int]]:
    """Lower bounds of atoms that follow from ``number >= least``."""
    constant = sum(c for monomial, c in terms(number) if not monomial)
    symbolic = [term for term in terms(number) if term[0]]
    if len(symbolic) != 1 or symbolic[0][1] < 0:
        return
    ((monomial, coefficient),) = symbolic
    low = -((constant - least) // coefficient)
    if len(monomial) > 1:
        if low < 1 or not all(_reaches(atom, 0) for atom in monomial):
            return
        low = 1  # of each factor: none is negative, and none is 0
    for atom in monomial:
        if isinstance(atom, Quotient) and not isinstance(atom.divisor, Index):
            yield from _implied(atom.dividend, low * atom.divisor)
            if _is_product(atom.dividend):  # (s*t)//7 >= 1 says more than s >= 1 and t >= 1
                yield atom, low
        else:
            yield atom, low


def _is_product(number: Number) -> bool:
    symbolic = [monomial for monomial, _ in terms(number) if monomial]
    return len(symbolic) == 1 and len(symbolic[0]) > 1
