"""Whole numbers of 64 bits as such of 32, where they and all that they are computed from fit.

Number(j, i64)                          ->  Number(j, i32)
i64(a) + Number(j, i64)                 ->  i32(a) + Number(j, i32)                a of 16 bits
where(isnan(x), ~(3*j), 3*j)            ->  the same of 32 bits                    the place that `argmax` keeps
sum of i64(x[j] > 0), j < 64            ->  sum of i32(x[j] > 0)                   at most 64
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..ir.index.bounds import bounds
from ..ir.ops import OPS
from ..ir.value import Const, Guarded, Number, Op, Result, Value

Span = tuple[int, int]

_NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)
_LIMITS = ("minimum", "maximum")
_INT32 = torch.iinfo(torch.int32)


class Narrower:
    """Knows what whole numbers can be; what was asked once is remembered.

    Args:
        results: the least and the greatest that a component of a reduction, kept in 32 bits, can be, by the name of
            the reduction and the number of the component. It may grow.
    """

    def __init__(self, results: dict[tuple[str, int], Span] | None = None) -> None:
        self.results = {} if results is None else results
        self._narrowed: dict[Value, Value | None] = {}
        self._spans: dict[Value, Span | None] = {}

    def narrowed(self, value: Value) -> Value | None:
        """A whole number of 64 bits as one of 32; None where it, or a part of it, may not fit."""
        if value not in self._narrowed:
            span = self.span(value) if value.dtype == torch.int64 else None
            self._narrowed[value] = self._made(value) if span is not None and fits_32_bits(span) else None
        return self._narrowed[value]

    def _made(self, value: Value) -> Value | None:
        if isinstance(value, Const):
            return Const(value.number, torch.int32)
        if isinstance(value, Number):
            return Number(value.index, torch.int32)
        if isinstance(value, Guarded):
            yes, no = self.narrowed(value.value), self.narrowed(value.other)
            return None if yes is None or no is None else Guarded(value.condition, yes, no, torch.int32)
        assert isinstance(value, Op), value
        if value.name == "cast":
            source = value.args[0]
            return source if source.dtype == torch.int32 else Op("cast", (source,), torch.int32)
        kept = value.args[:1] if value.name == "where" else ()
        parts = (*kept, *map(self.narrowed, value.args[len(kept) :]))
        if None not in parts:
            return Op(value.name, tuple(p for p in parts if p is not None), torch.int32)
        return Op("cast", (value,), torch.int32) if value.name in _LIMITS else None

    def span(self, value: Value) -> Span | None:
        """The least and the greatest that a whole number can be; None where nothing is known."""
        if value not in self._spans:
            self._spans[value] = self._span(value)
        return self._spans[value]

    def _span(self, value: Value) -> Span | None:
        if isinstance(value, (Const, Number)):
            low, high = bounds(value.number if isinstance(value, Const) else value.index)
            return None if low is None or high is None else (low, high)
        if isinstance(value, Result) and value.dtype == torch.int32:
            return self.results.get((value.reduction, value.component))
        if isinstance(value, Op) and value.name == "cast" and value.args[0].dtype in _NARROW:
            return self.span(value.args[0])
        if isinstance(value, Op) and value.name == "cast" and value.args[0].dtype == torch.bool:
            return 0, 1
        found = self._computed(value)
        if found is not None and (value.dtype == torch.int64 or fits_32_bits(found)):
            return found
        kind = torch.iinfo(value.dtype) if value.dtype in _NARROW else None
        return (int(kind.min), int(kind.max)) if kind else None

    def _computed(self, value: Value) -> Span | None:
        """The span of what is computed, from those of its parts."""
        if isinstance(value, Guarded):
            spans, of = [self.span(value.value), self.span(value.other)], OPS["where"].span
        elif isinstance(value, Op) and value.name in _LIMITS:
            return self._limited(value)
        elif isinstance(value, Op):
            numbers = value.args[1:] if value.name == "where" else value.args
            spans, of = [self.span(arg) for arg in numbers], OPS[value.name].span
        else:
            return None
        known = [span for span in spans if span is not None]
        return of(*known) if of is not None and len(known) == len(spans) else None

    def _limited(self, value: Op) -> Span | None:
        """The span of what limits keep from both sides: ``minimum(maximum(x, a), b)``, whatever `x` is."""
        low, high = self._ends(value.args[0]), self._ends(value.args[1])
        ends = _span(value)(low, high)
        return None if any(map(math.isinf, ends)) else ends

    def _ends(self, value: Value) -> Any:
        """The span of a number, infinite where nothing is known."""
        if isinstance(value, Op) and value.name in _LIMITS:
            return _span(value)(*map(self._ends, value.args))
        return self.span(value) or (-math.inf, math.inf)


def _span(value: Op) -> Callable[..., Span]:
    found = OPS[value.name].span
    assert found is not None, value
    return found


def fits_32_bits(span: Span) -> bool:
    """Whether all of a span are numbers of 32 bits."""
    return _INT32.min <= span[0] <= span[1] <= _INT32.max
