"""Operators on lists of tensors, as optimizers use them: one definition for each tensor.

_foreach_mul([%p, %q], 0.9)    ->    p * 0.9;  q * 0.9
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import LOWERINGS, Lowering, Tensor, lowers
from . import functions, pointwise  # noqa: F401  (they register what stands for one tensor)
from .copies import copied

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc", "zero",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min", "pow")
TERNARY = ("addcmul", "addcdiv")


def _each(low: Lowering, function: Callable[..., Tensor], lists: Sequence[Any]) -> tuple[Tensor, ...]:
    """`function` of the k-th members of `lists` for every k; what is no list goes to all."""
    results = []
    for k in range(len(next(x for x in lists if isinstance(x, list)))):
        low.output = k
        results.append(function(*(x[k] if isinstance(x, list) else x for x in lists)))
    low.output = None
    return tuple(results)


def _unary(base: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda low, xs: _each(low, lambda x: base(low, x), [xs])


def _binary(base: Callable[..., Tensor]) -> Callable[..., Any]:
    def lowering(low: Lowering, xs: list[Tensor], ys: Any, *alpha: Any, **by_name: Any) -> tuple[Tensor, ...]:
        return _each(low, lambda x, y: base(low, x, y, *alpha, *by_name.values()), [xs, ys])

    return lowering


def _ternary(base: Callable[..., Tensor]) -> Callable[..., Any]:
    def lowering(low: Lowering, xs: Any, ys: Any, zs: Any, value: Any = 1) -> tuple[Tensor, ...]:
        return _each(low, lambda x, y, z, v: base(low, x, y, z, value=v), [xs, ys, zs, value])

    return lowering


for _names, _make in ((UNARY, _unary), (BINARY, _binary), (TERNARY, _ternary)):
    for _name in _names:
        _base = LOWERINGS.get(f"aten.{_name}") or LOWERINGS[f"aten.{_name}.default"]
        lowers(f"aten._foreach_{_name}")(_make(_base))


@lowers("aten._foreach_lerp")
def _foreach_lerp(low: Lowering, xs: list[Tensor], ys: list[Tensor], weight: Any) -> tuple[Tensor, ...]:
    return _each(low, lambda x, y, w: LOWERINGS["aten.lerp"](low, x, y, w), [xs, ys, weight])


@lowers("aten._foreach_norm")
def _foreach_norm(low: Lowering, xs: list[Tensor], order: Any = 2, dtype: Any = None) -> tuple[Tensor, ...]:
    return _each(low, lambda x: LOWERINGS["aten.linalg_vector_norm"](low, x, order, dtype=dtype), [xs])


@lowers("aten._foreach_copy")
def _foreach_copy(low: Lowering, xs: list[Tensor], sources: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    return _each(low, lambda x, source: LOWERINGS["aten.copy"](low, x, source), [xs, sources])


@lowers("aten._foreach_clone")
def _foreach_clone(low: Lowering, xs: list[Tensor]) -> tuple[Tensor, ...]:
    return _each(low, lambda x: copied(low, x), [xs])
