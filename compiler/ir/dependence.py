"""Dependences of values and indices on variables, and strides of offsets from lane to lane."""

from __future__ import annotations

from typing import Any

from .index import index as ix
from .index.index import Index, Loaded, Quotient, Remainder, Var
from .value import Load, Result, Value, indices_of, operands

# What something depends on: loop variables, ("result", name) of reductions, ("buffer", name) of memory.
Sources = frozenset[Any]
NOTHING: Sources = frozenset()


class Dependence:
    """Sources of values and indices, each worked out once."""

    def __init__(self) -> None:
        self._memo: dict[Any, Sources] = {}

    def of(self, what: Value | Any) -> Sources:
        """The sources of a value or of an index."""
        if not isinstance(what, (Value, Index)):
            return NOTHING
        found = self._memo.get(what)
        if found is None:
            found = self._memo[what] = self._value(what) if isinstance(what, Value) else self._index(what)
        return found

    def _value(self, value: Value) -> Sources:
        own: Sources = NOTHING
        if isinstance(value, Result):
            own = frozenset({("result", value.reduction)})
        if isinstance(value, Load):
            own = frozenset({("buffer", value.buffer)})
        return own.union(*map(self.of, [*operands(value), *indices_of(value)]))

    def _index(self, number: Index) -> Sources:
        own: set[Any] = set()
        for atom in ix.atoms(number):
            if isinstance(atom, Var):
                own.add(atom)
            elif isinstance(atom, Loaded):
                own |= self.of(atom.value) | self.of(atom.size)
        return frozenset(own)

    def stride(self, number: Any, var: Var, lanes: int, varying: Sources = NOTHING) -> Any:
        """How much an index grows from one lane to the next, None where that is not the same for all lanes.

        Lanes are `lanes` consecutive values of `var`, the first a multiple of `lanes`. `varying` are further sources
        that differ from lane to lane.

            (768*i + j,  j)  ->  768*i's step is none: 1        (j % 64, j, 16)  ->  1        (j // 64, j, 16)  ->  0
        """
        moving = varying | {var}
        total: Any = 0
        for monomial, coefficient in ix.terms(number):
            step, rest = self._monomial(monomial, var, lanes, moving)
            if step is None:
                return None
            if step:
                total = total + ix.mul(coefficient, ix.mul(step, rest))
        return total

    def _monomial(self, monomial: Any, var: Var, lanes: int, moving: Sources) -> tuple[Any, Any]:
        step: Any = 0
        rest: Any = 1
        for atom in monomial:
            own = self._atom(atom, var, lanes, moving)
            if own is None or (step and own):
                return None, rest
            if own:
                step = own
            else:
                rest = ix.mul(rest, atom.index())
        return step, rest

    def _atom(self, atom: ix.Atom, var: Var, lanes: int, moving: Sources) -> Any:
        if atom is var:
            return 1
        if isinstance(atom, Var) or not (self.of(atom.index()) & moving):
            return 0
        if isinstance(atom, (Quotient, Remainder)) and isinstance(atom.divisor, int):
            step = self.stride(atom.dividend, var, lanes, moving)
            if step == 0:
                return 0
            if isinstance(step, int) and step > 0 and _aligned(atom, var, step * lanes, step):
                return 0 if isinstance(atom, Quotient) else step
        return None


def _aligned(atom: Quotient | Remainder, var: Var, span: int, step: int) -> bool:
    """Whether lanes never straddle a multiple of the divisor: they start at multiples of `span`, which divides it."""
    if atom.divisor % span:
        return False
    for monomial, coefficient in ix.terms(atom.dividend):
        if monomial == (var,):
            continue
        if not monomial:
            if coefficient % span >= step:
                return False
        elif coefficient % span:
            return False
    return True
