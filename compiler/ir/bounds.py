"""Ranges of indices: what is provable from the extents of loop variables and the bounds of sizes.

    i < 8, j < 16   =>   0 <= 16*i + j <= 127
"""

from __future__ import annotations

from typing import Any

from .index import Index, Least, Loaded, Most, Quotient, Remainder, Size, Var, add, from_terms, mul, terms

Bound = int | None  # None: unbounded


def bounds(number: Any) -> tuple[Bound, Bound]:
    """The smallest and the largest integer that an index can be, None where there is no limit."""
    low: Bound = 0
    high: Bound = 0
    for monomial, coefficient in terms(number):
        span: tuple[Bound, Bound] = (coefficient, coefficient)
        for atom in monomial:
            span = _times(span, _atom_bounds(atom))
        low = None if low is None or span[0] is None else low + span[0]
        high = None if high is None or span[1] is None else high + span[1]
    return low, high


def known_nonnegative(number: Any) -> bool:
    """Whether an index is at least 0 in every iteration, for every size."""
    low = bounds(number)[0]
    if low is not None and low >= 0:
        return True
    return isinstance(number, Index) and _known_nonnegative_symbolic(number)


def known_le(a: Any, b: Any) -> bool:
    """Whether ``a <= b`` always holds."""
    return known_nonnegative(add(b, mul(a, -1)))


def known_lt(a: Any, b: Any) -> bool:
    """Whether ``a < b`` always holds."""
    return known_nonnegative(add(add(b, mul(a, -1)), -1))


def _known_nonnegative_symbolic(number: Index) -> bool:
    """Put each variable at the end of its range that makes the number smallest: s*16 - 16*i - 1, i < s  ->  15."""
    worst = number
    for _ in range(4):
        variables = {a for m, _ in terms(worst) for a in m if isinstance(a, Var) and isinstance(a.extent, Index)}
        if not variables:
            break
        for var in sorted(variables, key=lambda v: v.digest):
            worst = _at_worst(worst, var)
    low = bounds(worst)[0]
    return low is not None and low >= 0


def _at_worst(number: Any, var: Var) -> Any:
    signs = {_sign(m, c, var) for m, c in terms(number) if var in m}
    if len(signs) != 1 or None in signs:
        return number
    end: Any = 0 if signs == {1} else add(var.extent, -1)
    total: Any = 0
    for monomial, coefficient in terms(number):
        product: Any = from_terms({tuple(a for a in monomial if a is not var): coefficient})
        for _ in range(sum(a is var for a in monomial)):
            product = mul(product, end)
        total = add(total, product)
    return total


def _sign(monomial: Any, coefficient: int, var: Var) -> int | None:
    """The sign of a term's factor at `var`, None where it is not known."""
    for atom in monomial:
        low = 0 if atom is var else _atom_bounds(atom)[0]
        if low is None or low < 0:
            return None
    return 1 if coefficient > 0 else -1


def _atom_bounds(atom: Any) -> tuple[Bound, Bound]:
    if isinstance(atom, Var):
        high = bounds(atom.extent)[1]
        return 0, None if high is None else max(high - 1, 0)
    if isinstance(atom, Size):
        return atom.low, atom.high
    if isinstance(atom, Loaded):
        # Checked (or proven) to be in range wherever it is used.
        high = bounds(atom.size)[1]
        return 0, None if high is None else max(high - 1, 0)
    if isinstance(atom, Quotient):
        return _quotient_bounds(bounds(atom.dividend), bounds(atom.divisor))
    if isinstance(atom, Remainder):
        high = bounds(atom.divisor)[1]
        return 0, None if high is None else max(high - 1, 0)
    a, b = bounds(atom.a), bounds(atom.b)
    if isinstance(atom, Least):
        return _least(a[0], b[0], None), _least(a[1], b[1], "other")
    assert isinstance(atom, Most), atom
    return _most(a[0], b[0], "other"), _most(a[1], b[1], None)


def _least(a: Bound, b: Bound, unbounded: str | None) -> Bound:
    if a is None or b is None:
        return None if unbounded is None else (b if a is None else a)
    return min(a, b)


def _most(a: Bound, b: Bound, unbounded: str | None) -> Bound:
    if a is None or b is None:
        return None if unbounded is None else (b if a is None else a)
    return max(a, b)


def _quotient_bounds(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    smallest, largest = max(b[0] or 1, 1), b[1]
    low: Bound = None
    if a[0] is not None:
        low = a[0] // smallest if a[0] < 0 else (0 if largest is None else a[0] // largest)
    high: Bound = None
    if a[1] is not None:
        high = a[1] // smallest if a[1] >= 0 else (-1 if largest is None else a[1] // largest)
    return low, high


def _times(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    if None not in a and None not in b:
        products = [x * y for x in a for y in b]  # type: ignore[operator]
        return min(products), max(products)
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None
    if a[1] is not None and a[1] <= 0 and b[0] is not None and b[0] >= 0:
        return (None if a[0] is None or b[1] is None else a[0] * b[1]), a[1] * b[0]
    return None, None
