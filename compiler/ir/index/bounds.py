"""Ranges of indices: what is provable from the extents of loop variables and the bounds of sizes.

    i < 8, j < 16   =>   0 <= 16*i + j <= 127
    i < s           =>   s - i - 1 >= 0
    i < 2*s         =>   i//2 < s,  min(i, s - 1) < s,  min(i, 2*s - i) <= s

What is not proven may still be true: False means "not known".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from .index import (
    Atom,
    Index,
    Least,
    Loaded,
    Monomial,
    Most,
    Quotient,
    Remainder,
    Size,
    Var,
    add,
    from_terms,
    mul,
    rebuild,
    sub,
    terms,
)

Bound = int | None  # None: unbounded
Span = tuple[Bound, Bound]

_ROUNDS = 8  # of replacing variables whose extents mention others
_CASES = 4  # minima, maxima and quotients that are taken apart
_CACHED = 1 << 15


def bounds(number: Any) -> Span:
    """The smallest and the largest integer that an index can be, None where there is no limit."""
    return _bounds(number) if isinstance(number, Index) else (number, number)


@lru_cache(_CACHED)
def _bounds(number: Index) -> Span:
    low: Bound = 0
    high: Bound = 0
    for monomial, coefficient in number.terms:
        span: Span = (coefficient, coefficient)
        for atom in monomial:
            span = _times(span, _atom_bounds(atom))
        low = None if low is None or span[0] is None else low + span[0]
        high = None if high is None or span[1] is None else high + span[1]
    return low, high


def known_nonnegative(number: Any) -> bool:
    """Whether an index is at least 0 in every iteration, for every size."""
    if not isinstance(number, Index):
        return bool(number >= 0)
    return _is_bounded_by_0(number) or _known_nonnegative_symbolic(number)


def _is_bounded_by_0(number: Any) -> bool:
    """Whether the ranges of an index's terms add up to 0 or more, of sizes or of what sizes exceed their least by."""
    low = bounds(number)[0]
    if low is not None and low >= 0:
        return True
    shifted = _from_least(number) if isinstance(number, Index) else number
    low = None if shifted is number else bounds(shifted)[0]
    return low is not None and low >= 0


@lru_cache(_CACHED)
def _from_least(number: Index) -> Any:
    """An index whose sizes, and what is computed of them, begin at 0: products can be compared term by term.

    s*t - s, s >= 2, t >= 2    ->    (s' + 2)*(t' + 2) - (s' + 2) = s'*t' + s' + 2*t' + 2
    """
    if all(len(monomial) < 2 for monomial, _ in number.terms):
        return number  # what is added up is exact
    return rebuild(number, _above_least)


@lru_cache(_CACHED)
def _above_least(atom: Atom) -> Any:
    """An atom as what it exceeds its least by, and that; None where it begins at 0, or nowhere."""
    low, high = _atom_bounds(atom)
    if not low or low < 0:
        return None
    return add(Size(atom.digest.hex(), 0, None if high is None else high - low).index(), low)


def known_le(a: Any, b: Any) -> bool:
    """Whether ``a <= b`` always holds."""
    return known_nonnegative(sub(b, a))


def known_lt(a: Any, b: Any) -> bool:
    """Whether ``a < b`` always holds."""
    return known_nonnegative(add(sub(b, a), -1))


@lru_cache(_CACHED)
def _known_nonnegative_symbolic(number: Index) -> bool:
    return _at_least_0_at_worst(number) or _at_least_0_by_cases(number)


def _at_least_0_at_worst(number: Any) -> bool:
    """Put what has a symbolic limit at the end of its range that makes the number smallest.

    16*s - 16*i - j - 1, i < s, j < 16    ->    16*s - 16*(s - 1) - j - 1 = 15 - j    ->    0
    """
    for _ in range(_ROUNDS):
        found = {atom for monomial, _ in terms(number) for atom in monomial if _matters(atom, monomial)}
        if not found:
            break
        for atom in sorted(found, key=lambda atom: atom.rank):
            number = _at_worst(number, atom)
        if _is_bounded_by_0(number) or (isinstance(number, Index) and _at_least_0_by_cases(number)):
            return True
    return False


def _at_least_0_by_cases(number: Index) -> bool:
    """Replace a minimum, a maximum or a quotient by what it is, or by what bounds it."""
    chosen = [(m, c, a) for m, c in number.terms for a in m if isinstance(a, (Least, Most, Quotient))]
    if len(chosen) > _CASES or len({atom for *_, atom in chosen}) < len(chosen):
        return False
    return any(all(map(known_nonnegative, cases)) for term in chosen for cases in _cases(number, *term))


def _cases(number: Index, monomial: Monomial, coefficient: int, atom: Atom) -> Iterator[tuple[Any, ...]]:
    """Numbers that, if none of them is negative, show that `number` is not: one tuple for each way to show it."""
    at = monomial.index(atom)
    others = monomial[:at] + monomial[at + 1 :]
    factor, rest = from_terms({others: coefficient}), sub(number, from_terms({monomial: coefficient}))
    low = bounds(from_terms({others: 1}))[0]
    grows = None if low is None or low < 0 else coefficient > 0
    if isinstance(atom, Quotient):
        if grows is not None:
            yield (_with_quotient(rest, factor, atom, grows),)
        return
    a, b = atom.fields()
    yield add(rest, mul(factor, a)), add(rest, mul(factor, b))
    if grows is isinstance(atom, Most):
        # Either one, or their mean, makes the number no larger.
        yield (add(rest, mul(factor, a)),)
        yield (add(rest, mul(factor, b)),)
        yield (add(mul(rest, 2), mul(factor, add(a, b))),)


def _with_quotient(rest: Any, factor: Any, atom: Quotient, grows: bool) -> Any:
    """What is not negative only if ``rest + factor * (x // d)`` is not.

    Multiplied by d, the number is no less than with the most that a division cuts off, d - 1, and as an integer it is
    not negative where that is more than -d.

    rest - x//d >= 0  <=  d*rest - x + d - 1 >= 0            rest + 2*(x//d) >= 0  <=  d*rest + 2*x - (d - 1) >= 0
    """
    scaled = add(mul(rest, atom.divisor), mul(factor, atom.dividend))
    slack = sub(atom.divisor, 1)
    cut = mul(factor, slack) if grows else 0
    return add(sub(scaled, cut), slack)


def _end(atom: Atom) -> Any:
    """One more than what is the most that an atom in ``0 <= atom < end`` can be, None for other atoms."""
    if isinstance(atom, Var):
        return atom.extent
    if isinstance(atom, Remainder):
        return atom.divisor
    if isinstance(atom, Loaded):
        return atom.size
    low, high = _atom_bounds(atom) if isinstance(atom, Quotient) else (None, None)
    return None if low is None or low < 0 or high is None else high + 1


def _matters(atom: Atom, monomial: Monomial) -> bool:
    """Whether the range of an atom is lost in adding up ranges: it ends at a size, or scales one."""
    end = _end(atom)
    return isinstance(end, Index) or (end is not None and len(monomial) > 1)


def _at_worst(number: Any, limited: Atom) -> Any:
    signs = {_sign(m, c, limited) for m, c in terms(number) if limited in m}
    sign = signs.pop() if len(signs) == 1 else _sign_of_factor(number, limited)
    if sign is None:
        return number
    end: Any = 0 if sign == 1 else add(_end(limited), -1)
    total: Any = 0
    for monomial, coefficient in terms(number):
        product: Any = from_terms({tuple(a for a in monomial if a is not limited): coefficient})
        for _ in range(sum(a is limited for a in monomial)):
            product = mul(product, end)
        total = add(total, product)
    return total


def _sign_of_factor(number: Any, limited: Atom) -> int | None:
    """The sign of all that an atom is multiplied by, ``i*s*t - 2*i*s`` where ``t >= 2``; None where it is not known."""
    factor: Any = 0
    for monomial, coefficient in terms(number):
        times = sum(a is limited for a in monomial)
        if times > 1:
            return None
        if times:
            factor = add(factor, from_terms({tuple(a for a in monomial if a is not limited): coefficient}))
    if known_nonnegative(factor):
        return 1
    return -1 if known_nonnegative(mul(factor, -1)) else None


def _sign(monomial: Any, coefficient: int, limited: Atom) -> int | None:
    """The sign of a term's factor at `limited`, None where it is not known."""
    for atom in monomial:
        low = 0 if atom is limited else _atom_bounds(atom)[0]
        if low is None or low < 0:
            return None
    return 1 if coefficient > 0 else -1


def _atom_bounds(atom: Atom) -> Span:
    if isinstance(atom, Size):
        return atom.low, atom.high
    if isinstance(atom, (Var, Loaded)):
        # What is loaded is checked (or proven) to be in range wherever it is used.
        return 0, _last(_end(atom))
    if isinstance(atom, Quotient):
        return _quotient_bounds(bounds(atom.dividend), bounds(atom.divisor))
    if isinstance(atom, Remainder):
        return _remainder_bounds(bounds(atom.dividend), _last(atom.divisor))
    assert isinstance(atom, (Least, Most)), atom
    a, b = bounds(atom.a), bounds(atom.b)
    low, high = bounds(add(atom.a, atom.b))
    if isinstance(atom, Least):
        least = _nearest(min, a[1], b[1], strict=False)
        return _nearest(min, a[0], b[0], strict=True), _nearest(min, least, high and high // 2, strict=False)
    most = _nearest(max, a[0], b[0], strict=False)
    return _nearest(max, most, low and -(-low // 2), strict=False), _nearest(max, a[1], b[1], strict=True)


def _last(end: Any) -> Bound:
    high = bounds(end)[1]
    return None if high is None else max(high - 1, 0)


def _remainder_bounds(dividend: Span, last: Bound) -> Span:
    low, high = dividend
    if low is None or low < 0 or high is None:
        return 0, last
    return 0, high if last is None else min(high, last)


def _nearest(choose: Any, a: Bound, b: Bound, strict: bool) -> Bound:
    """The bound of a choice: where `strict`, one that is unbounded leaves the choice unbounded."""
    if a is None or b is None:
        return None if strict else (b if a is None else a)
    return int(choose(a, b))


def _quotient_bounds(a: Span, b: Span) -> Span:
    smallest, largest = max(b[0] or 1, 1), b[1]
    low: Bound = None
    if a[0] is not None:
        low = a[0] // smallest if a[0] < 0 else (0 if largest is None else a[0] // max(largest, 1))
    high: Bound = None
    if a[1] is not None:
        high = a[1] // smallest if a[1] >= 0 else (-1 if largest is None else a[1] // max(largest, 1))
    return low, high


def _times(a: Span, b: Span) -> Span:
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    if a[0] is not None and a[1] is not None and b[0] is not None and b[1] is not None:
        products = [a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]]
        return min(products), max(products)
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None
    if a[1] is not None and a[1] <= 0 and b[0] is not None and b[0] >= 0:
        return (None if a[0] is None or b[1] is None else a[0] * b[1]), a[1] * b[0]
    return None, None
