"""Symbolic sizes of torch as indices of the loop IR: sympy at the border, polynomials inside."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from ..ir.index import Index, Size, add, least, most, mul, quotient, remainder
from ..ir.value import Const, Number, Op, Value


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
        Unlowered: the expression is not a polynomial with floor divisions, remainders, minima and maxima.
    """
    if isinstance(value, torch.SymInt):
        node = value.node
        return from_sympy(node.expr, getattr(node, "shape_env", None))
    return int(value)


def from_sympy(expr: Any, shape_env: Any) -> Any:
    """A sympy expression as an index; sizes get the range that the shape environment knows of."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return _size(expr, shape_env).index()
    parts = [from_sympy(a, shape_env) for a in expr.args]
    fold = _FOLDS.get(type(expr).__name__)
    if fold is None:
        raise Unlowered("symbolic", f"{type(expr).__name__} of sizes: {expr}")
    total = parts[0]
    for part in parts[1:]:
        total = fold(total, part)
    return total


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or exponent < 0:
        raise Unlowered("symbolic", f"power {exponent} of a size")
    total: Any = 1
    for _ in range(exponent):
        total = mul(total, base)
    return total


_FOLDS: dict[str, Any] = {
    "Add": add, "Mul": mul, "Pow": _power, "PowByNatural": _power, "FloorDiv": quotient, "CleanDiv": quotient,
    "PythonMod": remainder, "Mod": remainder, "Min": least, "Max": most,
}  # fmt: skip


def real(value: torch.SymFloat) -> Value:
    """A symbolic float as a value, float64.

    Raises:
        Unlowered: it is more than arithmetic and square roots of sizes.
    """
    return _real(value.node.expr, getattr(value.node, "shape_env", None))


def _real(expr: Any, shape_env: Any) -> Value:
    if expr.is_number:
        return Const(float(expr), torch.float64)
    if expr.is_integer:
        index = from_sympy(expr, shape_env)
        return Op("cast", (Number(index, torch.int64),), torch.float64) if isinstance(index, Index) else _whole(index)
    name = type(expr).__name__
    if name not in _REALS or expr.is_Symbol:
        raise Unlowered("symbolic", f"{name} of sizes: {expr}")
    parts = [_real(a, shape_env) for a in expr.args]
    total = parts[0]
    if len(parts) == 1 and _REALS[name] is not None:
        return Op(_REALS[name], (total,), torch.float64)
    for part in parts[1:]:
        total = Op(_REALS[name], (total, part), torch.float64)
    return total


def _whole(number: int) -> Value:
    return Const(float(number), torch.float64)


# None: the part itself.
_REALS: dict[str, Any] = {
    "Add": "add", "Mul": "mul", "FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "Pow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log", "ToFloat": None,
}  # fmt: skip


def _size(symbol: Any, shape_env: Any) -> Size:
    if shape_env is not None and shape_env.is_unbacked_symint(symbol):
        raise Unlowered("data-dependent", f"the size {symbol} is known when run")
    ranges = shape_env.var_to_range.get(symbol) if shape_env is not None else None
    if ranges is None:
        return Size(str(symbol), 0, None)
    return Size(str(symbol), _bound(ranges.lower, 0) or 0, _bound(ranges.upper, None))


def _bound(value: Any, otherwise: int | None) -> int | None:
    return int(value) if isinstance(value, (int, sympy.Integer)) and abs(int(value)) < 2**62 else otherwise
