# ruff: noqa: RUF023 (fields are positional: their order is the grammar's)
"""Indices and sizes: polynomials with integer coefficients over loop variables and symbolic sizes.

    Index ::= integer | Index + Index | Index * Index | atom
    atom  ::= Var(name, extent)            a loop variable: 0 <= v < extent
            | Size(name, low, high)        a symbolic size or int; low and high bound it, None where there is no bound
            | Late(name, low, high, tokens)    a Size that the program itself makes known when it runs
            | Quotient(Index, Index)       floor division, by a positive divisor
            | Remainder(Index, Index)      >= 0, by a positive divisor
            | Least(Index, Index) | Most(Index, Index)
            | Loaded(Value, size, wrap)    an integer read from memory: indirect indexing; see `value`

Plain integers stand for constants everywhere, and `Index` arithmetic gives plain integers back where nothing symbolic
remains: the common case costs no allocation. A polynomial is kept in one canonical form, so equal polynomials are one
object; `quotient` and `remainder` simplify by the ranges that variables carry (see `division`). An extent of a loop
variable may be 0: then nothing runs, and whatever is claimed of the variable holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar

from ..node import Node

Number = Any  # int | Index: a plain integer or a polynomial
Monomial = tuple["Atom", ...]

TOKEN = "known "  # a buffer that stands for a symbol which a call makes known is named so, then for the symbol
_CACHED = 1 << 15  # results of arithmetic that are remembered, of each operation
_by_rank = attrgetter("rank")


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
        return number_text(self, repr)


class Atom(Node):
    """A factor of a polynomial's terms; `index()` is the polynomial that is just this factor.

    `rank` orders atoms: by kind, then name, then structure.
    """

    __slots__: ClassVar[tuple[str, ...]] = ("rank",)
    rank: tuple[Any, ...]

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        object.__setattr__(self, "rank", self._ranked())

    def index(self) -> Index:
        """The polynomial that is this atom."""
        return Index((((self,), 1),))

    def _ranked(self) -> tuple[Any, ...]:
        return (type(self).__name__, self.digest)


class Var(Atom):
    """A loop variable, ``0 <= v < extent``."""

    __slots__ = ("name", "extent")
    name: str
    extent: Number

    def _ranked(self) -> tuple[Any, ...]:
        # Variables come first: no class is spelled "".
        return ("", self.name, *((1, self.extent.digest) if isinstance(self.extent, Index) else (0, self.extent)))


class Size(Atom):
    """A symbolic size, or another int of the caller's, ``low <= s <= high`` (None: no bound; it may be negative)."""

    __slots__ = ("name", "low", "high")
    name: str
    low: int | None
    high: int | None


class Late(Size):
    """A number that a call of the program makes known, or that follows from such.

    What speaks of it runs after the calls that write the `tokens`: buffers without elements, one for each symbol of
    the program that is made known (`TOKEN`).
    """

    __slots__ = ("name", "low", "high", "tokens")
    tokens: tuple[str, ...]


class Quotient(Atom):
    """Floor division by a positive number."""

    __slots__ = ("dividend", "divisor")
    dividend: Number
    divisor: Number


class Remainder(Atom):
    """The remainder of floor division, in ``[0, divisor)``."""

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


def from_terms(collected: Mapping[Monomial, int]) -> Number:
    """The canonical number with these terms; coefficients may be zero."""
    kept = [term for term in collected.items() if term[1]]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=order)
    elif not kept[0][0]:
        return kept[0][1]
    return Index(tuple(kept))


def order(term: tuple[Monomial, int]) -> Any:
    """Sorts terms: the constant comes last."""
    return (not term[0], [atom.rank for atom in term[0]])


def add(a: Number, b: Number) -> Number:
    """``a + b``.

    8*(i//8) + i%8  ->  i
    """
    if isinstance(a, Index):
        return _sum(a, b)
    return _sum(b, a) if isinstance(b, Index) else a + b


def sub(a: Number, b: Number) -> Number:
    """``a - b``."""
    return add(a, mul(b, -1))


def mul(a: Number, b: Number) -> Number:
    """``a * b``, multiplied out."""
    if isinstance(a, Index):
        return _product(a, b)
    return _product(b, a) if isinstance(b, Index) else a * b


@lru_cache(_CACHED)
def _sum(a: Index, b: Number) -> Number:
    collected = dict(a.terms)
    for monomial, coefficient in terms(b):
        collected[monomial] = collected.get(monomial, 0) + coefficient
    if any(isinstance(atom, (Quotient, Remainder)) for monomial in collected for atom in monomial):
        from .division import merged

        collected = merged(collected)
    return from_terms(collected)


@lru_cache(_CACHED)
def _product(a: Index, b: Number) -> Number:
    if not isinstance(b, Index):
        if not b:
            return 0
        collected = {monomial: coefficient * b for monomial, coefficient in a.terms}
        return _without_divisions(collected) if abs(b) > 1 else Index(tuple(collected.items()))
    collected = {}
    for left, x in a.terms:
        for right, y in b.terms:
            monomial = tuple(sorted(left + right, key=_by_rank)) if left and right else left or right
            collected[monomial] = collected.get(monomial, 0) + x * y
    return _without_divisions(collected)


def _without_divisions(collected: dict[Monomial, int]) -> Number:
    """The number with these terms; quotients that are multiplied by their divisors go where nothing remains."""
    if any(isinstance(atom, Quotient) for monomial in collected for atom in monomial):
        from .division import exact

        collected = exact(collected)
    return from_terms(collected)


@lru_cache(_CACHED)
def quotient(a: Number, b: Number) -> Number:
    """``a // b`` for b > 0.

    (8*i + j) // 8  ->  i    where 0 <= j < 8

    A divisor of 0 is the extent of a loop that never runs: 0.

    Raises:
        ValueError: `b` is a negative integer.
    """
    if not isinstance(b, Index) and b < 1:
        return _by_nothing(a, b)
    if b == 1:
        return a
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a // b
    from .division import quotient_of

    return quotient_of(a, b)


@lru_cache(_CACHED)
def remainder(a: Number, b: Number) -> Number:
    """``a % b``, in [0, b), for b > 0.

    (8*i + j) % 8  ->  j    where 0 <= j < 8

    A divisor of 0 is the extent of a loop that never runs: 0.

    Raises:
        ValueError: `b` is a negative integer.
    """
    if not isinstance(b, Index) and b < 1:
        return _by_nothing(a, b)
    if b == 1:
        return 0
    if not isinstance(a, Index) and not isinstance(b, Index):
        return a % b
    from .division import remainder_of

    return remainder_of(a, b)


def _by_nothing(a: Number, b: int) -> int:
    if b < 0:
        raise ValueError(f"{a!r} over {b}: only positive numbers divide")
    return 0


@lru_cache(_CACHED)
def least(a: Number, b: Number) -> Number:
    """The smaller of two; one of them where ranges decide."""
    from .bounds import known_le

    if known_le(a, b):
        return a
    return b if known_le(b, a) else Least(*_sorted(a, b)).index()


@lru_cache(_CACHED)
def most(a: Number, b: Number) -> Number:
    """The larger of two; one of them where ranges decide."""
    from .bounds import known_le

    if known_le(a, b):
        return b
    return a if known_le(b, a) else Most(*_sorted(a, b)).index()


def _sorted(a: Number, b: Number) -> list[Number]:
    return sorted((a, b), key=lambda n: n.digest if isinstance(n, Index) else b"")


def atoms(number: Number) -> tuple[Atom, ...]:
    """Every atom of a number, nested ones included, values inside `Loaded` not entered."""
    if not isinstance(number, Index):
        return ()
    found = number._parts
    if found is None:
        found = tuple(_atoms(number))
        object.__setattr__(number, "_parts", found)
    return found


def _atoms(number: Index) -> Iterator[Atom]:
    for monomial, _ in number.terms:
        for atom in monomial:
            yield atom
            for field in () if isinstance(atom, (Var, Loaded)) else atom.fields():
                if isinstance(field, Index):
                    yield from atoms(field)


def substitute(number: Number, by: Mapping[Atom, Number]) -> Number:
    """`number` with atoms (variables, sizes) replaced, by numbers within their ranges wherever the result is used."""
    return rebuild(number, by.get)


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


def evaluate(
    number: Number,
    leaf: Callable[[Atom], Any],
    smaller: Callable[[Any, Any], Any] = min,
    larger: Callable[[Any, Any], Any] = max,
) -> Any:
    """The value of a number.

    Args:
        number: an integer or an index.
        leaf: gives what variables, sizes and loaded indices are: integers, or anything with their arithmetic.
        smaller: chooses between two such.
        larger: likewise.
    """
    if not isinstance(number, Index):
        return number
    total: Any = 0
    for monomial, coefficient in number.terms:
        product: Any = coefficient
        for atom in monomial:
            product = product * _evaluated(atom, leaf, smaller, larger)
        total = total + product
    return total


def _evaluated(atom: Atom, leaf: Callable[[Atom], Any], smaller: Any, larger: Any) -> Any:
    if isinstance(atom, (Var, Size, Loaded)):
        return leaf(atom)
    a, b = (evaluate(part, leaf, smaller, larger) for part in atom.fields())
    if isinstance(atom, Quotient):
        return a // b
    if isinstance(atom, Remainder):
        return a % b
    return smaller(a, b) if isinstance(atom, Least) else larger(a, b)


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


def number_text(number: Number, value_text: Callable[[Any], str]) -> str:
    """A number as text: ``768*i + d``, ``((i + 3)//8)``, ``index(ids[i])`` for one that is read from memory.

    Args:
        number: an integer or an index.
        value_text: writes the value of a `Loaded`.
    """
    if not isinstance(number, Index):
        return str(number)
    text = ""
    for monomial, coefficient in number.terms:
        term = "*".join([*([str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []),
                         *(_atom_text(atom, value_text) for atom in monomial)])  # fmt: skip
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {term}" if text else (f"-{term}" if coefficient < 0 else term)
    return text


def _atom_text(atom: Atom, value_text: Callable[[Any], str]) -> str:
    if isinstance(atom, (Var, Size)):
        return atom.name
    if isinstance(atom, Loaded):
        return f"index({value_text(atom.value)})"
    a, b = (number_text(part, value_text) for part in atom.fields())
    if isinstance(atom, (Least, Most)):
        return f"{'min' if isinstance(atom, Least) else 'max'}({a}, {b})"
    return f"({_grouped(a)}{'//' if isinstance(atom, Quotient) else '%'}{_grouped(b)})"


def _grouped(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
