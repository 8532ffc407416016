"""Indices as Triton expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.index.bounds import known_nonnegative
from ...ir.index.index import Atom, Least, Most, Quotient, Remainder
from ..polynomial import polynomial

Spell = Callable[[Atom], str]


def index_text(number: Any, spell: Spell) -> str:
    """An index; `spell` gives variables, sizes and numbers that are read from memory.

    768*i + j  ->  (768 * i + j)
    """
    return polynomial(number, lambda atom: _atom(atom, spell), lambda n: f"{n}" if n >= 0 else f"({n})")


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
    return f"{'floor_div' if whole else 'floor_mod'}({a}, {b})"
