"""Indices as C++ expressions, of 64-bit integers or of 32-bit integers, of which a vector holds twice as many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir.index.bounds import bounds, known_nonnegative
from ...ir.index.index import Atom, Index, Least, Loaded, Most, Quotient, Remainder, Size, Var, atoms
from ..polynomial import polynomial

_ROOM = torch.iinfo(torch.int32).max // 2  # the number that is added to a dividend may be as large as the dividend
Spell = Callable[[Atom], str]


def index_text(number: Any, spell: Spell) -> str:
    """An index in C++; `spell` returns the text of variables, sizes and numbers read from memory.

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


def fits_short(number: Any) -> bool:
    """Whether an index can be computed in 32 bits: it fits, as do all dividends and compared numbers in it."""
    if not _in_short(number):
        return False
    for atom in atoms(number) if isinstance(number, Index) else ():
        if isinstance(atom, Size):
            return False
        if isinstance(atom, (Var, Loaded)):
            continue
        parts = atom.fields()
        if not all(map(fits_short, parts)):
            return False
        if isinstance(atom, (Quotient, Remainder)) and not isinstance(atom.divisor, int):
            return False
    return True


def short_text(number: Any, spell: Spell, lanes: int) -> str:
    """An index that `fits_short` in C++, as a vector of i32; `spell` returns vectors, or i32 if lanes agree.

    Compilers do not vectorize a loop over lanes that contains more than an addition, so the text uses arithmetic of
    vectors. If a dividend may be negative, a multiple of the divisor is added first.
    """
    return f"each<{lanes}>({polynomial(number, lambda atom: _short_atom(atom, spell, lanes), str)})"


def _short_atom(atom: Atom, spell: Spell, lanes: int) -> str:
    if isinstance(atom, (Least, Most)):
        a, b = short_text(atom.a, spell, lanes), short_text(atom.b, spell, lanes)
        return f"{'lesser' if isinstance(atom, Least) else 'greater'}({a}, {b})"
    if not isinstance(atom, (Quotient, Remainder)):
        return spell(atom)
    divisor, low = atom.divisor, bounds(atom.dividend)[0]
    periods = -(min(low or 0, 0) // divisor)
    kind = f"V<{{}}32, {lanes}>"
    dividend = f"({kind.format('u')})({short_text(atom.dividend, spell, lanes)} + {periods * divisor})"
    if isinstance(atom, Remainder):
        return f"({kind.format('i')})({dividend} % {divisor}u)"
    return f"(({kind.format('i')})({dividend} / {divisor}u) - {periods})"


def _in_short(number: Any) -> bool:
    low, high = bounds(number)
    return low is not None and high is not None and low > -_ROOM and high < _ROOM


def _short(number: Any) -> bool:
    high = bounds(number)[1]
    return high is not None and high < 2**32
