"""Symbolic sizes of torch as indices of the loop IR: sympy at the border, polynomials inside."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import torch

from ...rewrites.symbolic import hint, known_equal
from ..ir.index.index import TOKEN, Index, Late, Size, add, least, most, mul, quotient, remainder
from ..ir.value import Const, Number, Op, Value
from .equal_sizes import EqualSizes, equal_sizes


class Unlowered(Exception):  # noqa: N818 - no error
    """Raised by a lowering that does not cover this call; the node stays a call of ATen.

    Args:
        code: one of `fallbacks.REASONS`.
        message: what stood in the way.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def number(value: Any) -> Any:
    """An int, or the index of a SymInt.

    Raises:
        Unlowered: the number is known when run only.
    """
    if isinstance(value, torch.SymInt):
        environment = getattr(value.node, "shape_env", None)
        return _remembered((_index, value.node.expr, environment), lambda: _index(value, environment))
    return int(value)


def _index(value: torch.SymInt, shape_env: Any) -> Any:
    expr = value.node.expr
    # What tracing broadcast is 1 under a guard, however it is spelled.
    if not expr.is_Symbol and hint(value) == 1 and known_equal(value, 1):
        return 1
    return from_sympy(expr, shape_env)


def _remembered(key: Any, make: Callable[[], Any]) -> Any:
    """What `make` gives, once for each key of a program: its layers repeat sizes, and parts of long ones."""
    indices = equal_sizes().indices
    if indices is None:
        return make()
    if key not in indices:
        indices[key] = make()
    return indices[key]


def examples(value: Any) -> dict[str, int]:
    """What the symbols among an input's sizes, or an input that is one, are on the example, by the names of sizes."""
    numbers = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
    symbols = [n for n in numbers if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol]
    return {size_name(n.node.expr): int(hint(n)) for n in symbols if hint(n) is not None}


def equal_sizes_of(values: Sequence[Any]) -> EqualSizes:
    """The guards' facts on the sizes of inputs, given their metadata."""
    numbers = [n for value in values for n in (getattr(value, "shape", ()) if torch.is_tensor(value) else (value,))]
    symbolic = [n for n in numbers if isinstance(n, torch.SymInt)]
    environment = next((n.node.shape_env for n in symbolic), None)
    if environment is None:
        return EqualSizes()
    known = {n.node.expr for n in symbolic if n.node.expr.is_Symbol and _least(n.node.expr, environment) >= 0}
    symbols = set(map(str, known))
    return EqualSizes((guard.expr for guard in environment.guards), symbols)


def from_sympy(expr: Any, shape_env: Any) -> Any:
    """A sympy expression as an index.

    What is no polynomial with floor divisions, remainders, minima and maxima gets a name: then the wrapper computes it,
    as Python does, and kernels are given the result.

        4*s0 + s1//2   ->   4*s0 + s1//2            n % -3, abs(n), n & 5   ->   sizes of their own
    """
    if expr.is_Integer:
        return int(expr)
    return _remembered((_from_sympy, expr, shape_env), lambda: _from_sympy(expr, shape_env))


def _from_sympy(expr: Any, shape_env: Any) -> Any:
    known = equal_sizes()
    if expr in known.replaced:
        return from_sympy(known.replaced[expr], shape_env)
    if expr.is_Symbol:
        size, divisor = _named(expr, shape_env), known.divisors.get(expr, 1)
        return mul(quotient(size, divisor), divisor)
    pieces = _size_of_pieces(expr, shape_env)
    if pieces is not None:
        return pieces
    fold = _FOLDS.get(type(expr).__name__)
    if fold is None or not _is_within(expr, shape_env):
        return _named(expr, shape_env)
    parts = [from_sympy(a, shape_env) for a in expr.args]
    return reduce(fold, parts)


def _size_of_pieces(expr: Any, shape_env: Any) -> int | None:
    """The size of equal pieces, of which torch only says how many there are.

    x.reshape(x.shape[0] // 4, 4)   has sizes   x // 4, x // (x // 4)   ->   x // 4, 4      where 4 divides x
    """
    if type(expr).__name__ not in _QUOTIENTS or type(expr.args[1]).__name__ not in _QUOTIENTS:
        return None
    whole, (cut, size) = expr.args[0], expr.args[1].args
    if cut != whole or not size.is_Integer or size < 1:
        return None
    return int(size) if remainder(from_sympy(whole, shape_env), int(size)) == 0 else None


def _is_within(expr: Any, shape_env: Any) -> bool:
    """Whether indices have an operation as Python has it: they divide by positive numbers, and only what is a size.

    A huge dividend would wrap around before it is divided; sums and products wrap around to the same number.
    """
    name = type(expr).__name__
    if name in _POWERS:
        return bool(expr.args[1].is_Integer) and 0 <= int(expr.args[1]) <= _LARGEST_POWER
    if name not in _DIVISIONS:
        return True
    dividend, divisor = expr.args
    return _least(divisor, shape_env) >= 1 and all(_least(s, shape_env) >= 0 for s in dividend.free_symbols)


def _power(base: Any, exponent: int) -> Any:
    return reduce(mul, [base] * exponent, 1)


_LARGEST_POWER = 8
_POWERS = ("Pow", "PowByNatural")
_QUOTIENTS = ("FloorDiv", "CleanDiv")
_DIVISIONS = ("FloorDiv", "CleanDiv", "PythonMod", "Mod")
_FOLDS: dict[str, Any] = {
    "Add": add, "Mul": mul, "Pow": _power, "PowByNatural": _power, "FloorDiv": quotient, "CleanDiv": quotient,
    "PythonMod": remainder, "Mod": remainder, "Min": least, "Max": most,
}  # fmt: skip


def real(value: torch.SymFloat, known: Mapping[Any, Value]) -> Value:
    """A symbolic float as a value, float64.

    Args:
        value: the number.
        known: numbers that the graph computes, by expression.

    Raises:
        Unlowered: it is more than arithmetic and square roots of them and of sizes.
    """
    return _real(value.node.expr, getattr(value.node, "shape_env", None), known)


def _real(expr: Any, shape_env: Any, known: Mapping[Any, Value]) -> Value:
    if expr in known:
        return known[expr]
    if expr.is_number:
        return Const(float(expr), torch.float64)
    if expr.is_integer:
        index = from_sympy(expr, shape_env)
        return Op("cast", (Number(index, torch.int64),), torch.float64) if isinstance(index, Index) else _whole(index)
    name = type(expr).__name__
    if name not in _REALS or expr.is_Symbol:
        raise Unlowered("symbolic", f"{name} of sizes: {expr}")
    parts = [_real(a, shape_env, known) for a in expr.args]
    operation = _REALS[name]
    if operation is None:
        return parts[0]
    if len(parts) == 1:
        return Op(operation, (parts[0],), torch.float64)
    return reduce(lambda a, b: Op(operation, (a, b), torch.float64), parts)


def _whole(number: int) -> Value:
    return Const(float(number), torch.float64)


# None: the part itself.
_REALS: dict[str, Any] = {
    "Add": "add", "Mul": "mul", "FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "Pow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log", "ToFloat": None,
}  # fmt: skip


def _named(expr: Any, shape_env: Any) -> Any:
    """An expression as an atom, with the range that the shape environment knows of: an int may be negative."""
    if shape_env is None:
        return Size(size_name(expr), None, None).index()
    low, high = _range(expr, shape_env)
    known = tokens(expr, shape_env)
    return (Late(size_name(expr), low, high, known) if known else Size(size_name(expr), low, high)).index()


def tokens(expr: Any, shape_env: Any) -> tuple[str, ...]:
    """The names of what stands for the symbols of an expression that calls make known when they run."""
    return tuple(sorted(f"{TOKEN}{s}" for s in expr.free_symbols if shape_env.is_unbacked_symint(s)))


def size_name(expr: Any) -> str:
    """The name of the size that stands for an expression: that of the symbol, or one that no other expression has."""
    if expr.is_Symbol:
        return str(expr)
    text = str(expr)
    digest = hashlib.sha256(sympy.srepr(expr).encode()).hexdigest()[:8]
    return f"n_{re.sub(r'[^0-9A-Za-z]+', '_', text)[:40].strip('_')}_{digest}"


def _range(expr: Any, shape_env: Any) -> tuple[int | None, int | None]:
    ranges = shape_env.var_to_range.get(expr) if expr.is_Symbol else shape_env.bound_sympy(expr)
    return (_bound(ranges.lower), _bound(ranges.upper)) if ranges is not None else (None, None)


def _least(expr: Any, shape_env: Any) -> float:
    """The least that an expression can be, as far as is known."""
    if expr.is_Integer:
        return int(expr)
    low = _range(expr, shape_env)[0] if shape_env is not None else None
    return -math.inf if low is None else low


def _bound(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, sympy.Integer)) and abs(int(value)) < 2**62 else None
