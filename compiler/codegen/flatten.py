"""Simplifies kernels for code generation: one offset per access, and index arithmetic in the narrowest integers.

x[i, j] of strides (768, 1)        ->  x[768*i + j]
le(Number(j, i64), Number(i, i64)) ->  le(Number(j, i32), Number(i, i32))       where both fit
eq(i64(a) + Number(j, i64), ...)   ->  eq(i32(a) + Number(j, i32), ...)         a of 16 bits
argmax(x[j], Number(j, i64))       ->  argmax(x[j], Number(j, i32))             and what reads the place casts it
sum(i64(x[j] > 0))                 ->  sum(i32(x[j] > 0))                       the same, where the sum fits
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..ir.accesses import statements
from ..ir.index.bounds import bounds
from ..ir.index.index import Atom, Loaded
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.ops import COMPARISONS
from ..ir.program import Buffer, Reduction, Store
from ..ir.reducers import REDUCERS
from ..ir.value import Const, Load, Number, Op, Result, Rewriter, Value
from .narrow import Narrower, Span, fits_32_bits


def flatten(kernel: Kernel) -> Kernel:
    """The kernel in which every `Load` and `Store` has one index, an offset in elements."""
    buffers = {b.name: b for b in [*(p.buffer for p in kernel.params), *kernel.scratch]}
    return _Flattening(buffers).kernel(kernel)


def flatten_value(value: Value, buffers: Iterable[Buffer]) -> Value:
    """A value that is simplified as those of a kernel are; it reads from `buffers`."""
    return _Flattening({b.name: b for b in buffers}).value(value)


class _Flattening:
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self._buffers, self._narrow = buffers, Narrower()
        self._rewrite = Rewriter(value=self._value, atom=self._atom)

    def value(self, value: Value) -> Value:
        return self._rewrite(value)

    def kernel(self, kernel: Kernel) -> Kernel:
        self._shorten_within(kernel.body)
        return replace(kernel, body=self._block(kernel.body))

    def _block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return Loop(statement.var, self._block(statement.body), statement.parallel)
        if isinstance(statement, Fold):
            return Fold(tuple(map(self._reduction, statement.reductions)), self._block(statement.body))
        if isinstance(statement, Update):
            return Update(self._reduction(statement.reduction))
        assert isinstance(statement, Assign), statement
        return Assign(self._store(statement.store))

    def _shorten_within(self, body: tuple[Statement, ...]) -> None:
        """Shorten the reductions of folds, of each after those that it reads."""
        for statement in body:
            if isinstance(statement, (Loop, Fold)):
                self._shorten_within(statement.body)
            if isinstance(statement, Fold):
                for reduction in statement.reductions:
                    self._shorten(reduction, statement)

    def _shorten(self, reduction: Reduction, fold: Fold) -> None:
        """Keep places and sums in 32 bits from here on, where none needs more."""
        if REDUCERS[reduction.reducer].has_position and _runs(fold):
            span = self._least_and_greatest(reduction.values[1])
            if span is not None:
                self._narrow.results[reduction.name, 1] = span
        elif reduction.reducer == "sum" and reduction.values[0].dtype == torch.int64:
            span = self._sum(reduction.name, fold)
            if span is not None and fits_32_bits(span):
                self._narrow.results[reduction.name, 0] = span

    def _least_and_greatest(self, value: Value) -> Span | None:
        """The span of a whole number of 64 bits that is one of 32 as well; else None."""
        value = self._rewrite(value)
        return self._narrow.span(value) if self._narrow.narrowed(value) is not None else None

    def _sum(self, name: str, fold: Fold) -> Span | None:
        """The least and the greatest that a sum is, at its end or before; None where it is not known."""
        low = high = 0
        for value, times in _terms_of(name, fold.body, 1):
            span = self._least_and_greatest(value)
            if span is None or times is None:
                return None
            low, high = low + min(span[0], 0) * times, high + max(span[1], 0) * times
        return low, high

    def _reduction(self, reduction: Reduction) -> Reduction:
        values = tuple(map(self._rewrite, reduction.values))
        narrow = [
            self._narrow.narrowed(v) if (reduction.name, k) in self._narrow.results else v for k, v in enumerate(values)
        ]
        return replace(reduction, values=tuple(v for v in narrow if v is not None))

    def _store(self, store: Store) -> Store:
        at = self._offset(store.buffer, tuple(map(self._rewrite.index, store.indices)))
        value = self._rewrite(store.value)
        narrow = self._narrow.narrowed(value) if store.mode is None and not isinstance(value, Number) else None
        if narrow is not None and not isinstance(narrow, Const):
            value = Op("cast", (narrow,), value.dtype)
        return replace(store, indices=(at,), value=value)

    def _offset(self, buffer: str, indices: tuple[Any, ...]) -> Any:
        return sum((at * step for at, step in zip(indices, self._buffers[buffer].strides, strict=True)), 0)

    def _atom(self, atom: Atom) -> Any:
        """An index read from memory, in 32 bits if it was computed from narrower values."""
        if not isinstance(atom, Loaded):
            return None
        narrow = self._narrow.narrowed(self._rewrite(atom.value))
        return None if narrow is None else Loaded(narrow, self._rewrite.index(atom.size), atom.wrap).index()

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(value.buffer, (self._offset(value.buffer, value.indices),), value.dtype)
        if isinstance(value, Op) and value.name in COMPARISONS:
            narrow = tuple(map(self._narrow.narrowed, value.args))
            return Op(value.name, narrow, value.dtype) if None not in narrow else None
        if isinstance(value, Result) and (value.reduction, value.component) in self._narrow.results:
            return Op("cast", (Result(value.reduction, value.component, torch.int32),), value.dtype)
        if isinstance(value, Op) and value.name == "cast":
            return self._cast(value)
        return None

    def _cast(self, value: Op) -> Value | None:
        """A cast of a whole number of 64 bits, of 32 where that is the same."""
        source = value.args[0]
        if isinstance(source, Number):
            exact = value.dtype == torch.float32 and _fits(source.index, 2**24)
            return Number(source.index, value.dtype) if exact else None
        narrow = self._narrow.narrowed(source)
        if narrow is None:
            return None
        return narrow if narrow.dtype == value.dtype else Op("cast", (narrow,), value.dtype)


def _runs(fold: Fold) -> bool:
    """Whether something is folded for sure: over nothing, a place is none that fits."""
    lows = [bounds(s.var.extent)[0] for s in statements(fold.body) if isinstance(s, Loop)]
    return all(low is not None and low > 0 for low in lows)


def _terms_of(name: str, body: Iterable[Statement], times: int | None) -> Iterator[tuple[Value, int | None]]:
    """The values that are folded into a reduction, and how many times at most."""
    for statement in body:
        if isinstance(statement, Update) and statement.reduction.name == name:
            yield statement.reduction.values[0], times
        elif isinstance(statement, Loop):
            high = bounds(statement.var.extent)[1]
            yield from _terms_of(name, statement.body, None if times is None or high is None else times * high)
        elif isinstance(statement, Fold):
            yield from _terms_of(name, statement.body, times)


def _fits(number: Any, limit: int) -> bool:
    low, high = bounds(number)
    return low is not None and high is not None and -limit < low and high < limit
