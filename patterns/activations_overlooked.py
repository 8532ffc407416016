"""Activations in spellings that no rule replaces: formulas of one value that are one at a few points.

    x * (e * (e + 2)) / (e * (e + 2) + 2), with e = exp(x)      mish(x), but NaN where exponents overflow
    x / (1 + exp(-x)), trained                                  silu(x), but its gradient is NaN there

Formulas are evaluated in Python's numbers, call by call. That is enough to tell of them, not to replace them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from ..rewrites.effects import wants_gradient
from ..rewrites.graph import arguments, describe, is_tensor, op_name
from ..rewrites.reason import Reason
from .overlooked import differs

_POINTS = (-3.0, -1.0, -0.4, 0.3, 1.0, 2.5)
_EXTREMES = (-1000.0, 1000.0)
_CLOSE = 1e-6  # relative: constants of activations are written with few digits

Values = tuple[float, ...]


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def _divided(a: float, b: float) -> float:
    return a / b if b else math.copysign(math.inf, a) if a else math.nan


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _power(a: float, b: float) -> float:
    try:
        power = a**b
    except (OverflowError, ZeroDivisionError):
        return math.inf
    return power if isinstance(power, float) else math.nan


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(_exp(-abs(x)))


_CALLS: dict[str, Callable[..., float]] = {
    "aten.add": lambda a, b: a + b, "aten.sub": lambda a, b: a - b, "aten.mul": lambda a, b: a * b,
    "aten.div": _divided, "aten.reciprocal": lambda a: _divided(1.0, a), "aten.pow": _power, "aten.abs": abs,
    "aten.neg": lambda a: -a, "aten.relu": lambda a: max(a, 0.0), "aten.clamp_min": max, "aten.to": lambda a: a,
    "aten.sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan, "aten.log": _log,
    "aten.log1p": lambda a: _log(1 + a), "aten.where": lambda c, a, b: a if c else b,
    "aten.ge": operator.ge, "aten.gt": operator.gt, "aten.le": operator.le, "aten.lt": operator.lt,
}  # fmt: skip
_CURVES: dict[str, Callable[[float], float]] = {
    "aten.exp": _exp, "aten.expm1": lambda a: _exp(a) - 1, "aten.sigmoid": _sigmoid, "aten.tanh": math.tanh,
    "aten.erf": math.erf, "aten.erfc": math.erfc, "aten.softplus": _softplus,
    "aten.log_sigmoid": lambda a: -_softplus(-a),
    "aten.special_log_ndtr": lambda a: _log(0.5 * math.erfc(-a / math.sqrt(2))),
}  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * math.tanh(_softplus(x)),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
_EXPECTED = {name: tuple(map(f, _POINTS + _EXTREMES)) for name, f in _ACTIVATIONS.items()}


class _Formula:
    """A value as a function of another one: its values at the points, whether it has curves, and one overflows."""

    def __init__(self, x: fx.Node, values: Values, curved: bool, overflows: bool) -> None:
        self.x, self.values, self.curved, self.overflows = x, values, curved, overflows


def overlooked_activations(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each value that equals an activation of another value at a few points."""
    if not any(map(_is_curve, graph.nodes)):
        return
    formulas: dict[fx.Node, _Formula] = {}
    for node in graph.nodes:
        formula = _formula(node, formulas)
        if formula is not None:
            formulas[node] = formula
        formula = formula or _among_factors(node, formulas)
        name = _activation(formula) if formula is not None and formula.curved else None
        if formula is not None and name is not None:
            formulas.pop(node, None)  # what is computed from it is a formula of its own
            yield node, _reason(node, formula, name)


def _is_curve(node: fx.Node) -> bool:
    return op_name(node) in _CURVES or (op_name(node) == "aten.pow" and not is_tensor(node.args[0]))


def _formula(node: fx.Node, formulas: dict[fx.Node, _Formula]) -> _Formula | None:
    name = op_name(node)
    call = _CALLS.get(name) or _CURVES.get(name)
    if call is None or not is_tensor(node) or "opaque" in node.meta or arguments(node).get("alpha", 1) != 1:
        return None
    operands = node.args[:1] if name in ("aten.to", "aten.softplus") else node.args
    parts = [_part(a, formulas) for a in operands]
    known = [p for p in parts if isinstance(p, _Formula)]
    if not known or any(p is None for p in parts) or any(p.x is not known[0].x for p in known):
        return None
    columns = [p.values if isinstance(p, _Formula) else (p,) * len(_POINTS + _EXTREMES) for p in parts]
    try:
        values = tuple(float(call(*row)) for row in zip(*columns, strict=True))
    except (ValueError, OverflowError, TypeError):
        return None
    curve = _is_curve(node)
    overflows = any(p.overflows for p in known) or (curve and math.inf in values)
    return _Formula(known[0].x, values, curve or any(p.curved for p in known), overflows)


def _among_factors(node: fx.Node, formulas: dict[fx.Node, _Formula]) -> _Formula | None:
    """``x * gate(x)`` or ``x / gate(x)`` in a product that has another factor too: mul(mul(u, x), gate(x))."""
    name = op_name(node)
    if name not in ("aten.mul", "aten.div") or len(node.args) != 2:
        return None
    for product, gate in (node.args, node.args[::-1]) if name == "aten.mul" else (node.args,):
        formula = formulas.get(gate) if isinstance(gate, fx.Node) else None
        if formula is not None and op_name(product) == "aten.mul" and formula.x in product.args:
            x = _POINTS + _EXTREMES
            values = tuple(_CALLS[name](*row) for row in zip(x, formula.values, strict=True))
            return _Formula(formula.x, values, formula.curved, formula.overflows)
    return None


def _part(value: Any, formulas: dict[fx.Node, _Formula]) -> _Formula | float | None:
    """An operand: a formula, a value that formulas begin with, or a number; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not is_tensor(value):
        return None
    return formulas.get(value) or _Formula(value, _POINTS + _EXTREMES, False, False)


def _activation(formula: _Formula) -> str | None:
    n = len(_POINTS)
    for name, expected in _EXPECTED.items():
        if all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(formula.values[:n], expected[:n], strict=True)):
            return name
    return None


def _reason(node: fx.Node, formula: _Formula, name: str) -> Reason:
    n = len(_POINTS)
    ends = zip(formula.values[n:], _EXPECTED[name][n:], strict=True)
    if not all(math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE) for a, b in ends):
        message = f"this is {name} of {describe(formula.x)}, except where exponents overflow"
        return differs("exponents-overflow", message, name, node, formula.x)
    if wants_gradient(node) and formula.overflows:
        message = f"this is {name} of {describe(formula.x)}, but its gradient is NaN where exponents overflow"
        return differs("exponents-overflow", message, name, node, formula.x)
    message = f"this is {name} of {describe(formula.x)} in a spelling that no rule knows"
    return differs("spelling-unknown", message, name, node, formula.x)
