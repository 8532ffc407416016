"""Indices and sizes: polynomials with integer coefficients over loop variables and symbolic sizes.

    Index ::= integer | Index + Index | Index * Index | atom
    atom  ::= Var(name, extent)            a loop variable: 0 <= v < extent
            | Size(name, low, high)        a symbolic size; low and high bound it, high None is unbounded
            | Quotient(Index, Index)       floor division, by a positive divisor
            | Remainder(Index, Index)      >= 0, by a positive divisor
            | Least(Index, Index) | Most(Index, Index)
            | Loaded(Value, size, wrap)    an integer read from memory: indirect indexing; see `value`

Plain integers stand for constants everywhere, and `Index` arithmetic gives plain integers back where nothing symbolic
remains: the common case costs no allocation. A polynomial is kept in one canonical form, so equal polynomials are one
object; `quotient` and `remainder` simplify by the ranges that variables carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from .node import Node

Number = Any  # int | Index: a plain integer or a polynomial
Monomial = tuple["Atom", ...]


class Index(Node):
    """A polynomial: terms ((monomial, coefficient), ...), sorted, no coefficient zero. Build with arithmetic."""

    __slots__: ClassVar[tuple[str, ...]] = ("terms",)
    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Number) -> Number:
        return add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Number:
        return mul(self, -1)

    def __sub__(self, other: Number) -> Number:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Number) -> Number:
        return add(other, mul(self, -1))

    def __mul__(self, other: Number) -> Number:
        return mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Number) -> Number:
        return quotient(self, other)

    def __rfloordiv__(self, other: Number) -> Number:
        return quotient(other, self)

    def __mod__(self, other: Number) -> Number:
        return remainder(self, other)

    def __rmod__(self, other: Number) -> Number:
        return remainder(other, self)

    def __repr__(self) -> str:
        from .printer import index_text

        return index_text(self)


class Atom(Node):
    """What a polynomial is made of; `index()` is the polynomial that is just it."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    def index(self) -> Index:
        return Index((((self,), 1),))


class Var(Atom):
    """A loop variable, ``0 <= v < extent``."""

    __slots__ = ("name", "extent")
    name: str
    extent: Number


class Size(Atom):
    """A symbolic size, ``low <= s <= high`` (high None: no bound)."""

    __slots__ = ("name", "low", "high")
    name: str
    low: int
    high: int | None


class Quotient(Atom):
    """Floor division by a positive number."""

    __slots__ = ("dividend", "divisor")
    dividend: Number
    divisor: Number


class Remainder(Atom):
    """What floor division leaves, in ``[0, divisor)``."""

    __slots__ = ("dividend", "divisor")
    dividend: Number
    divisor: Number


class Least(Atom):
    """The smaller of two."""

    __slots__ = ("a", "b")
    a: Number
    b: Number


class Most(Atom):
    """The larger of two."""

    __slots__ = ("a", "b")
    a: Number
    b: Number


class Loaded(Atom):
    """An index read from memory or computed from data: the integer `value`, which must address `size` elements.

    With `wrap`, negative values count from the end, as in eager's indexing. Out of range raises eager's IndexError when
    run, wherever `bounds` cannot prove that it stays in range.
    """

    __slots__ = ("value", "size", "wrap")
    value: Any  # a `value.Value` of an integer dtype
    size: Number
    wrap: bool


def terms(number: Number) -> tuple[tuple[Monomial, int], ...]:
    """The terms of a number: those of a polynomial, or the one of a constant (none for 0)."""
    if isinstance(number, Index):
        return number.terms
    return (((), int(number)),) if number else ()


def from_terms(collected: dict[Monomial, int]) -> Number:
    """The canonical number with these terms; coefficients may be zero."""
    kept = [(m, c) for m, c in collected.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    kept.sort(key=_order)
    return Index(tuple(kept))


def _order(term: tuple[Monomial, int]) -> Any:
    return tuple(_rank(atom) for atom in term[0])


def _rank(atom: Atom) -> Any:
    return (type(atom).__name__, getattr(atom, "name", ""), atom.digest)


def add(a: Number, b: Number) -> Number:
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a + b
    collected = dict(terms(a))
    for monomial, coefficient in terms(b):
        collected[monomial] = collected.get(monomial, 0) + coefficient
    return from_terms(collected)


def mul(a: Number, b: Number) -> Number:
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a * b
    collected: dict[Monomial, int] = {}
    for left, x in terms(a):
        for right, y in terms(b):
            monomial = tuple(sorted(left + right, key=_rank)) if left and right else left or right
            collected[monomial] = collected.get(monomial, 0) + x * y
    return from_terms(collected)


def quotient(a: Number, b: Number) -> Number:
    """``a // b`` for b > 0.

    (8*i + j) // 8  ->  i    where 0 <= j < 8
    """
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a // b
    if b == 1:
        return a
    whole, rest = _split(a, b)
    if _within(rest, b):
        return whole
    if isinstance(rest, Index) or isinstance(b, Index):
        rest, b = _lowest_terms(rest, b)
        return add(whole, Quotient(rest, b).index() if isinstance(rest, Index) or isinstance(b, Index) else rest // b)
    return add(whole, rest // b)


def remainder(a: Number, b: Number) -> Number:
    """``a % b``, in [0, b), for b > 0.

    (8*i + j) % 8  ->  j    where 0 <= j < 8
    """
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a % b
    if b == 1:
        return 0
    _, rest = _split(a, b)
    if _within(rest, b):
        return rest
    return Remainder(rest, b).index() if isinstance(rest, Index) or isinstance(b, Index) else rest % b


def least(a: Number, b: Number) -> Number:
    from .bounds import known_le

    if known_le(a, b):
        return a
    return b if known_le(b, a) else Least(a, b).index()


def most(a: Number, b: Number) -> Number:
    from .bounds import known_le

    if known_le(a, b):
        return b
    return a if known_le(b, a) else Most(a, b).index()


def _split(a: Number, b: Number) -> tuple[Number, Number]:
    """Quotient and rest such that ``a == quotient * b + rest``, taking the terms that `b` divides for sure."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms(a):
        part = _divided(monomial, coefficient, b)
        if part is None:
            rest[monomial] = coefficient
            continue
        (left, times), left_over = part
        if times:
            whole[left] = whole.get(left, 0) + times
        if left_over:
            rest[monomial] = left_over
    return from_terms(whole), from_terms(rest)


def _divided(monomial: Monomial, coefficient: int, b: Number) -> tuple[tuple[Monomial, int], int] | None:
    """One term over `b`: the quotient's term, and what coefficient is left."""
    if not isinstance(b, Index):
        times, left_over = divmod(coefficient, b)
        return ((monomial, times), left_over)
    if len(b.terms) != 1:
        return None
    (divisor, factor), atoms = b.terms[0], list(monomial)
    for atom in divisor:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return None if coefficient % factor else ((tuple(atoms), coefficient // factor), 0)


def _within(number: Number, limit: Number) -> bool:
    from .bounds import known_lt, known_nonnegative

    return known_nonnegative(number) and known_lt(number, limit)


def _lowest_terms(a: Number, b: Number) -> tuple[Number, Number]:
    """(4*i + 2) // 8  ->  (2*i + 1) // 4; a common integer factor only."""
    from math import gcd

    common = gcd(*(c for _, c in terms(a)), *(c for _, c in terms(b)))
    if common <= 1:
        return a, b
    return tuple(from_terms({m: c // common for m, c in terms(n)}) for n in (a, b))  # type: ignore[return-value]


def atoms(number: Number) -> Iterator[Atom]:
    """Every atom of a number, nested ones included, values inside `Loaded` not entered."""
    for monomial, _ in terms(number):
        for atom in monomial:
            yield atom
            for field in atom.fields():
                if isinstance(field, Index) and not isinstance(atom, (Var, Loaded)):
                    yield from atoms(field)


def rebuild(number: Number, replace: Callable[[Atom], Number | None]) -> Number:
    """`number` with atoms replaced, simplified anew; where `replace` gives None the atom stays, its parts rebuilt."""
    if not isinstance(number, Index):
        return number
    total: Number = 0
    for monomial, coefficient in number.terms:
        product: Number = coefficient
        for atom in monomial:
            product = mul(product, _rebuilt(atom, replace))
        total = add(total, product)
    return total


_MAKE: dict[type, Callable[[Number, Number], Number]] = {
    Quotient: quotient, Remainder: remainder, Least: least, Most: most,
}  # fmt: skip


def _rebuilt(atom: Atom, replace: Callable[[Atom], Number | None]) -> Number:
    made = replace(atom)
    if made is not None:
        return made
    make = _MAKE.get(type(atom))
    if make is None:
        return atom.index()
    a, b = atom.fields()
    return make(rebuild(a, replace), rebuild(b, replace))
