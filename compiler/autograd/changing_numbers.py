"""Numbers that change from call to call, as factors of tensors: what torch cannot make a tensor of it compiles in.

    add(p, g, alpha=-lr)    ->    add(p, mul(g, -lr))
    lerp(m, g, 1 - beta)    ->    lerp(m, g, mul(ones, 1 - beta))
    add(i, j, alpha=lr)     stays: integers times a float would be floats, and eager refuses them

Before a graph is compiled, AOTAutograd brings Python's floats into tensors where they multiply or are added; a number
that it finds anywhere else, a learning rate under a scheduler, is taken as a constant, and each new value is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import tree_leaves
from ...rewrites.symbolic import hint, lies_under_guard

_HALVES = (torch.float16, torch.bfloat16)
aten = torch.ops.aten


def by_tensors() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions for tracing: of calls with a symbolic float where it is no factor; others stay as they are."""
    found: dict[Any, Callable[..., Any]] = {
        aten.add.Tensor: _add,
        aten.sub.Tensor: _sub,
        aten.addcmul.default: _addcmul,
        aten.addcdiv.default: _addcdiv,
        aten.lerp.Scalar: _lerp,
        aten.pow.Scalar: _power,
        aten.full_like.default: _full_like,
        torch.ops.prims.fma.default: _fma,
        **{_foreach(name): _over_lists(one) for name, one in _OVER_LISTS.items()},
    }
    return {operator: _of_inexact(compute) for operator, compute in found.items()}


def _of_inexact(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition where some tensor has floating-point or complex elements."""

    @wraps(compute)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
        inexact = any(x.is_floating_point() or x.is_complex() for x in tensors)
        return compute(*args, **kwargs) if inexact else NotImplemented

    return call


def _foreach(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(aten, f"_foreach_{packet}"), overload)


def _over_lists(one: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of a call over lists of tensors, where a number of it changes: one call a tensor."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        numbers = [number for number in (*args, *kwargs.values()) if not isinstance(number, (list, tuple))]
        if not any(isinstance(number, torch.SymFloat) for number in numbers):
            return NotImplemented
        count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
        rows = zip(*(arg if isinstance(arg, (list, tuple)) else [arg] * count for arg in args), strict=True)
        return [one(*row, **kwargs) for row in rows]

    return compute


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(alpha, torch.SymFloat) or _beyond(alpha, torch.result_type(x, y)):
        return NotImplemented
    return _precisely(lambda x, y: x + y * alpha, x, y)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(alpha, torch.SymFloat) or _beyond(alpha, torch.result_type(x, y)):
        return NotImplemented
    return _precisely(lambda x, y: x - y * alpha, x, y)


def _addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    if not isinstance(value, torch.SymFloat) or _beyond(value, _factors_dtype(x)):
        return NotImplemented
    if x.device.type == "cpu":  # rounded in eager's order
        return _precisely(lambda x, a, b: x + a * value * b, x, a, b)
    return _precisely(lambda x, a, b: x + a * b * value, x, a, b)


def _addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    if not isinstance(value, torch.SymFloat) or _beyond(value, _factors_dtype(x)):
        return NotImplemented
    if x.device.type == "cpu":
        return _precisely(lambda x, a, b: x + a * value / b, x, a, b)
    return _precisely(lambda x, a, b: x + a / b * value, x, a, b)


def _lerp(x: Any, end: Any, weight: Any) -> Any:
    if not isinstance(weight, torch.SymFloat) or _beyond(weight, _factors_dtype(x)):
        return NotImplemented
    return _precisely(lambda x, end: torch.lerp(x, end, as_tensor(weight, x)), x, end)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """A product with a number that changes, plus `c`: tracing writes `addcdiv` out as this."""
    if not any(isinstance(number, torch.SymFloat) for number in (a, b)):
        return NotImplemented
    x, factor = (b, a) if isinstance(a, torch.SymFloat) else (a, b)
    return _precisely(lambda x, c: x * factor + c, x, c)


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(base, torch.SymFloat) or not exponent.is_floating_point():
        return NotImplemented
    return _precisely(torch.pow, as_tensor(base, exponent), exponent)


def _full_like(x: Any, number: Any, **kwargs: Any) -> Any:
    dtype = kwargs.get("dtype") or x.dtype
    if not isinstance(number, torch.SymFloat) or not dtype.is_floating_point or _beyond(number, dtype):
        return NotImplemented
    made: Any = torch.ones_like(x, **kwargs)
    return made * number


def _beyond(number: Any, dtype: torch.dtype) -> bool:
    """Whether eager may refuse to make an element of a number; where not, a guard holds later numbers to that."""
    if dtype not in (torch.float32, *_HALVES) or hint(number) is None:
        return False
    if dtype != torch.float16 and not compat.takes_guards(number.node.shape_env):  # few numbers are that large
        return False
    return not lies_under_guard(number, torch.finfo(dtype).min, torch.finfo(dtype).max)


def _factors_dtype(x: torch.Tensor) -> torch.dtype:
    """In which eager takes a factor of a call: wider than 16-bit tensors."""
    return torch.float32 if x.dtype in _HALVES else x.dtype


def as_tensor(number: Any, like: Any) -> Any:
    """A number as a tensor of the dtype of another, on its device."""
    return torch.ones((), dtype=like.dtype, device=like.device) * number


def _precisely(compute: Callable[..., Any], *tensors: Any) -> Any:
    """What is computed of 16-bit floats is rounded once, as eager's one call rounds."""
    dtype = torch.result_type(tensors[0], tensors[-1])
    if dtype not in _HALVES:
        return compute(*tensors)
    return compute(*(tensor.float() for tensor in tensors)).to(dtype)


_OVER_LISTS: Mapping[str, Callable[..., Any]] = {
    "add.List": torch.add, "sub.List": torch.sub, "add.Scalar": torch.add, "sub.Scalar": torch.sub,
    "mul.Scalar": torch.mul, "div.Scalar": torch.div, "lerp.Scalar": torch.lerp,
    "addcmul.Scalar": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv.Scalar": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "pow.ScalarAndTensor": torch.pow,
}  # fmt: skip
