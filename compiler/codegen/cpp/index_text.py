"""Indices as C++ expressions of 64-bit integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.index.bounds import bounds, known_nonnegative
from ...ir.index.index import Atom, Index, Least, Most, Quotient, Remainder

Spell = Callable[[Atom], str]


def index_text(number: Any, spell: Spell) -> str:
    """An index in C++; `spell` gives variables, sizes and what is read from memory.

    768*i + j  ->  (768 * i + j)

    The text is one operand of whatever is written around it: sums and products stand in parentheses.
    """
    if not isinstance(number, Index):
        return f"{number}ll"
    factors = [_factors(monomial, coefficient, spell) for monomial, coefficient in number.terms]
    if len(factors) == 1 and len(factors[0]) == 1:
        return factors[0][0]
    return f"({' + '.join(map(' * '.join, factors))})"


def _factors(monomial: tuple[Atom, ...], coefficient: int, spell: Spell) -> list[str]:
    factors = [_atom(atom, spell) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, f"{coefficient}ll")
    return factors


def _atom(atom: Atom, spell: Spell) -> str:
    if isinstance(atom, (Quotient, Remainder)):
        return _division(atom, spell)
    if isinstance(atom, (Least, Most)):
        name = "least" if isinstance(atom, Least) else "most"
        return f"{name}<i64>({index_text(atom.a, spell)}, {index_text(atom.b, spell)})"
    return spell(atom)


def _division(atom: Quotient | Remainder, spell: Spell) -> str:
    a, b = index_text(atom.dividend, spell), index_text(atom.divisor, spell)
    whole = isinstance(atom, Quotient)
    if not known_nonnegative(atom.dividend):
        return f"floor_{'div' if whole else 'mod'}({a}, {b})"
    kind = "u32" if _short(atom.dividend) and _short(atom.divisor) else "i64"
    return f"(i64)(({kind})({a}) {'/' if whole else '%'} ({kind})({b}))"


def _short(number: Any) -> bool:
    high = bounds(number)[1]
    return high is not None and high < 2**32
