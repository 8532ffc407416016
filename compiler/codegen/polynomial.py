"""Indices as text, in whatever language: sums of products of atoms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.index.index import Atom, Index


def polynomial(number: Any, atom: Callable[[Atom], str], constant: Callable[[int], str]) -> str:
    """An index as one operand of whatever is written around it: sums and products stand in parentheses.

    768*i + j  ->  (768 * i + j)

    Args:
        number: the index.
        atom: the text of a variable, a size, a quotient, ...
        constant: the text of an integer.
    """
    if not isinstance(number, Index):
        return constant(number)
    factors = [_factors(monomial, coefficient, atom, constant) for monomial, coefficient in number.terms]
    if len(factors) == 1 and len(factors[0]) == 1:
        return factors[0][0]
    return f"({' + '.join(map(' * '.join, factors))})"


def _factors(
    monomial: tuple[Atom, ...], coefficient: int, atom: Callable[[Atom], str], constant: Callable[[int], str]
) -> list[str]:
    first = [constant(coefficient)] if coefficient != 1 or not monomial else []
    return [*first, *map(atom, monomial)]
