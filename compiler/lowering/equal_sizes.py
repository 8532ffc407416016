"""Sizes that guards hold equal, as one size: what torch assumed when it traced the program, kernels may assume too.

    guards                                              sizes
    Eq((s0 + 3)//4, s1)                                 s1              ->   (s0 + 3)//4
    Eq(s0 - 3*((s0 + 3)//4), s1)                        s0              ->   4*(s0//4)
    Eq((s2 + 2)//3, 192), Eq(s2 - 384, 192)             (s2 + 2)//3     ->   192;  s2  ->  576
    Eq(Max(1, s3//2), s3//2)                            Max(1, s3//2)   ->   s3//2
    Eq(Mod(s4, 7), 0)                                   s4              ->   7*(s4//7)

Dynamo checks guards before each call, so that they hold whenever a kernel runs. torch itself replaces only what is a
single symbol on both sides. With one name for one size, results can be broadcast, loops join, and strides are compared.
A symbol gives way to the expression, not the other way round: of (s0 + 3)//4 it is known how it compares with s0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import sympy

_QUOTIENTS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")
_STEPS = 8  # times that replacements are replaced again


class EqualSizes:
    """The guards' facts on sizes: `replaced` by expression, and numbers that divide a symbol, by symbol.

    Args:
        guards: of a shape environment, as sympy expressions.
        symbols: the names of those that the program's inputs tell; replacements have no others.
    """

    def __init__(self, guards: Iterable[Any] = (), symbols: Collection[str] = ()) -> None:
        self.indices: dict[Any, Any] | None = None  # what expressions are as indices, while a program is lowered
        self.replaced: dict[Any, Any] = {}
        self.divisors: dict[Any, int] = {}
        self._symbols = symbols
        for guard in guards:
            if isinstance(guard, sympy.Eq):
                self._add(*guard.args)
        for part, number in list(self.replaced.items()):
            if type(part).__name__ in _QUOTIENTS and self.divisors.get(part.args[0], 1) % part.args[1] == 0:
                self.replaced.setdefault(part.args[0], number * part.args[1])

    def _add(self, left: Any, right: Any) -> None:
        if type(left).__name__ in _REMAINDERS and right == 0:
            self._note_divisor(*left.args)
        left, right = self._rewritten(left), self._rewritten(right)
        difference = sympy.expand(left - right)
        if difference == 0 or self._is_whole(difference) or self._solve(difference):
            return
        for one, other in ((left, right), (right, left)):
            # A maximum is one factor of a stride; a sum would be multiplied out, and strides could not be compared.
            if _is_call(one) and (other.is_Integer or (one.has(other) and not other.is_Add)):
                self.replaced[one] = other

    def _note_divisor(self, symbol: Any, divisor: Any) -> None:
        if symbol.is_Symbol and divisor.is_Integer and divisor > 1 and str(symbol) in self._symbols:
            self.divisors[symbol] = int(sympy.ilcm(divisor, self.divisors.get(symbol, 1)))

    def _is_whole(self, difference: Any) -> bool:
        """Whether it says that a number divides a symbol: of two terms, each of the symbol.

        s - 7*(s//7) = 0,  s - 4*((s + 3)//4) = 0,  (s + 1)//2 - s//2 = 0
        """
        terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(difference)]
        if len(terms) != 2 or len(difference.free_symbols) != 1:
            return False
        (symbol,) = difference.free_symbols
        factors = {part: factor for factor, part in terms}
        calls = [part for part in factors if part != symbol]
        offsets = {part: offset for part in calls if (offset := _offset(part, symbol)) is not None}
        if len(offsets) != len(calls):
            return False
        divisor = next(iter(offsets)).args[1]
        if symbol in factors:
            ((part, offset),) = offsets.items()
            whole = factors[symbol] * divisor == -factors[part] and 0 <= offset < divisor
        else:
            low, high = sorted(offsets.values())
            alike = len({part.args[1] for part in offsets}) == 1 and sum(factors.values()) == 0
            whole = alike and low % divisor == 0 and high - low == divisor - 1
        if whole:
            self._note_divisor(symbol, divisor)
        return bool(whole)

    def _solve(self, difference: Any) -> bool:
        """Replace a symbol that a sum, which is 0, determines: one that stands alone with a factor of 1."""
        for symbol in sorted(difference.free_symbols, key=str):
            factor = difference.coeff(symbol, 1)
            other = sympy.expand((symbol * factor - difference) * factor)
            if factor in (1, -1) and symbol not in other.free_symbols and self._is_told(other):
                self.replaced = {key: value.xreplace({symbol: other}) for key, value in self.replaced.items()}
                self.replaced[symbol] = other
                return True
        return False

    def _is_told(self, expr: Any) -> bool:
        """Whether kernels can compute an expression of what the inputs tell."""
        known = all(str(symbol) in self._symbols for symbol in expr.free_symbols)
        return known and all(map(_is_computed, sympy.preorder_traversal(expr)))

    def _rewritten(self, expr: Any) -> Any:
        for _ in range(_STEPS):
            new = expr.xreplace(self.replaced)
            if new == expr:
                return new
            expr = new
        return expr


def _is_call(expr: Any) -> bool:
    """Whether an expression is a division, a remainder, a maximum, ...: neither a sum nor a product, nor a power."""
    return bool(expr.args) and not (expr.is_Add or expr.is_Mul or (expr.is_Pow and expr.args[1].is_Integer))


def _is_computed(expr: Any) -> bool:
    if type(expr).__name__ in _QUOTIENTS:
        return bool(expr.args[1].is_Integer and expr.args[1] > 0)
    return not _is_call(expr) or type(expr).__name__ in ("Max", "Min")


def _offset(expr: Any, symbol: Any) -> int | None:
    """The number c of (symbol + c)//k, k a number; None for other expressions."""
    if type(expr).__name__ not in _QUOTIENTS or not expr.args[1].is_Integer:
        return None
    rest = expr.args[0] - symbol
    return int(rest) if rest.is_Integer else None


_NOTHING = EqualSizes()
_KNOWN: ContextVar[EqualSizes] = ContextVar("regraft_equal_sizes", default=_NOTHING)


def equal_sizes() -> EqualSizes:
    """The facts on the sizes of the program that is being lowered."""
    return _KNOWN.get()


@contextmanager
def equating(known: EqualSizes) -> Iterator[None]:
    """Lower a program of which this is known."""
    token, known.indices = _KNOWN.set(known), {}
    try:
        yield
    finally:
        known.indices = None
        _KNOWN.reset(token)
