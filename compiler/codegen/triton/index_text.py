"""Indices as Triton expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.index.bounds import known_nonnegative
from ...ir.index.index import Atom, Index, Least, Most, Quotient, Remainder

Spell = Callable[[Atom], str]


def index_text(number: Any, spell: Spell) -> str:
    """An index; `spell` gives variables, sizes and what is read from memory.

    768*i + j  ->  (768 * i + j)
    """
    if not isinstance(number, Index):
        return f"{number}" if number >= 0 else f"({number})"
    factors = [_factors(monomial, coefficient, spell) for monomial, coefficient in number.terms]
    if len(factors) == 1 and len(factors[0]) == 1:
        return factors[0][0]
    return f"({' + '.join(map(' * '.join, factors))})"


def _factors(monomial: tuple[Atom, ...], coefficient: int, spell: Spell) -> list[str]:
    factors = [_atom(atom, spell) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, f"{coefficient}" if coefficient >= 0 else f"({coefficient})")
    return factors


def _atom(atom: Atom, spell: Spell) -> str:
    if isinstance(atom, (Least, Most)):
        name = "tl.minimum" if isinstance(atom, Least) else "tl.maximum"
        return f"{name}({index_text(atom.a, spell)}, {index_text(atom.b, spell)})"
    if not isinstance(atom, (Quotient, Remainder)):
        return spell(atom)
    a, b = index_text(atom.dividend, spell), index_text(atom.divisor, spell)
    whole = isinstance(atom, Quotient)
    if known_nonnegative(atom.dividend):
        return f"({a} {'//' if whole else '%'} {b})"
    return f"{'floor_quotient' if whole else 'floor_mod'}({a}, {b})"
