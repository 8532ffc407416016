"""Python numbers that are known when run: what a lowering is given for a scalar argument that is symbolic.

1 - b ** k      as `value`            ->   Scalar(float64 number of the wrapper's)
alpha * scale   inside a lowering     ->   Scalar(float64: alpha * scale), as eager computes it on the host
times(a, alpha)                       ->   a * float32(alpha): scalars take the dtype of the values that they meet
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.index.index import Index
from ..ir.value import Number, Op, Value
from .core import cast, const
from .sizes import Unlowered


class Scalar:
    """A Python bool, int or float that is known when run; its arithmetic is Python's.

    Args:
        value: bool, int64 or float64: by its dtype it promotes as Python's bool, int or float.
        index: what an int is as an index, None for others.
    """

    def __init__(self, value: Value, index: Any = None) -> None:
        self.value, self.index = value, index

    @classmethod
    def of(cls, number: Any) -> Any:
        """An index as a scalar; other numbers as they are."""
        return cls(Number(number, torch.int64), number) if isinstance(number, Index) else number

    @property
    def is_floating(self) -> bool:
        """Whether it is a float."""
        return self.value.dtype.is_floating_point

    def __add__(self, other: Any) -> Any:
        return _computed("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _computed("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _computed("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _computed("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _computed("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _computed("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _computed("div", self, other, torch.float64)

    def __rtruediv__(self, other: Any) -> Any:
        return _computed("div", other, self, torch.float64)

    def __neg__(self) -> Any:
        return _computed("mul", self, -1)

    def _decided(self, *_: Any) -> Any:
        raise Unlowered("symbolic", "a decision by a number that is known when run")

    __bool__ = __int__ = __float__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _decided
    __eq__ = __ne__ = _decided  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def _computed(name: str, a: Any, b: Any, dtype: torch.dtype | None = None) -> Scalar:
    dtype = dtype or (torch.float64 if is_floating(a) or is_floating(b) else torch.int64)
    return Scalar(Op(name, (literal(a, dtype), literal(b, dtype)), dtype))


def literal(number: Any, dtype: torch.dtype) -> Value:
    """A Python number, a scalar, an index or a value in a compute dtype."""
    if isinstance(number, Value):
        return cast(number, dtype)
    if isinstance(number, Scalar):
        return cast(number.value, dtype)
    return cast(Number(number, torch.int64), dtype) if isinstance(number, Index) else const(number, dtype)


def is_floating(number: Any) -> bool:
    """Whether a number, known or not, is a float."""
    return number.is_floating if isinstance(number, Scalar) else isinstance(number, float)


def exact(number: Any) -> Any:
    """A scalar as an index where it is one."""
    return number.index if isinstance(number, Scalar) and number.index is not None else number
