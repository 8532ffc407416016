"""Indices as C++ expressions of 64-bit integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.index.bounds import bounds, known_nonnegative
from ...ir.index.index import Atom, Least, Most, Quotient, Remainder
from ..polynomial import polynomial

Spell = Callable[[Atom], str]


def index_text(number: Any, spell: Spell) -> str:
    """An index in C++; `spell` gives variables, sizes and what is read from memory.

    768*i + j  ->  (768 * i + j)
    """
    return polynomial(number, lambda atom: _atom(atom, spell), lambda n: f"{n}ll")


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
