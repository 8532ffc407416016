"""How floor division of indices simplifies: what `index.quotient` and `index.remainder` know.

    (8*i + j) // 8              ->  i                     0 <= j < 8
    (64*h + d) // 128           ->  h // 2                0 <= d < 64, dropped: it never reaches the next multiple
    (i // 4 + j) // 8           ->  (i + 4*j) // 32
    (i % 64) // 8               ->  (i // 8) % 8
    (3*(i % 16) + j) % 8        ->  (3*i + j) % 8
    (64*h + d) % 128            ->  64*(h % 2) + d
    8*(i // 8) + i % 8          ->  i
    i - 8*(i // 8)              ->  i % 8
    (i*s + j) // s              ->  i                     0 <= j < s
    4*((s + -s % 4) // 4)       ->  s + -s % 4            nothing remains

Every rule makes the divisor smaller or removes a division, so that rewriting ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

from .bounds import bounds, known_lt, known_nonnegative
from .index import (
    Atom,
    Index,
    Monomial,
    Quotient,
    Remainder,
    add,
    from_terms,
    mul,
    order,
    quotient,
    remainder,
    sub,
    terms,
)

Terms = dict[Monomial, int]


def quotient_of(a: Any, b: Any) -> Any:
    """``a // b``, one of them symbolic, b > 1."""
    constant = _constant_quotient(a, b)
    if constant is not None:
        return constant
    whole, rest = _divisible(a, b)
    if whole != 0:
        return add(whole, quotient(rest, b))
    for grain, rough, _ in _grains(a, b):
        return quotient(rough, _exactly(b, grain))
    return _nested_quotient(a, b) if isinstance(a, Index) else Quotient(a, b).index()


def remainder_of(a: Any, b: Any) -> Any:
    """``a % b``, one of them symbolic, b > 1."""
    constant = _constant_quotient(a, b)
    if constant is not None:
        return sub(a, mul(b, constant))
    rest = _unwrapped(_divisible(a, b)[1], b)
    if rest is not a:
        return remainder(rest, b)
    for grain, rough, fine in _grains(a, b):
        return add(mul(remainder(rough, _exactly(b, grain)), grain), fine)
    constant = quotient(a, b)
    return Remainder(a, b).index() if isinstance(constant, Index) else sub(a, mul(b, constant))


def merged(collected: Terms) -> Terms:
    """The terms of a sum, quotients and remainders of one division joined.

    8*(i // 8) + i % 8  ->  i         i - 8*(i // 8)  ->  i % 8
    """
    joined = next(_joined(collected), None)
    while joined is not None:
        old, new = joined
        for monomial, coefficient in (*terms(mul(old, -1)), *terms(new)):
            collected[monomial] = collected.get(monomial, 0) + coefficient
        collected = {monomial: coefficient for monomial, coefficient in collected.items() if coefficient}
        joined = next(_joined(collected), None)
    return collected


def exact(collected: Terms) -> Terms:
    """The terms of a sum, multiples of quotients by numbers as multiples of the dividends that leave no remainder.

    4*((s + -s % 4) // 4)  ->  s + -s % 4
    """
    for monomial, coefficient in collected.items():
        for at, atom in enumerate(monomial):
            if not isinstance(atom, Quotient) or isinstance(atom.divisor, Index) or coefficient % atom.divisor:
                continue
            if remainder(atom.dividend, atom.divisor) == 0:
                factor = from_terms({monomial[:at] + monomial[at + 1 :]: coefficient // atom.divisor})
                left = {m: c for m, c in collected.items() if m != monomial}
                for m, c in terms(mul(factor, atom.dividend)):
                    left[m] = left.get(m, 0) + c
                return exact({m: c for m, c in left.items() if c})
    return collected


def _joined(collected: Terms) -> Iterator[tuple[Any, Any]]:
    """Parts of the sum that are one whole, each with that whole."""
    for monomial, coefficient in sorted(collected.items(), key=order):
        for at, atom in enumerate(monomial):
            if not coefficient or not isinstance(atom, (Quotient, Remainder)):
                continue
            factor = from_terms({monomial[:at] + monomial[at + 1 :]: coefficient})
            part, whole = _with_partner(atom, factor)
            if part is not None and all(collected.get(m) == c for m, c in terms(part)):
                yield part, whole


def _with_partner(atom: Quotient | Remainder, factor: Any) -> tuple[Any, Any]:
    """What of a sum would join with ``factor * atom``, that term included, and what it would be."""
    a, b = atom.dividend, atom.divisor
    if isinstance(atom, Remainder):
        rest = from_terms({(atom,): 1})
        # Terms are added as they are: adding would itself join them.
        partner = dict(terms(mul(factor, mul(quotient(a, b), b))))
        partner.update(terms(mul(factor, rest)))
        return from_terms(partner), mul(factor, a)
    multiple = _multiple(factor, b)
    if multiple is None:
        return None, None
    times = mul(multiple, -1)
    partner = dict(terms(mul(times, a)))
    partner.update(terms(mul(factor, from_terms({(atom,): 1}))))
    return from_terms(partner), mul(times, remainder(a, b))


def _constant_quotient(a: Any, b: Any) -> int | None:
    """``a // b`` where it is the same in every iteration."""
    if isinstance(b, Index):
        return 0 if a == 0 or (known_nonnegative(a) and known_lt(a, b)) else None
    low, high = bounds(a)
    if low is None or high is None or low // b != high // b:
        return None
    return low // b


def _divisible(a: Any, b: Any) -> tuple[Any, Any]:
    """(whole, rest) such that ``a == whole * b + rest``: the terms that `b` divides, large coefficients reduced."""
    if isinstance(b, Index) and len(b.terms) > 1:
        return _long_division(a, b)
    whole: Terms = {}
    rest: Terms = {}
    ((divisor, factor),) = terms(b)
    for monomial, coefficient in terms(a):
        left = _without(monomial, divisor)
        # An exact multiple only, under a symbolic divisor; else towards zero, and the constant down.
        times = 0 if left is None else _times(coefficient, factor, floor=not monomial)
        if divisor and left is not None and coefficient % factor:
            times = 0
        if times:
            whole[left or ()] = times
        rest[monomial] = coefficient - times * factor
    return (from_terms(whole), from_terms(rest)) if whole else (0, a)


def _times(coefficient: int, factor: int, floor: bool) -> int:
    if floor or coefficient >= 0:
        return coefficient // factor
    return -(-coefficient // factor)


def _long_division(a: Any, b: Index) -> tuple[Any, Any]:
    """Division by a sum of sizes: (i*(s + 1) + j) by (s + 1)  ->  (i, j); none where the rest is not within `b`."""
    lead, factor = max(b.terms, key=lambda term: (len(term[0]), order(term)))
    whole, rest = 0, a
    for monomial, coefficient in terms(a):
        left = _without(monomial, lead)
        if left is not None and coefficient % factor == 0:
            times = from_terms({left: coefficient // factor})
            whole, rest = add(whole, times), sub(rest, mul(times, b))
    return (whole, rest) if whole != 0 and _constant_quotient(rest, b) == 0 else (0, a)


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial over another, None where that is not among its factors."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _grains(a: Any, b: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(grain, rough, fine) such that ``a == grain * rough + fine``, grain divides b, ``0 <= fine < grain``."""
    for grain in _common_factors(a, b):
        ((divisor, factor),) = terms(grain)
        rough: Terms = {}
        fine: Terms = {}
        for monomial, coefficient in terms(a):
            left = _without(monomial, divisor)
            if not monomial and not divisor:
                rough[()], fine[()] = divmod(coefficient, factor)
            elif left is not None and coefficient % factor == 0:
                rough[left] = coefficient // factor
            else:
                fine[monomial] = coefficient
        left_over = from_terms(fine)
        over = _constant_quotient(left_over, grain)
        if over is not None and rough:
            yield grain, add(from_terms(rough), over), sub(left_over, mul(grain, over))


def _common_factors(a: Any, b: Any) -> list[Any]:
    """Factors of `b` that it may share with part of `a`, large ones first."""
    if not isinstance(b, Index):
        shared = {gcd(coefficient, b) for monomial, coefficient in terms(a) if monomial}
        shared |= {gcd(x, y) for x in shared for y in shared}
        return sorted(shared - {1}, reverse=True)
    common = gcd(*(c for _, c in b.terms), *(c for m, c in terms(a) if m))
    parts: list[Any] = []
    if len(b.terms) == 1 and isinstance(a, Index):
        ((monomial, factor),) = b.terms
        parts = [from_terms({part: 1}) for part in dict.fromkeys([monomial, *((atom,) for atom in monomial)])]
        parts = [part for part in parts if part is not b]
        if factor > 1:
            parts.append(factor)
    elif common > 1:
        parts.append(common)
    return parts


def _exactly(b: Any, grain: Any) -> Any:
    ((divisor, factor),) = terms(grain)
    return from_terms({_without(m, divisor) or (): c // factor for m, c in terms(b)})


def _nested_quotient(a: Index, b: Any) -> Any:
    """A quotient of something that is itself a quotient, a remainder, or a sum with one quotient."""
    quotients = [m[0] for m, c in a.terms if c == 1 and len(m) == 1 and isinstance(m[0], Quotient)]
    if len(quotients) == 1:
        (inner,) = quotients
        others = sub(a, inner.index())
        return quotient(add(inner.dividend, mul(others, inner.divisor)), mul(inner.divisor, b))
    atom = _only(a)
    if isinstance(atom, Remainder):
        times = _multiple(atom.divisor, b)
        if times is not None:
            return remainder(quotient(atom.dividend, b), times)
    return Quotient(a, b).index()


def _unwrapped(a: Any, b: Any) -> Any:
    """`a` with remainders replaced by their dividends, where that changes it by multiples of `b` only."""
    for monomial, coefficient in terms(a):
        for at, atom in enumerate(monomial):
            if isinstance(atom, Remainder) and _multiple(mul(atom.divisor, coefficient), b) is not None:
                others = from_terms({monomial[:at] + monomial[at + 1 :]: coefficient})
                return add(sub(a, from_terms({monomial: coefficient})), mul(others, atom.dividend))
    return a


def _only(a: Index) -> Atom | None:
    """The atom that an index is, if it is one."""
    ((monomial, coefficient), *more) = a.terms
    return monomial[0] if coefficient == 1 and len(monomial) == 1 and not more else None


def _multiple(a: Any, b: Any) -> Any:
    """``a / b`` where `b` divides it, else None."""
    if not isinstance(a, Index) and not isinstance(b, Index):
        return None if a % b else a // b
    whole, rest = _divisible(a, b)
    return whole if rest == 0 else None
