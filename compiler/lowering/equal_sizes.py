"""Sizes that guards hold equal, as one size: what torch assumed when it traced the program, kernels may assume too.

    guards                                      sizes
    Eq((s0 + 3)//4, s1)                         (s0 + 3)//4   ->   s1
    Eq(s0 - 3*((s0 + 3)//4), s1)                s0            ->   4*s1
    Eq(Max(1, s2 - 1), s2 - 1)                  Max(1, s2 - 1)   ->   s2 - 1
    Eq(Mod(s3, 7), 0)                           s3            ->   7*(s3//7)

Dynamo checks guards before each call, so that they hold whenever a kernel runs. torch itself replaces single symbols
only. With one name for one size, results can be broadcast, loops join, and strides are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import sympy

_STEPS = 8  # times that replacements are replaced again


class EqualSizes:
    """What guards say of sizes: `replaced` by expression, and numbers that divide a symbol, by symbol.

    Args:
        guards: of a shape environment, as sympy expressions.
        symbols: the names of those that the program's inputs tell; replacements have no others.
    """

    def __init__(self, guards: Iterable[Any] = (), symbols: Collection[str] = ()) -> None:
        self.replaced: dict[Any, Any] = {}
        self.divisors: dict[Any, int] = {}
        self._symbols = symbols
        for guard in guards:
            if isinstance(guard, sympy.Eq):
                self._add(*guard.args)

    def _add(self, left: Any, right: Any) -> None:
        self._note_divisor(left, right)
        new_left, new_right = self._rewritten(left), self._rewritten(right)
        if new_left == new_right:
            return
        for given, one, other in ((left, new_left, new_right), (right, new_right, new_left)):
            if _is_call(one) and (self._is_plain(other) or one.has(other)):
                self.replaced |= {given: other, one: other}
                return
        if self._solve(sympy.expand(new_left - new_right)):
            return
        for given, one, other in ((left, new_left, new_right), (right, new_right, new_left)):
            if self._is_plain(other) and not self._is_plain(one):
                self.replaced |= {given: other, one: other}

    def _note_divisor(self, left: Any, right: Any) -> None:
        """Mod(s, 7) is 0, or 7*(s//7) is s."""
        if type(left).__name__ in ("Mod", "PythonMod") and right == 0:
            symbol, divisor = left.args
        else:
            product, symbol = (right, left) if left.is_Symbol else (left, right)
            calls = [x for x in product.args if type(x).__name__ in ("FloorDiv", "CleanDiv")] if product.is_Mul else []
            if len(calls) != 1 or product != calls[0] * calls[0].args[1] or calls[0].args[0] != symbol:
                return
            divisor = calls[0].args[1]
        if symbol.is_Symbol and divisor.is_Integer and divisor > 1 and str(symbol) in self._symbols:
            self.divisors[symbol] = int(sympy.ilcm(divisor, self.divisors.get(symbol, 1)))

    def _solve(self, difference: Any) -> bool:
        """Replace a call or symbol that a sum, which is 0, determines: one that stands alone with a factor of 1."""
        calls = {part for part in sympy.preorder_traversal(difference) if _is_call(part)}
        symbols = set() if calls else difference.free_symbols
        for part in sorted(calls | symbols, key=str):
            factor = difference.coeff(part, 1)
            other = sympy.expand((part * factor - difference) * factor)
            if factor in (1, -1) and not other.has(part) and self._is_plain(other):
                self.replaced = {key: value.xreplace({part: other}) for key, value in self.replaced.items()}
                self.replaced[part] = other
                return True
        return False

    def _is_plain(self, expr: Any) -> bool:
        """Whether an expression has no other symbols than inputs tell, and nothing but sums and products of them."""
        calls = any(map(_is_call, sympy.preorder_traversal(expr)))
        return not calls and all(str(symbol) in self._symbols for symbol in expr.free_symbols)

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


_NOTHING = EqualSizes()
_KNOWN: ContextVar[EqualSizes] = ContextVar("regraft_equal_sizes", default=_NOTHING)


def equal_sizes() -> EqualSizes:
    """What is known of the sizes of the program that is being lowered."""
    return _KNOWN.get()


@contextmanager
def equating(known: EqualSizes) -> Iterator[None]:
    """Lower a program of which this is known."""
    token = _KNOWN.set(known)
    try:
        yield
    finally:
        _KNOWN.reset(token)
